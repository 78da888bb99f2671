"""This module adapts the coefficient of the entropy bonus, so that the policy's entropy does not fall below a target.

The rule is that of Skywork-OR1 (arXiv:2505.22312): the coefficient c grows by Δ while the entropy is at most the target
and shrinks by Δ above it, and the bonus is applied in the first case only. TRL 1.16 has the same rule once a step; here
it acts once a round, on the mean entropy of the round's tokens over all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic

from grpo.types import Decision, RoundPlan, RoundStatistics, State, Verdict

if TYPE_CHECKING:
    from grpo.interfaces import Scheduler

LARGEST = 1.0
"""The coefficient never grows above this."""


class EntropyControl(Generic[State]):
    """This scheduler wraps another scheduler, and adapts the entropy bonus in the plans of that scheduler.

    It has no state of its own, since the coefficient is part of the plan. After a round that learned from no token the
    bonus is unchanged.
    """

    def __init__(self, scheduler: Scheduler[State], target: float, step: float):
        """`target` is in nats per token. The coefficient moves by `step` after each round."""
        self._scheduler, self._target, self._step = scheduler, target, step

    def init(self) -> tuple[RoundPlan, State]:
        return self._scheduler.init()

    def next(self, plan: RoundPlan, statistics: RoundStatistics, state: State) -> Decision[State]:
        decision = self._scheduler.next(plan, statistics, state)
        entropy = statistics.means.get("policy/entropy")
        if entropy is None or not entropy.count:
            return decision
        return replace(decision, plan=self.adapted(decision.plan, entropy.value))

    def adapted(self, plan: RoundPlan, entropy: float) -> RoundPlan:
        """Returns the plan with its entropy bonus adapted to a round's entropy, in nats per token."""
        low = entropy <= self._target
        coefficient = (plan.entropy_coefficient or 0.0) + (self._step if low else -self._step)
        return replace(plan, entropy_coefficient=min(max(coefficient, 0.0), LARGEST), entropy_bonus=low)

    def judge(self, step: int, state: State) -> Verdict:
        return self._scheduler.judge(step, state)

    def restore(self, values: Mapping[str, Any]) -> State:
        return self._scheduler.restore(values)
