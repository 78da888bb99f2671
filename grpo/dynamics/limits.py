"""A run that ends when it has spent its samples, tokens or seconds, whatever its scheduler decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from grpo.interfaces import ROUND
from grpo.types import RoundPlan, RoundStatistics

if TYPE_CHECKING:
    from grpo.interfaces import Scheduler

SPENT = "spent"


class LimitedScheduler:
    """`scheduler`, until one of `limits` (samples, tokens, seconds → how many) is spent. What is spent is kept beside
    the scheduler's own state, so a resumed run counts on. Seconds are those of rounds, by the clock on the wall."""

    def __init__(self, scheduler: Scheduler, limits: Mapping[str, float]):
        self._scheduler = scheduler
        self._limits = limits

    def init(self) -> tuple[RoundPlan, Mapping[str, Any]]:
        plan, state = self._scheduler.init()
        return plan, {**state, SPENT: dict.fromkeys(self._limits, 0.0)}

    def next(
        self, plan: RoundPlan, statistics: RoundStatistics, state: Mapping[str, Any]
    ) -> tuple[RoundPlan, Mapping[str, Any]]:
        following, inner = self._scheduler.next(plan, statistics, state)
        before = state.get(SPENT, {})
        now = _of_round(statistics)
        spent = {name: before.get(name, 0.0) + now[name] for name in self._limits}
        return self._within(following, spent), {**inner, SPENT: spent}

    def resume(self, plan: RoundPlan, step: int, state: Mapping[str, Any]) -> RoundPlan:
        return self._within(self._scheduler.resume(plan, step, state), state.get(SPENT, {}))

    def _within(self, plan: RoundPlan, spent: Mapping[str, float]) -> RoundPlan:
        for name, limit in self._limits.items():
            if spent.get(name, 0.0) >= limit:
                plan = replace(plan, stop=True, reason=f"the budget of {limit:,.0f} {name} is spent")
        return plan


def _of_round(statistics: RoundStatistics) -> dict[str, float]:
    return {
        "samples": float(sum(size * groups for (_, size), groups in statistics.reward_counts.items())),
        "tokens": statistics.means["completions/length_mean"].total,
        "seconds": statistics.seconds[ROUND],
    }
