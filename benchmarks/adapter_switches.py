"""This script measures what LoRA with a KL term costs under ZeRO 3, where DeepSpeed records its order of modules anew.

Each round switches the adapters off for the reference and on for the step. After a switch, DeepSpeed's record of the
order in which weights are gathered does not fit any more. It drops it within the next pass and records it in the pass
after that. The script prints the processor seconds of each pass after a switch, and how often a record was dropped.

Usage: OMP_NUM_THREADS=1 torchrun --nproc-per-node=2 benchmarks/adapter_switches.py [EXPERIMENT]
"""

from __future__ import annotations

import os
import statistics
import sys
import time

import torch

from grpo.host import environment

environment.prepare()

from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator

from benchmarks.profile_step import made_up_groups
from grpo.algorithm.batches import BatchMaker
from grpo.config.hydra import compose_config
from grpo.config.parts import LearnerSettings
from grpo.learner.engine import init_distributed
from grpo.learner.learner import DeepSpeedLearner
from grpo.learner.reference import AdapterReference, reference_logprobs
from grpo.models.files import ModelFiles
from grpo.models.resolve import resolve
from grpo.types import RoundPlan

SWITCHES, PASSES = 6, 6
DROP = "_invalidate_trace"


def main(experiment: str = "quickstart") -> None:
    dropped = []
    drop = getattr(PartitionedParameterCoordinator, DROP)
    setattr(PartitionedParameterCoordinator, DROP, lambda self: (dropped.append(1), drop(self))[1])
    words = [f"experiment={experiment}", "model.lora.rank=8", "learner.zero_stage=3", "learner.precision=float32"]
    config = compose_config([*words, "objective.kl.coefficient=0.01"])
    device = torch.device("cpu")
    init_distributed(device, 600)
    learner = DeepSpeedLearner(LearnerSettings.of(config), ModelFiles(resolve(config.model, list)), device)
    first = learner.collective.rank == 0
    make = BatchMaker(config.normalization, config.objective, config.learner, learner.collective)
    [batch] = make(learner.add_logprobs([made_up_groups(2, 4, 22, 18)]), RoundPlan(4, 1, 2))
    reference, micro = AdapterReference(learner.policy), batch.micro_batches[0]
    by_pass: list[list[float]] = [[] for _ in range(PASSES)]
    for _ in range(SWITCHES):
        learner.step(batch)
        for seconds in by_pass:
            begun = time.process_time()
            reference_logprobs(reference, micro, 1.0)
            seconds.append(time.process_time() - begun)
    if first:
        print(f"{os.environ['WORLD_SIZE']} ranks, {experiment}: {len(dropped)} records dropped in {SWITCHES} rounds")
        for number, seconds in enumerate(by_pass, 1):
            spread = f"{min(seconds) * 1000:.0f} to {max(seconds) * 1000:.0f}"
            print(f"pass {number} after the switch: {statistics.median(seconds) * 1000:.0f} ms ({spread})")


if __name__ == "__main__":
    main(*sys.argv[1:])
