"""This program measures what optimizer steps gain, under every ZeRO stage. test_step_products.py runs it by torchrun.

Usage: products_worker.py MODEL_DIRECTORY OUTPUT_FILE. Rank 0 writes, per case, [gain, cosine, signal, gain along the
path] of each step as the learner measures them, and as this rank's weights and moments, summed over ranks in float64,
give them.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch

from grpo.host import environment

environment.prepare()

from grpo.algorithm.batches import BatchMaker
from grpo.config import TrainConfig
from grpo.config.parts import LearnerSettings
from grpo.learner.engine import init_distributed
from grpo.learner.learner import DeepSpeedLearner
from grpo.types import RoundPlan
from tests.learner.groups import uneven_groups
from tests.learner.models import files_of

NAMES = ("step/gain", "step/cosine", "step/signal", "path/gain")
FIRST_BETA = 0.9
# Each step learns from two of the uneven groups.
PAIRS = ((0, 2), (3, 0), (2, 3), (0, 3))


def config_for(stage: int, together: int, precision: str, rank: int) -> TrainConfig:
    config = TrainConfig()
    config.learner.zero_stage, config.learner.sequence_parallel = stage, together
    config.learner.precision = config.rollout.precision = precision
    # Clipping acts in every step.
    config.learner.learning_rate, config.learner.adam_epsilon, config.learner.max_gradient_norm = 1e-3, 1e-4, 0.01
    config.learner.weight_decay = 0.1
    config.objective.kl.coefficient = 0.0
    config.model.lora.rank = rank
    return config


def shards(learner: DeepSpeedLearner) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns this rank's weights and first moments, in float64."""
    states = learner.engine.optimizer.optimizer.state
    weights = torch.cat([key.detach().flatten().double() for key in states])
    return weights, torch.cat([state["exp_avg"].flatten().double() for state in states.values()])


def keep_first(optimizer, begun: dict[torch.Tensor, torch.Tensor]) -> None:
    """Copies the weights that a step begins with, unless an earlier step has copied them."""
    for weights in (weights for group in optimizer.param_groups for weights in group["params"]):
        if weights.grad is not None:
            begun.setdefault(weights, weights.detach().flatten().double().clone())


def measured(learner: DeepSpeedLearner, batch) -> list[float]:
    means = learner.step(batch).means
    return [means[name].value if means[name].count else 0.0 for name in NAMES]


def facts(learner: DeepSpeedLearner, batches) -> dict:
    found = {"measured": [], "expected": []}
    folder = learner.collective.gather(tempfile.mkdtemp())[0]
    change = mean = None
    begun: dict[torch.Tensor, torch.Tensor] = {}
    learner.engine.optimizer.optimizer.register_step_pre_hook(lambda optimizer, *_: keep_first(optimizer, begun))
    for step, batch in enumerate(batches):
        if step == len(PAIRS) - 1:
            learner.save(folder)
        before, moment = shards(learner) if step else (None, None)
        found["measured"].append(measured(learner, batch))
        after, moment_after = shards(learner)
        if step > 1:
            gradient = (moment_after - FIRST_BETA * moment) / (1 - FIRST_BETA)
            back = (torch.cat(list(begun.values())) - before) / step
            pairs = (-change, gradient), (change, change), (mean, gradient), (gradient, gradient), (back, gradient)
            sums = learner.collective.sum([float(a @ b) for a, b in pairs])
            norm = learner.engine.get_global_grad_norm()
            gain, along = (part * float(norm) / sums[3] ** 0.5 for part in (sums[0], sums[4]))
            found["expected"].append([gain, sums[0] / (sums[1] * sums[3]) ** 0.5, sums[2] / sums[3], along])
        if step:
            change, mean = after - before, moment_after / (1 - FIRST_BETA ** (step + 1))
    learner.load(folder)
    return found | {"resumed": measured(learner, batches[-1])}


def main(model: str, output: str) -> None:
    device = torch.device("cpu")
    init_distributed(device, 300)
    world = torch.distributed.get_world_size()
    cases = [(stage, together, "float32", 0) for stage in (1, 2, 3) for together in {1, world}]
    cases += [(stage, 1, "bfloat16", 0) for stage in (1, 3)] + [(2, 1, "float32", 2)]
    results, groups = {}, uneven_groups()
    for stage, together, precision, adapters in cases:
        config = config_for(stage, together, precision, adapters)
        learner = DeepSpeedLearner(LearnerSettings.of(config), files_of(model), device)
        rank = learner.collective.rank
        make = BatchMaker(config.normalization, config.objective, config.learner, learner.collective)
        batches = [make([[groups[index] for index in pair][rank::world]], RoundPlan(4, 1, 4))[0] for pair in PAIRS]
        name = f"stage {stage}, together {together}, {precision}" + (", adapters" if adapters else "")
        results[name] = facts(learner, batches)
    if rank == 0:
        Path(output).write_text(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
