"""This program takes one optimizer step of the real learner in every partition. test_partition.py runs it by torchrun.

Usage: partition_worker.py MODEL_DIRECTORY OUTPUT_DIRECTORY. Rank 0 writes, per case, the change of all weights.
"""

import itertools
import json
import sys
import tempfile

import torch

from grpo.host import environment

environment.prepare()

from grpo.algorithm.batches import BatchMaker
from grpo.config import TrainConfig
from grpo.config.parts import LearnerSettings
from grpo.learner.engine import init_distributed
from grpo.learner.learner import DeepSpeedLearner
from grpo.types import RoundPlan
from tests.learner.groups import LEVELS, OBSERVED, uneven_groups
from tests.learner.models import files_of

# (stage, ranks that compute each row together): with two ranks also both together.
ALONE, TOGETHER = ((1, 1), (2, 1), (3, 1)), ((1, 2), (3, 2))
LAYOUTS = ("shared", "packed", "padded")
# Tokens per micro-batch: everything in one row, two or three rows, four or more.
BUDGETS = (10_000, 50, 25)
# Adam's first update is lr·g/(|g| + ε): with ε far above every gradient it is the gradient times lr/ε.
SCALE, EPSILON = 1e4, 1e6


def config_for(stage: int, together: int) -> TrainConfig:
    config = TrainConfig()
    config.learner.zero_stage, config.learner.sequence_parallel = stage, together
    config.learner.precision = config.rollout.precision = "float32"
    config.learner.learning_rate, config.learner.adam_epsilon = SCALE * EPSILON, EPSILON
    config.learner.max_gradient_norm = 0.0
    config.learner.logit_chunk_tokens = 7
    config.objective.kl.coefficient = 0.0
    return config


def weights(learner: DeepSpeedLearner) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for bucket in learner.weight_buckets() for name, tensor in bucket}


def resharded(learner: DeepSpeedLearner, config: TrainConfig, folder: str) -> dict[str, torch.Tensor]:
    """Returns all weights two steps after a checkpoint. A single rank takes a first step and saves the checkpoint;
    several ranks only load it."""
    # An epsilon well above rounding: otherwise the sign of a gradient that is nearly zero decides a whole step.
    config.learner.learning_rate, config.learner.adam_epsilon = 1e-3, 1e-4
    rank, world = learner.collective.rank, learner.collective.world_size
    make = BatchMaker(config.normalization, config.objective, config.learner, learner.collective)
    [batch] = make([uneven_groups(OBSERVED)[rank::world]], RoundPlan(4, 1, 4))
    if world == 1:
        learner.step(batch)
        learner.save(folder)
    else:
        learner.load(folder)
    for _ in range(2):
        steps = learner.step(batch).step
    return weights(learner) | {"steps": torch.tensor(float(steps))}


def differing(learner: DeepSpeedLearner) -> float:
    """Returns the largest difference between log-probabilities from ranks that compute rows together and from each
    alone."""
    groups = [group.scored.group for group in uneven_groups(OBSERVED)][
        learner.collective.rank :: learner.collective.world_size
    ]
    policy, together = learner.policy, learner.policy._together
    joint = learner._logprobs(groups, learner._current)
    policy._together, learner.collective._together = None, None
    alone = learner._logprobs(groups, learner._current)
    policy._together, learner.collective._together = together, together
    pairs = [(a, b) for x, y in zip(joint, alone, strict=True) for a, b in zip(x, y, strict=True)]
    return max((a - b).abs().max().item() for a, b in pairs)


def main(model: str, output: str) -> None:
    device = torch.device("cpu")
    init_distributed(device, 300)
    changes, micro_batches, logprobs = {}, {}, {}
    for stage, together in ALONE if torch.distributed.get_world_size() == 1 else ALONE + TOGETHER:
        config = config_for(stage, together)
        learner = DeepSpeedLearner(LearnerSettings.of(config), files_of(model), device)
        rank, world = learner.collective.rank, learner.collective.world_size
        folder = learner.collective.gather(tempfile.mkdtemp())[0]
        learner.save(folder)
        before = weights(learner)
        for layout, budget, level in itertools.product(LAYOUTS, BUDGETS, LEVELS):
            learner.load(folder)
            config.learner.layout, config.learner.micro_batch_tokens = layout, budget
            config.objective.aggregation.level, config.objective.aggregation.constant_length = level, 20
            groups = uneven_groups(OBSERVED)[rank::world]
            make = BatchMaker(config.normalization, config.objective, config.learner, learner.collective)
            [batch] = make([groups], RoundPlan(4, 1, 4))
            loss = learner.step(batch).means["policy/loss"].value
            case = f"{world}/{together}/{stage}/{layout}/{budget}/{level}"
            changes[case] = {name: (tensor - before[name]) / -SCALE for name, tensor in weights(learner).items()}
            changes[case]["loss"] = torch.tensor(loss, dtype=torch.float64)
            micro_batches[case] = len(batch.micro_batches)
        learner.load(folder)
        if together == 1:
            changes[f"{world}/{stage}"] = resharded(learner, config, f"{output}/stage-{stage}")
        else:
            logprobs[str(stage)] = differing(learner)
        learner.engine.destroy()
    for stage in (1, 3):
        config = config_for(stage, 1)
        config.model.lora.rank = 2
        learner = DeepSpeedLearner(LearnerSettings.of(config), files_of(model), device)
        changes[f"{world}/{stage}-lora"] = resharded(learner, config, f"{output}/stage-{stage}-lora")
        learner.engine.destroy()
    if rank == 0:
        torch.save(changes, f"{output}/changes-{world}.pt")
        with open(f"{output}/micro-batches-{world}.json", "w") as file:
            json.dump({"micro-batches": micro_batches, "logprobs": logprobs}, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
