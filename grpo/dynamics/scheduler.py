"""Schedulers: what the next round's plan is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from grpo.types import RoundPlan, RoundStatistics

if TYPE_CHECKING:
    from grpo.config import DynamicsConfig


class FixedScheduler:
    """The configured group size and refresh interval, round after round."""

    def __init__(self, dynamics: DynamicsConfig):
        self._plan = RoundPlan(dynamics.group_size, dynamics.refresh_interval, dynamics.prompts_per_step)

    def init(self) -> tuple[RoundPlan, Mapping[str, Any]]:
        return self._plan, {}

    def next(
        self, plan: RoundPlan, statistics: RoundStatistics, state: Mapping[str, Any]
    ) -> tuple[RoundPlan, Mapping[str, Any]]:
        return plan, state


SCHEDULERS = {"fixed": FixedScheduler}
