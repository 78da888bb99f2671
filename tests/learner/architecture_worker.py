"""This program takes one optimizer step of the real learner for several kinds of models. test_architectures.py runs it
by torchrun.

Usage: architecture_worker.py MODELS_DIRECTORY OUTPUT_FILE. Rank 0 writes, per case, the change of all weights.
"""

import sys
from pathlib import Path

import torch

from grpo.host import environment

environment.prepare()

from dataclasses import replace

from grpo.algorithm.batches import BatchMaker
from grpo.config import UserError
from grpo.config.parts import LearnerSettings
from grpo.learner.engine import init_distributed
from grpo.learner.learner import DeepSpeedLearner
from grpo.types import RoundPlan
from tests.learner.groups import OBSERVED, uneven_groups
from tests.learner.models import files_of
from tests.learner.partition_worker import SCALE, config_for, weights

# (ZeRO stage, ranks that compute each row together, layout, gradient checkpointing)
CASES = (
    (1, 1, "shared", False),
    (2, 1, "packed", True),
    (3, 1, "shared", True),
    (1, 2, "shared", False),
    (3, 2, "packed", True),
)


def main(models: str, output: str) -> None:
    init_distributed(torch.device("cpu"), 300)
    changes = {}
    for model in sorted(Path(models).iterdir()):
        for stage, together, layout, checkpointing in CASES:
            config = config_for(stage, together)
            config.learner.layout, config.learner.gradient_checkpointing = layout, checkpointing
            config.learner.micro_batch_tokens, config.model.max_length = 50, 128
            case = f"{model.name}/{stage}/{together}"
            try:
                learner = DeepSpeedLearner(LearnerSettings.of(config), files_of(model), torch.device("cpu"))
            except UserError as error:
                changes[case] = str(error)
                continue
            rank, world = learner.collective.rank, learner.collective.world_size
            before = weights(learner)
            settings = replace(config.learner, layout=learner.layout)
            make = BatchMaker(config.normalization, config.objective, settings, learner.collective)
            [batch] = make([uneven_groups(OBSERVED)[rank::world]], RoundPlan(4, 1, 4))
            learner.step(batch)
            changes[case] = {name: (tensor - before[name]) / -SCALE for name, tensor in weights(learner).items()}
            learner.engine.destroy()
    if rank == 0:
        torch.save(changes, output)


if __name__ == "__main__":
    main(*sys.argv[1:])
