"""The loop: one round is a paragraph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from grpo.interfaces import Clock, Collective, Collector, Learner, Sampler, Scheduler, Task, WeightSync
from grpo.measure import measure_round
from grpo.types import Batch, Collected, EvaluatedGroup, Progress, RoundPlan, RoundStatistics

MakeBatches = Callable[[Sequence[EvaluatedGroup], RoundPlan], list[Batch]]


@dataclass(frozen=True, slots=True)
class Engines:
    """Everything that a run is made of, put together in `grpo.run.session`."""

    task: Task
    sampler: Sampler
    collector: Collector
    learner: Learner
    make_batches: MakeBatches
    weight_sync: WeightSync
    scheduler: Scheduler
    collective: Collective
    clock: Clock


class Observer(Protocol):
    """Called on every rank after every round, in the order given. Some only look on (logs, evaluations, checkpoints);
    a `Rewinder` takes learner and sampler back, and `Feedback` tells the task what was answered."""

    def after_round(self, statistics: RoundStatistics, collected: Collected, progress: Progress) -> None:
        """`progress` is where a resumed run would go on."""


def run(
    engines: Engines,
    progress: Progress,
    num_steps: int,
    observers: Sequence[Observer],
    stop_requested: Callable[[], bool],
) -> Progress:
    """Rounds until `num_steps` optimizer steps are taken, the plan says stop, or a stop is requested on any rank."""
    while progress.step < num_steps and not progress.plan.stop and not engines.collective.maximum(stop_requested()):
        left = num_steps - progress.step
        plan = replace(progress.plan, refresh_interval=min(progress.plan.refresh_interval, left))
        statistics, collected = one_round(engines, plan, progress.round_index, left)
        next_plan, state = engines.scheduler.next(progress.plan, statistics, progress.scheduler)
        progress = Progress(progress.round_index + 1, statistics.step, collected.cursor, next_plan, state)
        for observer in observers:
            observer.after_round(statistics, collected, progress)
    return progress


def one_round(
    engines: Engines, plan: RoundPlan, round_index: int, steps_left: int
) -> tuple[RoundStatistics, Collected]:
    """Sample, grade, learn for τ steps, refresh the sampler, measure. Sampled ahead, a round has the plan that was
    known then."""
    engines.clock.begin_round()
    collected = engines.collector.collect(plan, steps_left)
    evaluated = engines.learner.evaluate(collected.groups, collected.plan)
    batches = engines.make_batches(evaluated, collected.plan)
    reports = [engines.learner.step(batch) for batch in batches]
    engines.weight_sync.check(reports[0])
    engines.weight_sync.refresh(engines.learner, engines.sampler)
    seconds = engines.clock.end_round()
    return measure_round(round_index, collected, reports, seconds, engines.collective), collected
