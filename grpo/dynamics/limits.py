"""This module ends a run that reaches its limit of samples, tokens or seconds, whatever its scheduler decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic

from grpo.types import Decision, RoundPlan, RoundStatistics, State, Verdict
from grpo.types.plain import rebuilt
from grpo.types.rounds import ROUND

if TYPE_CHECKING:
    from grpo.interfaces import Scheduler


@dataclass(frozen=True, slots=True)
class LimitedState(Generic[State]):
    """The limited state holds the amounts that the run has spent, by unit, and the state of the wrapped scheduler."""

    spent: Mapping[str, float]
    inner: State


class LimitedScheduler(Generic[State]):
    """This scheduler decides as `scheduler` does until one of `limits` is reached, and then stops the run.

    `limits` maps a unit (samples, tokens, seconds) to the amount that the run may spend. Units without a limit are
    counted too, so that a limit set on resume includes what was spent before. Seconds are wall-clock seconds of rounds.
    """

    def __init__(self, scheduler: Scheduler[State], limits: Mapping[str, float]):
        self._scheduler = scheduler
        self._limits = limits

    def init(self) -> tuple[RoundPlan, LimitedState[State]]:
        plan, inner = self._scheduler.init()
        return plan, LimitedState({}, inner)

    def next(
        self, plan: RoundPlan, statistics: RoundStatistics, state: LimitedState[State]
    ) -> Decision[LimitedState[State]]:
        decision = self._scheduler.next(plan, statistics, state.inner)
        spent = {unit: state.spent.get(unit, 0.0) + amount for unit, amount in _spent_in(statistics).items()}
        return Decision(decision.plan, self._within(decision.verdict, spent), LimitedState(spent, decision.state))

    def judge(self, step: int, state: LimitedState[State]) -> Verdict:
        return self._within(self._scheduler.judge(step, state.inner), state.spent)

    def restore(self, values: Mapping[str, Any]) -> LimitedState[State]:
        # In checkpoints of older versions the fields of the inner state stand beside `spent`.
        inner = values.get("inner", {name: value for name, value in values.items() if name != "spent"})
        spent = rebuilt(Mapping[str, float], values.get("spent", {}), "scheduler.spent")
        return LimitedState(spent, self._scheduler.restore(rebuilt(Mapping[str, Any], inner or {}, "scheduler.inner")))

    def _within(self, verdict: Verdict, spent: Mapping[str, float]) -> Verdict:
        for unit, limit in self._limits.items():
            if spent.get(unit, 0.0) >= limit:
                verdict = replace(verdict, stop=True, reason=f"the limit of {limit:,.0f} {unit} is reached")
        return verdict


def _spent_in(statistics: RoundStatistics) -> dict[str, float]:
    """Returns the samples, completion tokens and seconds of one round, by unit."""
    length = statistics.means["completions/length_mean"]
    return {
        "samples": length.count,
        "tokens": length.total,
        "seconds": statistics.seconds[ROUND],
    }
