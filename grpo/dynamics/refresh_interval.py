"""This module chooses the refresh interval τ: the largest that is stable, close to on-policy, and saves enough time."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from grpo.dynamics.oscillator import held_oscillator

LADDER = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


@dataclass(frozen=True, slots=True)
class RefreshRule:
    """A refresh rule bounds the choice of the interval.

    longest             largest interval allowed
    least_damping       least damping ratio ζ allowed
    least_ess           least effective share of samples under importance weights
    most_clipped        largest share of tokens that may be clipped, on both sides together
    least_saving        share of the time per step that a longer interval must save to be taken
    """

    longest: int
    least_damping: float
    least_ess: float
    most_clipped: float
    least_saving: float


@dataclass(frozen=True, slots=True)
class OffPolicyness:
    """Off-policyness says how far off-policy a round was at its refresh interval.

    `ess` is the effective share of samples and `clipped` the share of clipped tokens. `lag` is the number of optimizer
    steps between the weights that sampled the round and those at its beginning (0 unless rounds are sampled ahead).
    """

    interval: int
    ess: float
    clipped: float
    lag: int = 0

    def lag_at(self, interval: int) -> int:
        """Returns the lag to expect at another interval.

        A longer interval makes the lag longer in proportion. A shorter interval need not shorten the lag, so the lag is
        kept.
        """
        return math.ceil(self.lag * max(1.0, interval / self.interval))


@dataclass(frozen=True, slots=True)
class StepTime:
    """A step time models the seconds of an optimizer step at interval τ as per_step + per_round/τ."""

    per_step: float
    per_round: float

    def seconds(self, interval: int) -> float:
        """Returns the seconds of one optimizer step at this interval, including its share of the round's fixed time."""
        return self.per_step + self.per_round / interval


def fit_step_time(intervals: np.ndarray, round_seconds: np.ndarray, fixed_seconds: float) -> StepTime:
    """Fits round seconds = per_round + per_step·τ by least squares, if τ has varied.

    If τ has not varied, `fixed_seconds` (the weight sync, which does not grow with τ) are taken as per_round, and the
    rest of a round's time is divided among its steps.
    """
    if len(set(intervals.tolist())) > 1:
        slope, offset = np.polyfit(intervals, round_seconds, 1)
        return StepTime(max(float(slope), 0.0), max(float(offset), 0.0))
    interval = float(intervals[-1])
    return StepTime(max(float(np.median(round_seconds)) - fixed_seconds, 0.0) / interval, fixed_seconds)


def fit_token_time(tokens: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    """Fits seconds = fixed + per_token·tokens by least squares, and returns both constants.

    Seconds are taken as proportional to tokens (fixed = 0) where the tokens varied by less than a quarter, too little
    to tell the constants apart, and where a constant would be negative.
    """
    if tokens.max() >= 1.25 * tokens.min():
        per_token, fixed = np.polyfit(tokens, seconds, 1)
        if per_token > 0 and fixed >= 0:
            return float(fixed), float(per_token)
    return 0.0, float(np.median(seconds / tokens))


def stable(rule: RefreshRule, momentum: float, stiffness: float, interval: int, lag: int = 0) -> bool:
    """Tells whether the damping ratio stays above the least allowed. An interval of 1 is always allowed.

    A round's samples are held for all its steps, so the ratio is that of `held_oscillator`. Damping is lost long before
    stability.
    """
    return interval == 1 or held_oscillator(momentum, stiffness, interval, lag).damping_ratio >= rule.least_damping


def on_policy_enough(rule: RefreshRule, measured: OffPolicyness, interval: int) -> bool:
    """Tells whether importance weights stay harmless at `interval`, by extrapolation from the measured values.

    The shortfall 1 − ESS is taken to grow as the square of the number of steps since the samples' policy, and the
    clipped share in proportion to that number.
    """
    now, then = measured.interval + measured.lag, interval + measured.lag_at(interval)
    if interval <= measured.interval:
        growth = 1.0 if interval == measured.interval else then / now
    else:
        growth = (then - 0.5) / max(now - 0.5, 0.5)
    return 1 - (1 - measured.ess) * growth**2 >= rule.least_ess and measured.clipped * growth <= rule.most_clipped


@dataclass(frozen=True, slots=True)
class RefreshChoice:
    """A refresh choice is the chosen interval with the reason for the choice."""

    interval: int
    reason: str


def choose_refresh_interval(
    rule: RefreshRule, momentum: float, stiffness: float | None, measured: OffPolicyness, time: StepTime, current: int
) -> RefreshChoice:
    """Chooses the largest interval that keeps all margins, at most one rung of the ladder above the current one.

    A longer interval must also save enough time. At τ = 1 the ratios are 1 and show no drift. So the change from τ = 1
    to 2 needs only the damping ratio, and every longer interval needs what was measured at τ ≥ 2. `stiffness` is the
    upper end of its confidence interval, so that an uncertain stiffness counts as dangerous. If it is None (not
    identified), the current interval is kept, or shortened if it is too far off-policy.
    """
    ladder = [interval for interval in LADDER if interval <= rule.longest] or [1]
    allowed = [interval for interval in ladder if on_policy_enough(rule, measured, interval)]
    if not allowed:
        return RefreshChoice(1, f"ESS {measured.ess:.2f}, clipped {measured.clipped:.1%}: off-policy")
    below = [interval for interval in allowed if interval <= current]
    if stiffness is None:
        interval_kept = max(below) if below else allowed[0]
        return RefreshChoice(
            interval_kept, f"ESS {measured.ess:.2f}, clipped {measured.clipped:.1%}; stiffness not identified"
        )
    above = [interval for interval in ladder if interval > current][:1]
    # At one step a round the ratios are 1 by construction, so that there is nothing to extrapolate.
    reachable = below + [interval for interval in above if interval in allowed or measured.interval == 1]
    safe_intervals = [
        interval for interval in reachable if stable(rule, momentum, stiffness, interval, measured.lag_at(interval))
    ]
    best = max(safe_intervals, default=1)
    if best > current and 1 - time.seconds(best) / time.seconds(current) < rule.least_saving:
        return RefreshChoice(current, f"τ {best} would save less than {rule.least_saving:.0%} of a step")
    ratio = held_oscillator(momentum, stiffness, best, measured.lag_at(best)).damping_ratio
    drift = f"ESS {measured.ess:.2f} and {measured.clipped:.1%} clipped at τ {measured.interval}"
    saving = f"{1 - time.seconds(best) / time.seconds(current):.0%} of a step saved"
    if best > current:
        return RefreshChoice(best, f"{saving}, ζ = {ratio:.2g} of at least {rule.least_damping:g}, {drift}")
    unstable = bool(below) and max(below) not in safe_intervals
    why = f"ζ would fall below {rule.least_damping:g}" if unstable else drift
    return RefreshChoice(best, why)
