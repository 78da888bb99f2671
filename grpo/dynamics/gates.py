"""This module keeps a run within its gates: bounds of metrics, and what happens beyond them.

A gate of `gates` breaks when its metric was beyond the bound in `rounds` rounds in a row that have the metric. Then the
run stops, or goes back to the newest checkpoint of a policy that was within all gates, or goes on with a model that
`grpo export` refuses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic

from grpo.types import Decision, RoundPlan, RoundStatistics, State, Verdict
from grpo.types.plain import rebuilt

if TYPE_CHECKING:
    from grpo.config import GateConfig
    from grpo.interfaces import Scheduler

Numbers = Callable[[RoundStatistics], Mapping[str, float]]
"""A function of this type returns the metrics of a round, and those of an evaluation of the policy at its beginning."""

MOST_RETURNS = 3
"""A run that breaks a gate again after this many returns stops."""


@dataclass(frozen=True, slots=True)
class Watched:
    """These are what gates remember between rounds: the first value of each metric, and in how many rounds in a row
    each bound, by its name, was crossed."""

    firsts: Mapping[str, float] = field(default_factory=dict)
    beyond: Mapping[str, int] = field(default_factory=dict)


def watched(
    gates: Sequence[GateConfig], before: Watched, numbers: Mapping[str, float]
) -> tuple[list[tuple[GateConfig, str]], Watched]:
    """Watches the numbers of a round. Returns each gate that breaks with them, with the reason, and what to remember.

    A gate breaks once, and again only after its metric has been within the bound.
    """
    firsts, beyond, broken = {**numbers, **before.firsts}, dict(before.beyond), []
    for gate in gates:
        if gate.metric not in numbers:
            continue
        value = numbers[gate.metric] - (firsts[gate.metric] if gate.from_start else 0.0)
        reason, name = beyond_bound(gate, value), bound_of(gate)
        beyond[name] = before.beyond.get(name, 0) + 1 if reason else 0
        if beyond[name] == gate.rounds:
            broken.append((gate, reason))
    metrics = {gate.metric for gate in gates}
    return broken, Watched({name: value for name, value in firsts.items() if name in metrics}, beyond)


def bound_of(gate: GateConfig) -> str:
    """Names a gate by its bound and rounds. A resumed run may have other gates before it."""
    since = " since the start" * gate.from_start
    return f"{gate.metric} below {gate.below} above {gate.above}{since}, {gate.rounds} rounds"


def beyond_bound(gate: GateConfig, value: float) -> str:
    """Says how a value is beyond a gate's bound, or returns "".

    A value may be below one bound and above another. One that touches a bound is within: .5 is .52 − .02.

    >>> from grpo.config import GateConfig
    >>> beyond_bound(GateConfig(metric="pass_rate", below=0.2, above=0.9), 0.1)
    'pass_rate is 0.1, below 0.2'
    """
    name = f"{gate.metric} since the start" if gate.from_start else gate.metric
    below, above = gate.below, gate.above
    if below is not None and value < below and not math.isclose(value, below, rel_tol=1e-9, abs_tol=1e-12):
        return f"{name} is {value:.3g}, below {gate.below:g}"
    if above is not None and value > above and not math.isclose(value, above, rel_tol=1e-9, abs_tol=1e-12):
        return f"{name} is {value:.3g}, above {gate.above:g}"
    return ""


@dataclass(frozen=True, slots=True)
class GatedState(Generic[State]):
    """The state holds what gates remember, the steps of the last policy that was within all of them, how often the run
    went back, and the state of the scheduler within."""

    gates: Watched
    good_step: int
    returns: int
    inner: State


class GatedScheduler(Generic[State]):
    """This scheduler decides as another one does until a gate breaks."""

    def __init__(self, scheduler: Scheduler[State], gates: Sequence[GateConfig], numbers: Numbers):
        self._scheduler, self._gates, self._numbers = scheduler, gates, numbers

    def init(self) -> tuple[RoundPlan, GatedState[State]]:
        plan, inner = self._scheduler.init()
        return plan, GatedState(Watched(), 0, 0, inner)

    def next(
        self, plan: RoundPlan, statistics: RoundStatistics, state: GatedState[State]
    ) -> Decision[GatedState[State]]:
        decision = self._scheduler.next(plan, statistics, state.inner)
        broken, gates = watched(self._gates, state.gates, self._numbers(statistics))
        within = not any(gates.beyond.values())
        # The round's numbers are those of the policy that sampled it.
        good_step = statistics.sampled_at if within else state.good_step
        verdict, returns = self._verdict(decision.verdict, broken, good_step, state.returns)
        inner = decision.state
        if verdict.go_back:
            # The policy that the run goes back to is measured anew.
            gates = replace(gates, beyond={})
        if verdict.go_back and not decision.verdict.go_back:
            # The scheduler begins anew too, since its memory, such as a best pass rate, is of the abandoned policy.
            inner = self._scheduler.restore({})
        return Decision(decision.plan, verdict, GatedState(gates, good_step, returns, inner))

    def _verdict(
        self, verdict: Verdict, broken: Sequence[tuple[GateConfig, str]], good_step: int, returns: int
    ) -> tuple[Verdict, int]:
        # The checkpoint of the last policy within the gates is kept, unless the scheduler itself goes back to one.
        if any(gate.then == "back" for gate in self._gates) and not verdict.go_back:
            verdict = replace(verdict, good_step=good_step)
        # The scheduler's own reason to stop or to go back is kept.
        own = [verdict.reason] if verdict.stop or verdict.go_back else []
        spent, reasons = returns >= MOST_RETURNS and not verdict.go_back, []
        # A gate that stops the run does so whatever else is broken.
        ends = any(gate.then == "stop" or (gate.then == "back" and spent) for gate, _ in broken)
        for gate, reason in broken:
            if gate.then == "refuse_export":
                reasons.append(f"{reason}: grpo export refuses this model")
            elif ends:
                reasons.append(f"{reason}{f' after {returns} returns' if gate.then == 'back' and spent else ''}: stop")
            elif verdict.go_back:
                reasons.append(reason)
            else:
                returns += 1
                reasons.append(f"{reason}, back to step {good_step} ({returns} of {MOST_RETURNS} times)")
                verdict = replace(verdict, go_back=True, good_step=good_step)
        if reasons:
            verdict = replace(verdict, reason="; ".join([*own, f"a gate is broken: {'; '.join(reasons)}"]))
        return (replace(verdict, stop=True, go_back=False, good_step=good_step) if ends else verdict), returns

    def judge(self, step: int, state: GatedState[State]) -> Verdict:
        return self._scheduler.judge(step, state.inner)

    def restore(self, values: Mapping[str, Any]) -> GatedState[State]:
        # A run that is resumed may have had no gates before. `gates` is then no key of its state.
        saved = {"inner": values} if "gates" not in values else values
        inner = self._scheduler.restore(rebuilt(Mapping[str, Any], saved.get("inner") or {}, "scheduler.inner"))
        gates = rebuilt(Watched, saved.get("gates", {}), "scheduler.gates")
        # A gate that was broken breaks again if the run goes on beyond it, also where it now says what to do then.
        least = {bound_of(gate): gate.rounds - 1 for gate in self._gates}
        beyond = {name: min(number, least[name]) for name, number in gates.beyond.items() if name in least}
        return GatedState(
            replace(gates, beyond=beyond),
            rebuilt(int, saved.get("good_step", 0), "scheduler.good_step"),
            rebuilt(int, saved.get("returns", 0), "scheduler.returns"),
            inner,
        )


def ungated(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the state within that of a `GatedScheduler`, for a run that is resumed without gates."""
    return rebuilt(Mapping[str, Any], values.get("inner") or {}, "scheduler.inner") if "gates" in values else values
