"""This module decides how sampling and learning overlap: `pipeline=off | one_round | continuous`.

The loop is the same for all three; only the collector and the weight sync differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from grpo.algorithm.normalization import GROUP_RELATIVE, silent
from grpo.config import NormalizationConfig, TrainConfig
from grpo.config.errors import require
from grpo.dynamics.budget import further_tries
from grpo.interfaces import Collective, Collector, Learner, Sampler, Task, WeightSync
from grpo.rollout.ahead import AheadCollector
from grpo.rollout.collect import BudgetedCollector, PlainCollector, RefillingCollector
from grpo.rollout.grading_thread import GradingThread
from grpo.rollout.group_source import AheadSource, OnDemandSource, Source
from grpo.run.clocks import Beside, Clocks, Timed
from grpo.tasks.own_rewards import IN_TWO_TURNS, NO_ROUND
from grpo.types import ScoredGroup
from grpo.weight_sync.refresh import CheckedSync, Probe

# A probe of the sampler takes this many prompts per rank, and at most this many tokens per completion.
PROBED_PROMPTS, PROBED_TOKENS = 2, 16


def build_pipeline(
    config: TrainConfig, task: Task, sampler: Sampler, collective: Collective, clocks: Clocks
) -> tuple[Collector, WeightSync]:
    """Builds the collector, which collects a round's groups, and the weight sync, which refreshes the sampler. `clocks`
    times both."""
    thread_seconds = clocks.phases.take
    sync = clocks.weight_sync(CheckedSync.of(config, _probe(config, task, collective)))
    if config.pipeline == "off":
        grading = clocks.grading(GradingThread(task, collective=collective))
        return _build_collector(config, task, clocks.sampler(sampler), grading, collective), sync
    if config.pipeline == "one_round":
        apart = collective.apart(config.rollout.deadline_seconds)
        grading = clocks.grading(GradingThread(task, collective=apart))
        inner = _build_collector(config, task, clocks.sampler(sampler), grading, apart)
        collector = AheadCollector(Beside(inner, thread_seconds), task)
        sync = Timed(sync, refresh=partial(_settled, clocks.waited(collector.settle), sync.refresh))
    else:
        require(not task.grades_together, NO_ROUND)
        grading = GradingThread(clocks.task(task), thread_seconds)
        staleness = config.rollout.max_staleness
        ahead = AheadSource(task, clocks.asked(sampler), collective, staleness, grading, thread_seconds)
        collector = Beside(_filled(config, ahead, collective), ahead.take_seconds)
    return Timed(collector, collect=clocks.waited(collector.collect)), sync


def _probe(config: TrainConfig, task: Task, collective: Collective) -> Probe:
    """Builds the probe, which samples short completions of the stream's first prompts after a refresh.

    The log-probabilities of sampler and learner are compared on these completions before the first round. When rounds
    are sampled ahead, they are compared so after every refresh, since the round's own groups come from an older policy.
    """
    cursor = task.cursor
    prompts = task.next_prompts(PROBED_PROMPTS * collective.world_size)
    task.cursor = cursor
    sampling = config.rollout.sampling
    return Probe(prompts, replace(sampling, max_tokens=min(PROBED_TOKENS, sampling.max_tokens)), collective)


def _settled(
    settle: Callable[[], None], refresh: Callable[[Learner, Sampler], None], learner: Learner, sampler: Sampler
) -> None:
    """Waits until no sampling is under way, then refreshes the sampler."""
    settle()
    refresh(learner, sampler)


def _build_collector(
    config: TrainConfig, task: Task, sampler: Sampler, grading: GradingThread, collective: Collective
) -> Collector:
    """Builds the collector that the config asks for: plain, with silent groups refilled, or with a rollout budget."""
    budget = config.rollout.budget
    if budget.enabled:
        require(not task.grades_together, IN_TWO_TURNS)
        exponent, mean_exponent = config.normalization.dials
        spread = partial(further_tries, largest=budget.largest, exponent=exponent, mean_exponent=mean_exponent)
        return BudgetedCollector(task, sampler, grading, budget, collective, spread)
    return _filled(config, OnDemandSource(task, sampler, grading), collective)


def _filled(config: TrainConfig, source: Source, collective: Collective) -> Collector:
    """Builds a collector without a budget, which takes its groups from `source`."""
    refill = config.rollout.refill
    if not refill.enabled:
        return PlainCollector(source)
    return RefillingCollector(source, refill, collective, partial(_is_silent, config.normalization))


def _is_silent(normalization: NormalizationConfig, scored: ScoredGroup) -> bool:
    """Says whether nothing can be learned from a group. Under a normalization outside `GROUP_RELATIVE`, such as a
    user's own, these are just the groups with equal rewards, or with no completion that is learned from."""
    if scored.silent or not any(scored.included):
        return True
    rewards = torch.tensor(scored.rewards, dtype=torch.float64)
    return normalization.name in GROUP_RELATIVE and silent(rewards, scored.included, normalization)
