"""This script measures whether rounding decides which tokens `top_entropy` chooses, and whether a wider tie would help.

The same completions are packed in three ways. The script prints by how much the entropies of a token differ between
packings, and in how many of 39 choices, of 2.5 % to 97.5 % of the tokens, another packing chooses other tokens.

Usage: python -m benchmarks.selection_rounding PRECISION
"""

from __future__ import annotations

import sys
from dataclasses import replace

import torch
from torch import Tensor

from grpo.host import environment

environment.prepare()

from benchmarks.profile_step import made_up_groups
from grpo.algorithm.batches import BatchMaker
from grpo.algorithm.token_selection import largest
from grpo.config.hydra import compose_config
from grpo.config.parts import LearnerSettings
from grpo.learner.engine import init_distributed
from grpo.learner.learner import DeepSpeedLearner
from grpo.models.files import ModelFiles
from grpo.models.resolve import resolve
from grpo.types import RoundPlan, ScoredGroup

GROUPS, GROUP_SIZE = 3, 4
PACKINGS = (("shared", 100_000), ("shared", 64), ("packed", 64))
WIDTHS = (0.0, 1e-5, 2**-8, 2**-7, 2**-6, 2**-5)
SHARES = [number / 40 for number in range(1, 40)]


def entropies(learner: DeepSpeedLearner, groups: list[ScoredGroup], layout: str, tokens: int) -> Tensor:
    """Returns the entropies of all completions' tokens, in an order that does not depend on the packing."""
    config = learner._config
    laid_out = replace(config.learner, layout=layout, micro_batch_tokens=tokens, skip_silent_groups=False)
    make = BatchMaker(config.normalization, config.objective, laid_out, learner.collective)
    [batch] = make(learner.add_logprobs([groups]), RoundPlan(GROUP_SIZE, 1, GROUPS))
    by_completion = {}
    for micro in batch.micro_batches:
        with torch.no_grad():
            values = learner.engine(micro, 1.0)[1]
        for completion in micro.sequence_index.unique():
            inside = micro.sequence_index == completion
            by_completion[tuple(micro.targets[inside].tolist())] = values[inside]
    return torch.cat([by_completion[completion] for completion in sorted(by_completion)])


def main(precision: str) -> None:
    words = ["experiment=quickstart", "learner.layout=shared", "learner.micro_batch_tokens=100000"]
    config = compose_config([*words, f"learner.precision={precision}"])
    device = torch.device("cpu")
    init_distributed(device, 600)
    learner = DeepSpeedLearner(LearnerSettings.of(config), ModelFiles(resolve(config.model, list)), device)
    groups = made_up_groups(GROUPS, GROUP_SIZE, 22, 18)
    first, *others = [entropies(learner, groups, *packing) for packing in PACKINGS]
    change = torch.cat([(other - first).abs() for other in others])
    print(f"{precision}: {len(first)} tokens with entropies of {first.min():.2f} to {first.max():.2f} nats")
    middle, most, nearly_all, largest_change = torch.quantile(change, torch.tensor([0.5, 0.9, 0.99, 1.0])).tolist()
    print(f"change between packings: median {middle:.1e}, 90 % {most:.1e}, 99 % {nearly_all:.1e}")
    print(f"largest change: {largest_change:.1e}")
    for width in WIDTHS:
        base, *chosen = [choices(values, width) for values in (first, *others)]
        differing = [int((one != choice).sum()) for other in chosen for one, choice in zip(other, base, strict=True)]
        surplus = sum(choice.float().mean().item() for choice in base) / len(SHARES) - sum(SHARES) / len(SHARES)
        print(
            f"width {width:.5f}: {sum(map(bool, differing))} of {len(differing)} choices differ, by {sum(differing)} "
            f"tokens in all; {surplus:.1%} more tokens are chosen than asked for"
        )


def choices(values: Tensor, width: float) -> list[Tensor]:
    """Returns the tokens with the largest values, for each of `SHARES`."""
    return [largest(values, int(share * len(values)), list, width) for share in SHARES]


if __name__ == "__main__":
    main(*sys.argv[1:])
