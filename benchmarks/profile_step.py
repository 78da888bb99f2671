"""This script shows where an optimizer step's time goes: one real step of the quickstart's learner.

    python benchmarks/profile_step.py [CHUNK] [EXPERIMENT]

Six prompts with eight completions of 18 random tokens each; prints ten timed steps, of which each says how much of it
the products took that measure what a step gained, torch's profile of one more, and the peak memory. CHUNK is
`learner.logit_chunk_tokens` (512), and EXPERIMENT may be tiny.
"""

import random
import sys
import time
from typing import Any

from grpo.host import environment
from grpo.run.preparing import with_precision

environment.prepare()

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from grpo.algorithm.batches import BatchMaker
from grpo.config.hydra import compose_config
from grpo.config.parts import LearnerSettings
from grpo.host import ranks
from grpo.learner import learner as learner_module
from grpo.learner.engine import init_distributed
from grpo.learner.learner import DeepSpeedLearner
from grpo.learner.step_products import StepProducts
from grpo.models.files import ModelFiles
from grpo.models.resolve import resolve
from grpo.telemetry.hardware import peak_memory
from grpo.types import Batch, Completion, Grade, Problem, Prompt, RolloutGroup, RoundPlan, ScoredGroup

GROUPS, GROUP_SIZE, PROMPT_TOKENS, COMPLETION_TOKENS = SIZES = 6, 8, 22, 18


class TimedProducts(StepProducts):
    """These products count the processor seconds that they take."""

    seconds = 0.0

    def _measure(self, *arguments: Any) -> None:
        begin = time.process_time()
        super()._measure(*arguments)
        TimedProducts.seconds += time.process_time() - begin

    def take(self, *arguments: Any) -> Tensor:
        begin = time.process_time()
        taken = super().take(*arguments)
        TimedProducts.seconds += time.process_time() - begin
        return taken


def made_up_groups(
    groups: int, size: int, prompt_tokens: int, completion_tokens: int, words: int = 49_000
) -> list[ScoredGroup]:
    draw = random.Random(0)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(draw.randrange(3, words) for _ in range(count))

    made = []
    for index in range(groups):
        prompt = Prompt(Problem(f"p{index}", "", ""), tokens(prompt_tokens))
        logprobs = (-5.0,) * completion_tokens
        completions = tuple(Completion(tokens(completion_tokens), logprobs, "", False) for _ in range(size))
        grades = tuple(Grade(float(place % 2), place % 2 == 1, {}) for place in range(size))
        made.append(ScoredGroup(RolloutGroup(prompt, completions, 0, 0), grades, (True,) * size))
    return made


def timed(learner: DeepSpeedLearner, batch: Batch) -> None:
    wall, processor, products = time.perf_counter(), time.process_time(), TimedProducts.seconds
    learner.step(batch)
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    share = (TimedProducts.seconds - products) / processor
    print(f"step: {wall:.3f} s, {processor:.3f} s of processor time, {share:.2%} of it for products")


def main(chunk: str = "512", experiment: str = "quickstart") -> None:
    overrides = [f"experiment={experiment}", f"learner.logit_chunk_tokens={chunk}"]
    learner_module.StepProducts = TimedProducts
    config = with_precision(compose_config(overrides))
    device = ranks.device(config.device)
    init_distributed(device, 600)
    questions = [(f"{number} + 1 =", str(number + 1)) for number in range(30)]
    files = ModelFiles(resolve(config.model, lambda: questions))
    learner = DeepSpeedLearner(LearnerSettings.of(config), files, device)
    words = 49_000 if experiment == "quickstart" else 90
    plan = RoundPlan(GROUP_SIZE, 1, GROUPS)
    make = BatchMaker(config.normalization, config.objective, config.learner, learner.collective)
    [batch] = make(learner.add_logprobs([made_up_groups(*SIZES, words)]), plan)
    for _ in range(10):
        timed(learner, batch)
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
    with profile(activities=activities) as profiled:
        learner.step(batch)
    print(profiled.key_averages().table(sort_by="self_cpu_time_total", row_limit=20, max_name_column_width=50))
    print(peak_memory())


if __name__ == "__main__":
    main(*sys.argv[1:])
