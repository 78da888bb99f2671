"""How many optimizer steps a round takes: the largest refresh interval that is stable, on-policy and worth it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from grpo.dynamics.oscillator import oscillator
from grpo.dynamics.thresholds import PRINTED_BOUND, critical_gain, gain

LADDER = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


@dataclass(frozen=True, slots=True)
class RefreshRule:
    """What bounds the choice.

    longest             largest interval allowed
    kind                how staleness is made: a key of `thresholds.RADII`
    gain_share          c = κτ/(1−μ) may reach this share of the kind's own threshold
    least_damping       ζ must stay at least this
    least_ess           effective share of samples under importance weights
    most_clipped        share of tokens clipped on either side
    least_saving        an interval must save this share of the time per step to be taken
    """

    longest: int
    kind: str
    gain_share: float
    least_damping: float
    least_ess: float
    most_clipped: float
    least_saving: float


@dataclass(frozen=True, slots=True)
class OffPolicyness:
    """Measured over the last rounds, at their refresh interval; `lag` is how many optimizer steps before the round's
    beginning its samples' policy was learned (0 where nothing is sampled ahead)."""

    interval: int
    ess: float
    clipped: float
    lag: int = 0

    def lag_at(self, interval: int) -> int:
        """What it will be at another interval: a longer one lengthens what is sampled ahead, a shorter one need not
        shorten it."""
        return math.ceil(self.lag * max(1.0, interval / self.interval))


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of an optimizer step at interval τ: per_step + per_round/τ, from rounds that were timed."""

    per_step: float
    per_round: float

    def seconds(self, interval: int) -> float:
        return self.per_step + self.per_round / interval


def fit_step_time(intervals: np.ndarray, round_seconds: np.ndarray, fixed_seconds: float) -> StepTime:
    """Least squares of round seconds = per_round + per_step·τ where τ has varied; else `fixed_seconds` of a round
    (the sync, which does not grow with τ) count as the round's and the rest as the steps'."""
    if len(set(intervals.tolist())) > 1:
        slope, offset = np.polyfit(intervals, round_seconds, 1)
        return StepTime(max(float(slope), 0.0), max(float(offset), 0.0))
    interval = float(intervals[-1])
    return StepTime(max(float(np.median(round_seconds)) - fixed_seconds, 0.0) / interval, fixed_seconds)


def stable(rule: RefreshRule, momentum: float, stiffness: float, interval: int, lag: int = 0) -> bool:
    """Whether the loop keeps its margin at this interval, by threshold and by damping ratio."""
    if interval == 1:
        return True
    share = gain(momentum, stiffness, interval + lag) / critical_gain(rule.kind, momentum, interval, lag)
    damping = oscillator(momentum, stiffness, interval + lag).damping_ratio
    return share <= rule.gain_share and damping >= rule.least_damping


def on_policy_enough(rule: RefreshRule, measured: OffPolicyness, interval: int) -> bool:
    """Whether importance weights stay harmless at `interval`. The shortfall of ESS grows as the square of the
    number of steps since the samples' policy, clipping in proportion: extrapolated from what was measured."""
    now, then = measured.interval + measured.lag, interval + measured.lag_at(interval)
    if interval <= measured.interval:
        growth = 1.0 if interval == measured.interval else then / now
    else:
        growth = (then - 0.5) / max(now - 0.5, 0.5)
    return 1 - (1 - measured.ess) * growth**2 >= rule.least_ess and measured.clipped * growth <= rule.most_clipped


@dataclass(frozen=True, slots=True)
class RefreshChoice:
    """The interval wanted and why."""

    interval: int
    reason: str


def choose_refresh_interval(
    rule: RefreshRule, momentum: float, stiffness: float | None, measured: OffPolicyness, time: StepTime, current: int
) -> RefreshChoice:
    """The largest interval with its margins kept, if it saves enough time against the current one.

    `stiffness` is the upper end of its interval: what is not known counts as dangerous. None (not identified)
    keeps the current interval, unless it is off-policy already.
    """
    allowed = [each for each in LADDER if each <= rule.longest and on_policy_enough(rule, measured, each)]
    if not allowed:
        return RefreshChoice(1, f"ESS {measured.ess:.2f}, clipped {measured.clipped:.1%}: off-policy")
    if stiffness is None:
        kept = max(each for each in allowed if each <= current) if min(allowed) <= current else allowed[0]
        return RefreshChoice(kept, "stiffness not identified yet")
    safe = [each for each in allowed if stable(rule, momentum, stiffness, each, measured.lag_at(each))]
    best = max(safe)
    if best > current and 1 - time.seconds(best) / time.seconds(current) < rule.least_saving:
        return RefreshChoice(current, f"τ {best} would save less than {rule.least_saving:.0%} of a step")
    lag = measured.lag_at(best)
    c, threshold = gain(momentum, stiffness, best + lag), critical_gain(rule.kind, momentum, best, lag)
    return RefreshChoice(best, f"c = {c:.3g} of {threshold:.3g} (printed bound {PRINTED_BOUND:g})")
