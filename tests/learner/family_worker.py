"""This program takes one step of the real learner for every loss of the family, in several partitions.
test_family_partition.py runs it by torchrun.

Usage: family_worker.py MODEL_DIRECTORY OUTPUT_DIRECTORY. Rank 0 writes, per case, the change of all weights.
"""

import itertools
import sys
import tempfile
from dataclasses import replace

import torch

from grpo.host import environment

environment.prepare()

from grpo.algorithm.batches import BatchMaker
from grpo.config import (
    AggregationConfig,
    CorrectionConfig,
    KlConfig,
    NormalizationConfig,
    ObjectiveConfig,
    TokenSelectionConfig,
    TrainConfig,
)
from grpo.config.parts import LearnerSettings
from grpo.learner.engine import init_distributed
from grpo.learner.learner import DeepSpeedLearner
from grpo.types import Grade, RoundPlan
from tests.learner.groups import OBSERVED, uneven_groups
from tests.learner.models import files_of

# As in partition_worker: with ε far above every gradient, Adam's first update is the gradient times lr/ε.
SCALE, EPSILON = 1e4, 1e6
# (layout, tokens per micro-batch): one row, two or three rows, four or more.
CUTS = (("shared", 10_000), ("shared", 50), ("packed", 25))
WEIGHTS = {"right": 1.0, "form": 0.5}
CPU = torch.device("cpu")


def selecting(choice, **settings):
    return {"selection": TokenSelectionConfig(name=choice, low=0.02, share=0.2), **settings}


# Member → (settings of the objective, settings of the normalization).
MEMBERS = {
    "clip": ({}, {}),
    "cispo": ({"name": "cispo"}, {}),
    "sapo": ({"name": "sapo"}, {}),
    "dppo": ({"name": "dppo", "clip_low": 0.01, "clip_high": 0.01}, {}),
    "gmpo": ({"name": "gmpo"}, {}),
    "gspo": ({"ratio": "sequence"}, {}),
    "gspo_token": ({"ratio": "sequence_token"}, {}),
    "luspo": ({"ratio": "sequence", "aggregation": AggregationConfig(level="constant", constant_length=1)}, {}),
    "clip_cov": (selecting("clip_cov"), {}),
    "kl_cov": (selecting("kl_cov", name="unclipped"), {}),
    "top_entropy": (selecting("top_entropy"), {}),
    "kl_by_ratio": ({"kl": KlConfig(coefficient=0.1, by_ratio=True)}, {}),
    "entropy": ({"entropy_coefficient": 0.1}, {}),
    "own": ({"name": "tests.algorithm.own:soft_clip"}, {}),
    "own_aggregation": ({"aggregation": AggregationConfig(level="tests.algorithm.own:square_root")}, {}),
    "maxrl": ({}, {"exponent": 0.0, "mean_exponent": 1.0}),
    "pass_at_k": ({}, {"name": "pass_at_k"}),
    "gdpo": ({}, {"parts": "each"}),
    "reinforce_plus_plus": ({}, {"name": "reinforce_plus_plus"}),
    "batch_std": ({}, {"scope": "batch"}),
}


def groups_with_logprobs():
    """Returns uneven groups whose old and reference policies differ from the current one, and whose rewards have
    parts."""
    generator = torch.Generator().manual_seed(3)

    def near(logprobs, spread):
        values = torch.tensor(logprobs)
        return values + spread * (torch.rand(len(values), generator=generator) - 0.5)

    groups = []
    for group in uneven_groups(OBSERVED):
        scored = group.scored
        logprobs = [completion.sampler_logprobs for completion in scored.group.completions]
        old = tuple(near(values, 1.0) for values in logprobs)
        reference = tuple(near(values, 1.0) for values in logprobs)
        grades = tuple(
            Grade(grade.reward, grade.correct, {"right": grade.reward, "form": float(index % 2)})
            for index, grade in enumerate(scored.grades)
        )
        groups.append(
            replace(group, scored=replace(scored, grades=grades), old_logprobs=old, reference_logprobs=reference)
        )
    return groups


def config_for(together, precision):
    config = TrainConfig()
    config.learner.zero_stage, config.learner.sequence_parallel = 1, together
    config.learner.precision = config.rollout.precision = precision
    config.learner.learning_rate, config.learner.adam_epsilon = SCALE * EPSILON, EPSILON
    config.learner.max_gradient_norm = 0.0
    config.learner.logit_chunk_tokens = 7
    return config


def change(learner, config, folder, before):
    """Returns the scaled change of all weights by one step, on the second batch of a round."""
    learner.load(folder)
    rank, world = learner.collective.rank, learner.collective.world_size
    groups = groups_with_logprobs()[rank::world]
    make = BatchMaker(config.normalization, config.objective, config.learner, learner.collective, WEIGHTS)
    learner.step(make([groups, groups], RoundPlan(4, 2, 4))[1])
    return {name: (tensor - before[name]) / -SCALE for name, tensor in weights(learner).items()}


def weights(learner):
    return {name: tensor.clone() for bucket in learner.weight_buckets() for name, tensor in bucket}


def changes_of(model, together, precision, cuts, device=CPU):
    """Returns the change of all weights by one step for each member of the family and each cut into rows."""
    config = config_for(together, precision)
    learner = DeepSpeedLearner(LearnerSettings.of(config), files_of(model), device)
    folder = learner.collective.gather(tempfile.mkdtemp())[0]
    learner.save(folder)
    before, changes = weights(learner), {}
    for (member, (objective, normalization)), (layout, budget) in itertools.product(MEMBERS.items(), cuts):
        none = CorrectionConfig(level="none")
        config.objective = ObjectiveConfig(**({"correction": none, "clip_low": 0.1, "clip_high": 0.1} | objective))
        config.normalization = NormalizationConfig(**normalization)
        config.learner.layout, config.learner.micro_batch_tokens = layout, budget
        learner._settings = LearnerSettings.of(config)
        changes[member, layout, budget] = change(learner, config, folder, before)
    learner.engine.destroy()
    return changes


def main(model, output):
    init_distributed(torch.device("cpu"), 300)
    world, changes = torch.distributed.get_world_size(), {}
    for together in range(1, world + 1):
        for (member, layout, budget), change_ in changes_of(model, together, "float32", CUTS).items():
            changes[f"{member}/{world}/{together}/{layout}/{budget}"] = change_
    if world == 1:
        for (member, layout, budget), change_ in changes_of(model, 1, "bfloat16", (CUTS[0], CUTS[-1])).items():
            changes[f"bfloat16 {member}/{layout}/{budget}"] = change_
    if torch.distributed.get_rank() == 0:
        torch.save(changes, f"{output}/family-{world}.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
