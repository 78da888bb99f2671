"""This module runs the rounds of a training run. `one_round` shows the whole algorithm, one line for each stage."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from grpo.interfaces import Clock, Collective, Collector, Learner, Sampler, Scheduler, Task, WeightSync
from grpo.measure import mean_lengths, measure_round, outcomes
from grpo.types import (
    Batch,
    Collected,
    FinishedRound,
    GroupWithLogprobs,
    Progress,
    RoundPlan,
    RoundStatistics,
    StepReport,
    Verdict,
)

MakeBatches = Callable[[Sequence[Sequence[GroupWithLogprobs]], RoundPlan], list[Batch]]


@dataclass(frozen=True, slots=True)
class LoopParts:
    """These are all parts that the loop calls. `grpo.run.assembly` puts them together.

    `checkpoint_up_to(step)` returns the newest undamaged checkpoint that is not later than `step`, or None.
    `go_back(checkpoint)` returns learner and sampler to it.
    """

    task: Task
    sampler: Sampler
    collector: Collector
    learner: Learner
    make_batches: MakeBatches
    weight_sync: WeightSync
    scheduler: Scheduler
    checkpoint_up_to: Callable[[int], Path | None]
    go_back: Callable[[Path], None]
    collective: Collective
    clock: Clock


class Observer(Protocol):
    """An observer logs, evaluates or saves after each round, and is called on every rank."""

    def after_round(self, finished: FinishedRound) -> None:
        """Handles a finished round. `Loop` says which observer is called before a return to a checkpoint."""


class Loop:
    """The loop runs rounds one after another. `progress` and `verdict` always belong to the last finished round."""

    def __init__(
        self, parts: LoopParts, progress: Progress, verdict: Verdict, record: Observer, observers: Sequence[Observer]
    ):
        """Takes two kinds of observers. `record` is called right after each round, before a possible return to an
        earlier checkpoint. `observers` are called after that return, in order."""
        self._parts = parts
        self.progress, self.verdict = progress, verdict
        self._record, self._observers = record, observers

    def run(
        self, num_steps: int, stop_requested: Callable[[], bool], urgent: Callable[[], bool] = lambda: False
    ) -> None:
        """Runs rounds. Returns after `num_steps` optimizer steps, on a verdict to stop, or when any rank was asked to
        stop. Where that is `urgent`, the round ends after the present optimizer step. Only `record` is called then."""
        collective = self._parts.collective
        while self.progress.step < num_steps and not self.verdict.stop and not collective.maximum(stop_requested()):
            self._run_round(num_steps - self.progress.step, urgent)

    def _run_round(self, steps_left: int, urgent: Callable[[], bool]) -> None:
        parts, before = self._parts, self.progress
        plan = replace(before.plan, refresh_interval=min(before.plan.refresh_interval, steps_left))
        measured = one_round(parts, plan, before.round_index, steps_left, urgent)
        if measured is None:
            return
        statistics, collected = measured
        parts.task.record_outcomes(outcomes(collected, parts.collective), collected.cursor)
        parts.task.record_lengths(mean_lengths(collected, parts.collective))
        # The scheduler goes on from the plan that it chose, also where the run's end has cut the round short.
        decision = parts.scheduler.next(before.plan, statistics, before.scheduler)
        self.verdict, checkpoint = self._with_way_back(decision.verdict)
        self.progress = Progress(
            before.round_index + 1, statistics.step, collected.cursor, decision.plan, decision.state
        )
        finished = FinishedRound(statistics, collected, self.progress, self.verdict)
        self._record.after_round(finished)
        if checkpoint:
            parts.go_back(checkpoint)
        for observer in () if parts.collective.maximum(urgent()) else self._observers:
            observer.after_round(finished)

    def _with_way_back(self, verdict: Verdict) -> tuple[Verdict, Path | None]:
        """Returns the verdict, and the checkpoint to which it goes back. Without such a checkpoint the verdict says so
        and keeps the present policy. Collective."""
        checkpoint = self._parts.checkpoint_up_to(verdict.good_step) if verdict.go_back else None
        if verdict.go_back and checkpoint is None:
            # This happens only if the run was resumed and had kept no such checkpoint, or if all are damaged.
            reason = f"{verdict.reason}: there is no checkpoint up to step {verdict.good_step}, so the policy stays"
            return replace(verdict, go_back=False, reason=reason), None
        return verdict, checkpoint


def one_round(
    parts: LoopParts, plan: RoundPlan, round_index: int, steps_left: int, urgent: Callable[[], bool]
) -> tuple[RoundStatistics, Collected] | None:
    """Samples, grades, learns for τ optimizer steps, refreshes the sampler, and measures the round.

    A round that was sampled ahead keeps the plan under which it was sampled, which may be older than `plan`. An urgent
    request to stop ends the round between two steps, without a refresh. Returns None where it came before the first.
    """
    parts.clock.begin_round()
    collected = parts.collector.collect(plan, steps_left)
    steps = parts.learner.add_logprobs(collected.steps)
    batches = parts.make_batches(steps, collected.plan)
    reports = optimizer_steps(parts, batches, urgent)
    if not reports:
        return None
    parts.weight_sync.check(reports[0])
    if len(reports) == len(batches):
        parts.weight_sync.refresh(parts.learner, parts.sampler)
    seconds = parts.clock.end_round()
    return measure_round(round_index, collected, reports, seconds, parts.collective), collected


def optimizer_steps(parts: LoopParts, batches: Sequence[Batch], urgent: Callable[[], bool]) -> list[StepReport]:
    """Takes the optimizer steps of a round, or fewer where any rank has to save at once. Collective."""
    reports: list[StepReport] = []
    for batch in batches:
        if parts.collective.maximum(urgent()):
            break
        reports.append(parts.learner.step(batch))
    return reports
