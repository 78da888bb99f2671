"""This script measures ρ, the noise of prompts against that of completions, from the gradient of each completion.

    python benchmarks/prompt_noise.py [PROMPTS=64] [GROUP_SIZE=16] [OVERRIDE …]      (two minutes on one core)

A group's gradient is w·σ²·Δs, where Δs is the difference of the mean scores ∇log π of right and wrong completions. If v
is the variance of one completion's score, E[Δs] varies from prompt to prompt by ρ·v. The tiny model samples, and the
score of each completion is computed where a group is not silent. ρ follows from three kinds of scores: by all weights;
the same as Adam sees it, over the root of the groups' mean square; by a shift and a gain of the head's inputs, which
a learner could have from its backward pass for nearly nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from grpo.host import environment
from grpo.interfaces import Draw

environment.prepare()

import torch

from benchmarks.loop_by_hand import DEVICE, model_files, the_task
from grpo.config.hydra import compose_config
from grpo.config.parts import SamplerSettings
from grpo.rollout.transformers_sampler import PADDED, TransformersSampler
from grpo.tasks.task import loaded_task
from grpo.types import ScoredGroup

FEW, REPEATS = 16, 200
# Adam's divisor is at least this share of its root mean square over all weights.
LEAST_DIVISOR = 1e-3

Group = tuple[int, int, NDArray[np.float64], NDArray[np.float64]]
"""A group has its numbers of right and wrong completions, their difference of mean scores Δs [weights], and the sums of
squares about both means [weights]."""


def scored_groups(words: Sequence[str], prompts: int, size: int) -> tuple[torch.nn.Module, list[ScoredGroup]]:
    config = compose_config(["experiment=tiny", "rollout=transformers", *words])
    files = model_files(config)
    sampler = TransformersSampler(SamplerSettings.of(config), files, DEVICE, PADDED)
    with the_task(config, loaded_task(config.task, files.tokenizer), files.tokenizer) as task:
        return sampler._model.requires_grad_(True), task.grade(sampler.generate(Draw(task.next_prompts(prompts), size)))


def scores_of(model: torch.nn.Module, prompt: Sequence[int], tokens: Sequence[int]) -> tuple[NDArray, NDArray]:
    """Returns the score of a completion by all weights, and by a shift and a gain of the head's inputs."""
    inputs: list[torch.Tensor] = []
    hook = model.get_output_embeddings().register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    logits = model(input_ids=torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
    hook.remove()
    logprob = logits.log_softmax(-1).gather(-1, torch.tensor(tokens)[:, None]).sum()
    of_inputs, *of_weights = torch.autograd.grad(logprob, [*inputs, *model.parameters()])
    shift, gain = of_inputs[0].sum(0), (of_inputs[0] * inputs[0][0].detach()).sum(0)
    return torch.cat([part.flatten() for part in of_weights]).numpy(), torch.cat([shift, gain]).numpy()


def speaking(model: torch.nn.Module, scored: Sequence[ScoredGroup]) -> list[tuple[Group, ...]]:
    """Returns the groups with right and wrong completions, by each of the two scores."""
    groups = []
    for one in scored:
        right = np.array(one.rewards) == 1
        if right.all() or not right.any():
            continue
        prompt, completions = [*one.group.prompt.token_ids], one.group.completions
        scores = [scores_of(model, prompt, [*completion.token_ids]) for completion in completions]
        by_kind = []
        for kind in zip(*scores, strict=True):
            sides = [np.array(kind)[side] for side in (right, ~right)]
            difference = sides[0].mean(0) - sides[1].mean(0)
            squares = sum(((side - side.mean(0)) ** 2).sum(0) for side in sides)
            by_kind.append((int(right.sum()), int((~right).sum()), difference, squares))
        groups.append(tuple(by_kind))
    return groups


def prompt_noise(groups: Sequence[Group], scale: NDArray | float = 1.0) -> tuple[float, float]:
    """Returns ρ without bias, and the squared norm of the mean Δs over v. Each weight counts times `scale`."""
    right, wrong = (np.array([group[side] for group in groups], float) for side in (0, 1))
    differences = np.array([group[2] * scale for group in groups])
    variance = sum((group[3] * scale**2).sum() for group in groups) / (right + wrong - 2).sum()
    own, number = (differences**2).sum(1), len(groups)
    common = ((differences.sum(0) ** 2).sum() - own.sum()) / (number * (number - 1))
    within = variance * (1 / right + 1 / wrong)
    return float(((own - within).mean() - common) / variance), float(common / variance)


def main(prompts: str = "64", size: str = "16", *words: str) -> None:
    model, scored = scored_groups(words, int(prompts), int(size))
    whole, inputs = map(list, zip(*speaking(model, scored), strict=True))
    square = np.mean([(group[2] * group[0] * group[1]) ** 2 for group in whole], axis=0)
    divisor = np.sqrt(square) + LEAST_DIVISOR * np.sqrt(square.mean())
    print(f"{len(whole)} of {len(scored)} groups speak, {sum(map(torch.numel, model.parameters())):,} weights")
    draw = np.random.default_rng(0)
    for name, groups, scale in (
        ("all weights", whole, 1.0),
        ("all weights, as Adam sees them", whole, 1 / divisor),
        ("inputs of the head", inputs, 1.0),
    ):
        value, signal = prompt_noise(groups, scale)
        chosen = (draw.choice(len(groups), FEW, replace=False) for _ in range(REPEATS))
        few = [prompt_noise([groups[index] for index in of_few], scale)[0] for of_few in chosen]
        print(f"{name:32} ρ {value:.3f}, signal {signal:.4f}, ρ from {FEW} groups ± {np.std(few):.3f}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
