"""This script shows where an optimizer step's time goes: one real step of the quickstart's learner.

    python benchmarks/profile_step.py [CHUNK]

Six prompts with eight completions of 18 random tokens each; prints two timed steps, torch's profile of a third, and
the peak memory. CHUNK is `learner.logit_chunk_tokens` (512).
"""

import random
import sys
import time

from grpo.host import environment
from grpo.run.preparing import with_precision

environment.prepare()

import torch
from torch.profiler import ProfilerActivity, profile

from grpo.algorithm.batches import BatchMaker
from grpo.config.hydra import compose_config
from grpo.config.parts import LearnerSettings
from grpo.host import ranks
from grpo.learner.engine import init_distributed
from grpo.learner.learner import DeepSpeedLearner
from grpo.models.files import ModelFiles
from grpo.models.resolve import resolve
from grpo.telemetry.hardware import peak_memory
from grpo.types import Batch, Completion, Grade, Problem, Prompt, RolloutGroup, RoundPlan, ScoredGroup

GROUPS, GROUP_SIZE, PROMPT_TOKENS, COMPLETION_TOKENS = SIZES = 6, 8, 22, 18


def made_up_groups(groups: int, size: int, prompt_tokens: int, completion_tokens: int) -> list[ScoredGroup]:
    draw = random.Random(0)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(draw.randrange(3, 49_000) for _ in range(count))

    made = []
    for index in range(groups):
        prompt = Prompt(Problem(f"p{index}", "", ""), tokens(prompt_tokens))
        logprobs = (-5.0,) * completion_tokens
        completions = tuple(Completion(tokens(completion_tokens), logprobs, "", False) for _ in range(size))
        grades = tuple(Grade(float(place % 2), place % 2 == 1, {}) for place in range(size))
        made.append(ScoredGroup(RolloutGroup(prompt, completions, 0, 0), grades, (True,) * size))
    return made


def timed(learner: DeepSpeedLearner, batch: Batch) -> None:
    wall, processor = time.perf_counter(), time.process_time()
    learner.step(batch)
    print(f"step: {time.perf_counter() - wall:.1f} s, {time.process_time() - processor:.1f} s of processor time")


def main(chunk: str = "512") -> None:
    overrides = ["experiment=quickstart", f"learner.logit_chunk_tokens={chunk}"]
    config = with_precision(compose_config(overrides))
    device = ranks.device(config.device)
    init_distributed(device, 600)
    learner = DeepSpeedLearner(LearnerSettings.of(config), ModelFiles(resolve(config.model, list)), device)
    plan = RoundPlan(GROUP_SIZE, 1, GROUPS)
    make = BatchMaker(config.normalization, config.objective, config.learner, learner.collective)
    [batch] = make(learner.add_logprobs([made_up_groups(*SIZES)]), plan)
    for _ in range(3):
        timed(learner, batch)
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
    with profile(activities=activities) as profiled:
        learner.step(batch)
    print(profiled.key_averages().table(sort_by="self_cpu_time_total", row_limit=20, max_name_column_width=50))
    print(peak_memory())


if __name__ == "__main__":
    main(*sys.argv[1:])
