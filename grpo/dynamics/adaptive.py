"""`dynamics=adaptive`: group size and refresh interval of the next round, from the model of this run so far.

Everything it knows is in its state, which is plain data: rounds as they were measured, counts of solved prompts, the
guard's memory. The same facts give the same plan on every rank, after a resume, and offline from metrics.jsonl.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import stats

from grpo.dynamics import guard
from grpo.dynamics.difficulty import fit_difficulty
from grpo.dynamics.forecast import Forecast, StopRule, forecast
from grpo.dynamics.group_size import GroupSizeRule, choose_group_size
from grpo.dynamics.history import lag, num_tried, pass_rate, pooled_errors
from grpo.dynamics.identify import FEWEST_POINTS, Identification, identify
from grpo.dynamics.identity import silent_rate
from grpo.dynamics.laws import History
from grpo.dynamics.refresh import OffPolicyness, RefreshRule, choose_refresh_interval, fit_step_time
from grpo.interfaces import ROUND
from grpo.types import Mean, RoundPlan, RoundStatistics

# Counts of older rounds are multiplied by this each round: difficulty is that of the present policy.
FORGETTING = 0.8
# A fit reads at most so many points; older neighbours are merged.
MOST_POINTS = 200
# A size is changed only by at least this factor, and when two decisions in a row want it.
LEAST_CHANGE = 1.2


@dataclass(frozen=True, slots=True)
class Setting:
    """What the run is, and what the scheduler may do; see `DynamicsConfig` for the meaning of the rules."""

    first: RoundPlan
    group_size: GroupSizeRule
    refresh: RefreshRule
    guard: guard.GuardRule
    stop: StopRule
    momentum: float
    num_steps: int
    decide_every: int
    hold_samples: bool
    prompt_multiple: int


class AdaptiveScheduler:
    """`interfaces.Scheduler`: pure `init` and `next`."""

    def __init__(self, setting: Setting):
        self._setting = setting

    def init(self) -> tuple[RoundPlan, Mapping[str, Any]]:
        return self._setting.first, {
            "rounds": [],
            "counts": [],
            "guard": guard.init(),
            "stop": self._setting.stop.init(),
            "wish": None,
            "longest": self._setting.refresh.longest,
        }

    def next(
        self, plan: RoundPlan, statistics: RoundStatistics, state: Mapping[str, Any]
    ) -> tuple[RoundPlan, Mapping[str, Any]]:
        """Guard first; then, every few rounds, the model's own proposals."""
        plan = replace(plan, rollback=False)
        state = _remember(state, statistics)
        rate, error = pass_rate(statistics.reward_counts)
        facts = guard.RoundFacts(
            step=statistics.step - statistics.plan.refresh_interval - lag_of(statistics),
            pass_rate=rate,
            error=error,
            ess=off_policyness(statistics).ess,
            skipped_steps=sum(not report.applied for report in statistics.reports),
            interval=plan.refresh_interval,
            rate_factor=plan.learning_rate_factor,
        )
        action, watched = guard.look(self._setting.guard, state["guard"], facts)
        state = {**state, "guard": watched}
        plan = replace(plan, good_step=watched["best_step"])
        if action:
            # An interval that lost its damping once is not tried again.
            state = {**state, "longest": min(state["longest"], action.interval)}
            return _guarded(plan, action), _afresh(state) if action.rollback else state
        # A decision costs little until there is a curve to fit; groups that are too large cost much.
        rounds = len(state["rounds"])
        if rounds >= FEWEST_POINTS and rounds % self._setting.decide_every:
            return replace(plan, reason="as before"), state
        return self._decide(plan, statistics, state)

    def resume(self, plan: RoundPlan, step: int, state: Mapping[str, Any]) -> RoundPlan:
        """A run that was stopped by its forecast stops at once if the forecast to the present `num_steps` says so."""
        plan, rule, count = replace(plan, stop=False), self._setting.stop, state["stop"]["rounds_below"]
        if count < rule.patience:
            return plan
        found, ahead = self._look_ahead(state)
        # The decision that filled the count is made once more.
        stop, _ = rule.next(ahead, step, {"rounds_below": count - 1})
        return self._stopped(plan, found, ahead) if stop else plan

    def _look_ahead(self, state: Mapping[str, Any]) -> tuple[Identification | None, Forecast | None]:
        setting, history = self._setting, read_rounds(state["rounds"])
        found = identify(merged(history), setting.momentum, setting.group_size.exponent)
        return found, forecast(found, setting.num_steps) if found and found.identified else None

    def _stopped(self, plan: RoundPlan, found: Identification, ahead: Forecast) -> RoundPlan:
        gain, last = ahead.gain.high, self._setting.num_steps
        return replace(plan, stop=True, reason=f"stop: at most {gain:.3f} more until step {last} ({found.reason})")

    def _decide(
        self, plan: RoundPlan, statistics: RoundStatistics, state: Mapping[str, Any]
    ) -> tuple[RoundPlan, Mapping[str, Any]]:
        setting = self._setting
        found, ahead = self._look_ahead(state)
        stop, counting = setting.stop.next(ahead, statistics.step, state["stop"])
        state = {**state, "stop": counting}
        if stop:
            return self._stopped(plan, found, ahead), state
        size, why_size, state = self._group_size(plan, statistics, found, ahead, state)
        interval, why_interval = self._interval(plan, statistics, found, state)
        samples = plan.prompts_per_step * plan.group_size
        prompts = plan.prompts_per_step
        if setting.hold_samples:
            prompts = max(1, round(samples / size / setting.prompt_multiple)) * setting.prompt_multiple
        reason = "; ".join(each for each in (why_size, why_interval) if each) or "nothing asks for a change"
        changed = replace(plan, group_size=size, refresh_interval=interval, prompts_per_step=prompts, reason=reason)
        return changed, state

    def _group_size(
        self,
        plan: RoundPlan,
        statistics: RoundStatistics,
        found: Identification | None,
        ahead: Forecast | None,
        state: Mapping[str, Any],
    ) -> tuple[int, str, Mapping[str, Any]]:
        difficulty = fit_difficulty({(k, size): number for k, size, number in state["counts"]})
        length = statistics.means["completions/length_mean"]
        choice = choose_group_size(
            difficulty,
            self._setting.group_size,
            plan.group_size,
            process_variance(found),
            ahead.plateau.high - float(ahead.value[0]) if ahead else None,
            prompt_cost=statistics.means["prompts/length_mean"].value,
            completion_cost=length.value,
        )
        wish = choice.size
        factor = max(wish, plan.group_size) / min(wish, plan.group_size)
        if factor < LEAST_CHANGE:
            return plan.group_size, "", {**state, "wish": None}
        # The first time it is only a wish: one noisy round changes nothing.
        same_direction = state["wish"] is not None and (state["wish"] > plan.group_size) == (wish > plan.group_size)
        if not same_direction:
            return plan.group_size, "", {**state, "wish": wish}
        now, then = (
            float(difficulty.weights @ silent_rate(difficulty.pass_rates, size)) for size in (plan.group_size, wish)
        )
        reason = f"G {plan.group_size}→{wish}: {choice.reason}; silent {now:.0%} → {then:.0%}"
        return wish, reason, {**state, "wish": None}

    def _interval(
        self,
        plan: RoundPlan,
        statistics: RoundStatistics,
        found: Identification | None,
        state: Mapping[str, Any],
    ) -> tuple[int, str]:
        rows = state["rounds"][-50:]
        time = fit_step_time(
            np.array([row["interval"] for row in rows], float),
            np.array([row["seconds"] for row in rows], float),
            float(np.median([row["fixed_seconds"] for row in rows])),
        )
        stiffness = found.stiffness.high if found and found.identified else None
        choice = choose_refresh_interval(
            replace(self._setting.refresh, longest=state["longest"]),
            self._setting.momentum,
            stiffness,
            off_policyness(statistics),
            time,
            plan.refresh_interval,
        )
        if choice.interval == plan.refresh_interval:
            return plan.refresh_interval, ""
        return choice.interval, f"τ {plan.refresh_interval}→{choice.interval}: {choice.reason}"


def _guarded(plan: RoundPlan, action: guard.GuardAction) -> RoundPlan:
    return replace(
        plan,
        refresh_interval=action.interval,
        learning_rate_factor=action.rate_factor,
        stop=action.stop,
        rollback=action.rollback,
        reason=action.reason,
    )


def _afresh(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """After going back: the curve and the counts of a policy that is no more say nothing of the next."""
    return {**state, "rounds": [], "counts": [], "wish": None}


def _remember(state: Mapping[str, Any], statistics: RoundStatistics) -> dict[str, Any]:
    counts = {(k, size): FORGETTING * number for k, size, number in state["counts"]}
    for pair, number in statistics.reward_counts.items():
        counts[pair] = counts.get(pair, 0.0) + number
    rate, error = pass_rate(statistics.reward_counts)
    interval, behind = statistics.plan.refresh_interval, lag_of(statistics)
    row = {
        "step": statistics.step - interval - behind,
        "value": rate,
        "error": error,
        "tried": num_tried(statistics.reward_counts),
        "interval": interval,
        "delay": interval + behind,
        "seconds": statistics.seconds[ROUND],
        "fixed_seconds": statistics.seconds.get("sync", 0.0),
    }
    kept = [[k, size, number] for (k, size), number in sorted(counts.items()) if number > 1e-3]
    return {**state, "counts": kept, "rounds": [*state["rounds"], row]}


def read_rounds(rows: list[Mapping[str, Any]]) -> History:
    """The reward curve in a scheduler's state."""
    names = ("step", "value", "error", "tried", "delay")
    steps, values, errors, tried, delays = (np.array([row[name] for row in rows], float) for name in names)
    return History(np.maximum.accumulate(steps), values, pooled_errors(values, errors, tried), delays)


def merged(history: History, most: int = MOST_POINTS) -> History:
    """The same curve with neighbours averaged, weighted by their information, until at most `most` points are left.
    Only rounds of one delay are merged."""
    while len(history) > most:
        half = len(history) // 2
        pairs = [(2 * index, 2 * index + 1) for index in range(half)]
        points = []
        for a, b in pairs:
            if history.delays[a] != history.delays[b]:
                points += [_point(history, [a]), _point(history, [b])]
            else:
                points.append(_point(history, [a, b]))
        points += [_point(history, [index]) for index in range(2 * half, len(history))]
        if len(points) == len(history):
            return history
        history = History(*(np.array(column) for column in zip(*points, strict=True)))
    return history


def _point(history: History, rows: list[int]) -> tuple[float, float, float, float]:
    weights = history.errors[rows] ** -2.0
    total = weights.sum()
    return (
        float(history.steps[rows] @ weights / total),
        float(history.values[rows] @ weights / total),
        float(total**-0.5),
        float(history.delays[rows[0]]),
    )


def process_variance(found: Identification | None) -> float:
    """Variance of the curve about its best law beyond what sampling explains: the lower end of its one-sided 95 %
    interval, so that noise about a quiet curve is none."""
    if found is None:
        return 0.0
    fit = found.fits[0]
    freedom = len(fit.history) - len(fit.free)
    if freedom <= 0:
        return 0.0
    errors = fit.history.errors
    scatter = float(np.sum((fit.residuals * errors) ** 2)) / stats.chi2.ppf(0.95, freedom)
    return max(scatter - float(np.mean(errors**2)), 0.0)


def off_policyness(statistics: RoundStatistics) -> OffPolicyness:
    """How far the round's steps went from the policy that it was sampled with: ESS of the ratios between the two,
    and the clipped share of tokens, of its applied steps."""

    means, nothing = statistics.means, Mean(0.0, 0.0)
    squares = means.get("policy/ratio_squared", nothing)
    ess = means["policy/ratio"].effective_fraction(squares) if squares.total else 1.0
    cut = [means.get(f"policy/clip_{side}_fraction", nothing) for side in ("low", "high")]
    clipped = sum(each.value for each in cut if each.count)
    return OffPolicyness(statistics.plan.refresh_interval, min(ess, 1.0), clipped, lag_of(statistics))


def lag_of(statistics: RoundStatistics) -> int:
    """Optimizer steps between the weights that sampled a round and those that it began with, as measured."""
    measured = statistics.means.get("staleness/mean")
    return lag(measured.value if measured and measured.count else 0.0, statistics.plan.refresh_interval)
