"""How sampling and learning overlap: `pipeline=off | one_round | continuous`. The loop is the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from grpo.config import TrainConfig
from grpo.dynamics.budget import further_tries
from grpo.interfaces import Collective, Collector, Learner, Sampler, Task
from grpo.rollout.ahead import AheadCollector
from grpo.rollout.collect import BudgetedCollector, PlainCollector, RefillingCollector
from grpo.rollout.source import Asking, AskingAhead
from grpo.telemetry import Phases
from grpo.weight_sync.refresh import CheckedSync


def build_pipeline(
    config: TrainConfig, task: Task, sampler: Sampler, collective: Collective, phases: Phases
) -> tuple[Collector, CheckedSync]:
    """What fills a round, and what refreshes the sampler after it; `phases` times both."""
    # What was sampled ahead is of an older policy by design: only the checksums tell a transfer that failed.
    sync = CheckedSync(config.weight_sync.max_mismatch if config.pipeline == "off" else math.inf)
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
