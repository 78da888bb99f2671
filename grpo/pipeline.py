"""How sampling and learning overlap: `pipeline=off | one_round | continuous`. The loop is the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from grpo.config import TrainConfig
from grpo.dynamics.budget import further_tries
from grpo.interfaces import Collective, Collector, Learner, Sampler, Task
from grpo.rollout.ahead import AheadCollector
from grpo.rollout.collect import BudgetedCollector, PlainCollector, RefillingCollector
from grpo.rollout.source import Asking, AskingAhead
from grpo.telemetry import Phases
from grpo.weight_sync.refresh import CheckedSync, Probe

# Of one rank, after each refresh.
PROBED_PROMPTS, PROBED_TOKENS = 2, 16


def build_pipeline(
    config: TrainConfig, task: Task, sampler: Sampler, collective: Collective, phases: Phases
) -> tuple[Collector, CheckedSync]:
    """What fills a round, and what refreshes the sampler after it; `phases` times both."""
    probe = None if config.pipeline == "off" else _probe(config, task, collective)
    sync = CheckedSync(config.weight_sync.max_mismatch, probe)
    sync.refresh = phases.timed(
        "sync", sync.refresh, config.weight_sync.deadline_seconds, "weight_sync.deadline_seconds"
    )
    if config.pipeline == "off":
        return _build_collector(config, task, sampler, collective), sync
    deadline, key = config.rollout.deadline_seconds, "rollout.deadline_seconds"
    if config.pipeline == "one_round":
        collector = AheadCollector(_build_collector(config, task, sampler, collective.apart()), task)
        settle = phases.timed("wait", collector.settle, deadline, key)
        sync.refresh = partial(_settled, settle, sync.refresh)
    else:
        collector = _build_collector(config, task, sampler, collective)
    collector.collect = phases.timed("wait", collector.collect, deadline, key)
    return collector, sync


def _probe(config: TrainConfig, task: Task, collective: Collective) -> Probe:
    """A few short completions of the stream's first prompts: what was sampled ahead is of an older policy by design."""
    cursor = task.cursor
    prompts = task.next_prompts(PROBED_PROMPTS * collective.world_size)
    task.cursor = cursor
    sampling = config.rollout.sampling
    return Probe(prompts, replace(sampling, max_tokens=min(PROBED_TOKENS, sampling.max_tokens)), collective)


def _settled(
    settle: Callable[[], None], refresh: Callable[[Learner, Sampler], None], learner: Learner, sampler: Sampler
) -> None:
    """Weights change once nothing is being sampled."""
    settle()
    refresh(learner, sampler)


def _build_collector(config: TrainConfig, task: Task, sampler: Sampler, collective: Collective) -> Collector:
    """How rounds are filled: as asked, refilled, or spread by a budget."""
    refill, budget = config.rollout.refill, config.rollout.budget
    if budget.enabled:
        spread = partial(further_tries, largest=budget.largest, exponent=config.normalization.exponent)
        return BudgetedCollector(task, sampler, budget, collective, spread)
    if config.pipeline == "continuous":
        source = AskingAhead(task, sampler, collective, config.rollout.max_staleness)
    else:
        source = Asking(task, sampler)
    return RefillingCollector(source, refill, collective) if refill.enabled else PlainCollector(source)
