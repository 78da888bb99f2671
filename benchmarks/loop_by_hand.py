"""This script trains the tiny model by a loop that is written out, for experiments that no configuration key has.

    python benchmarks/loop_by_hand.py [STEPS]       (40 steps: a minute on one core; from 38 to 60 % right)

It uses the parts of grpo and nothing of `grpo.run`, which puts the same parts together for `grpo train`. Copy it, and
change what your idea changes. The parts keep their promises: token weights are final before the first backward pass,
each completion has a seed of its own, and the sampler's weights are compared with the learner's after each step.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from grpo.host import environment
from grpo.interfaces import Draw

# torch, transformers and DeepSpeed read the environment when they are imported.
environment.prepare()

import torch

from grpo.algorithm.batches import BatchMaker
from grpo.config import TrainConfig
from grpo.config.hydra import compose_config
from grpo.config.parts import LearnerSettings, SamplerSettings
from grpo.learner.engine import init_distributed
from grpo.learner.learner import DeepSpeedLearner
from grpo.models.files import ModelFiles
from grpo.models.resolve import resolve
from grpo.rollout.transformers_sampler import PADDED, TransformersSampler
from grpo.tasks.curriculum import Grouping
from grpo.tasks.problem_selection import split
from grpo.tasks.prompt_encoding import filled
from grpo.tasks.task import LoadedTask, VerifiableTask, build_task, loaded_task
from grpo.tasks.usable import usable_problems
from grpo.types import RoundPlan, ScoredGroup
from grpo.weight_sync.refresh import FLOAT32_MISMATCH, CheckedSync

# Any key works here, and `normalization=dr_grpo` or an objective of your own by its import path.
WORDS = ["experiment=tiny", "rollout=transformers", "normalization=dr_grpo", "objective=dr_grpo"]
DEVICE = torch.device("cpu")


def model_files(config: TrainConfig) -> ModelFiles:
    """Builds the tiny model, which learns the form of an answer from the task's own problems, or finds another one."""
    problems, _ = split(usable_problems(config.task), config.task.data.held_out_fraction)
    examples = [(filled(config.task.prompt.template, problem), problem.answer) for problem in problems]
    return ModelFiles(resolve(config.model, lambda: examples))


def the_task(config: TrainConfig, loaded: LoadedTask, tokenizer: object) -> VerifiableTask:
    """Builds what gives prompts and grades completions. Its graders are processes, so it is closed at the end."""
    grouping = Grouping(config.dynamics.group_size, *config.normalization.dials)
    longest = config.rollout.sampling.max_tokens
    return build_task(loaded, tokenizer, seed=config.seed, max_tokens=longest, grouping=grouping)


def train(num_steps: int) -> Iterator[float]:
    """Trains the tiny model, and yields the share of right completions of each step."""
    config = compose_config(WORDS)
    files = model_files(config)
    tokenizer = files.tokenizer
    init_distributed(DEVICE, 600)
    learner = DeepSpeedLearner(LearnerSettings.of(config), files, DEVICE)
    sampler = TransformersSampler(SamplerSettings.of(config), files, DEVICE, PADDED)
    make_batches = BatchMaker(config.normalization, config.objective, config.learner, learner.collective)
    sync = CheckedSync(FLOAT32_MISMATCH, float32=True, by_vllm=False)
    sync.refresh(learner, sampler)
    plan = RoundPlan(config.dynamics.group_size, 1, config.dynamics.prompts_per_step)
    with the_task(config, loaded_task(config.task, tokenizer), tokenizer) as task:
        for _ in range(num_steps):
            # Sample: G completions of each prompt, with log-probabilities of every token.
            groups = sampler.generate(Draw(task.next_prompts(plan.prompts_per_step), plan.group_size))
            # Grade: a reward for each completion. Rewards of your own may be put into the groups here.
            scored: list[ScoredGroup] = task.grade(groups)
            # Learn: advantages, token weights and packed rows; then one optimizer step.
            [batch] = make_batches(learner.add_logprobs([scored]), plan)
            report = learner.step(batch)
            # Compare: the log-probabilities of sampler and learner on the same tokens.
            sync.check(report)
            # Refresh: the sampler goes on from the new policy. Checksums of both sides are compared.
            sync.refresh(learner, sampler)
            rewards = [reward for group in scored for reward in group.rewards]
            yield sum(rewards) / len(rewards)


def main(steps: str = "40") -> None:
    for step, share in enumerate(train(int(steps)), 1):
        print(f"step {step:3d}  right {share:.0%}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
