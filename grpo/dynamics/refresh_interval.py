"""This module chooses the refresh interval τ: the one at which a second learns most, from samples that still fit.

A longer interval shares the fixed time of a round, such as a dear refresh, among more steps. But later steps learn from
older samples, of which importance weights keep a smaller share. That share is measured at the present interval.
"""

import math
from dataclasses import dataclass

import numpy as np

NEWEST = 4
"""The tokens of a step are the median over this many newest rounds."""
LADDER = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


@dataclass(frozen=True, slots=True)
class RefreshRule:
    """A refresh rule bounds the choice of the interval.

    longest             largest interval allowed
    least_ess           least effective share of samples under importance weights
    most_clipped        largest share of tokens that may be clipped, on both sides together
    least_saving        share of the time for the same learning that a longer interval must save to be taken
    """

    longest: int
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


def fit_step_time(
    intervals: np.ndarray, tokens: np.ndarray, round_seconds: np.ndarray, fixed_seconds: float
) -> StepTime:
    """Fits round seconds = per_round + per_token·tokens, if τ has varied. Returns the time of a step with the tokens
    that steps of the last `NEWEST` rounds had, since earlier ones may have had larger groups.

    If τ has not varied, `fixed_seconds` (the weight sync, which does not grow with τ) are taken as per_round.
    """
    of_a_step = float(np.median((tokens / intervals)[-NEWEST:]))
    if len(set(intervals.tolist())) > 1:
        per_round, per_token = fit_token_time(tokens, round_seconds)
    else:
        per_round, per_token = fixed_seconds, float(np.median((round_seconds - fixed_seconds) / tokens))
    return StepTime(max(per_token, 0.0) * of_a_step, per_round)


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


def kept(measured: OffPolicyness, interval: int) -> float:
    """Returns the effective share of samples to expect at `interval`, by extrapolation from the measured share.

    The shortfall 1 − ESS is taken to grow as the square of the number of steps since the samples' policy.
    """
    return max(0.0, 1 - (1 - measured.ess) * _growth(measured, interval) ** 2)


def on_policy_enough(rule: RefreshRule, measured: OffPolicyness, interval: int) -> bool:
    """Tells whether importance weights stay harmless at `interval`, by extrapolation from the measured values.

    The clipped share is taken to grow in proportion to the number of steps since the samples' policy.
    """
    clipped = measured.clipped * _growth(measured, interval)
    return kept(measured, interval) >= rule.least_ess and clipped <= rule.most_clipped


def _growth(measured: OffPolicyness, interval: int) -> float:
    now, then = measured.interval + measured.lag, interval + measured.lag_at(interval)
    if interval <= measured.interval:
        return 1.0 if interval == measured.interval else then / now
    return (then - 0.5) / max(now - 0.5, 0.5)


@dataclass(frozen=True, slots=True)
class RefreshChoice:
    """A refresh choice is the chosen interval with the reason for the choice.

    It is `stale` where a longer interval would save time, and samples would not keep.
    """

    interval: int
    reason: str
    stale: bool = False


def choose_refresh_interval(
    rule: RefreshRule, measured: OffPolicyness, time: StepTime, current: int, gains: bool = True
) -> RefreshChoice:
    """Chooses the interval at which a second learns most, at most one rung of the ladder away from the current one.

    The share of samples that importance weights keep counts as learned. Another interval must also save
    `RefreshRule.least_saving`. At τ = 1 the weights are 1 and show no drift, so the change to 2 needs only the saving.
    `gains` says whether steps gain anything; where they gain nothing, fresher samples are tried first.
    """
    ladder = [interval for interval in LADDER if interval <= rule.longest] or [1]
    shorter = [interval for interval in ladder if interval < current][-1:]
    drift = f"ESS {measured.ess:.2f} and {measured.clipped:.1%} clipped at τ {measured.interval}"
    if not gains and shorter:
        return RefreshChoice(shorter[0], f"steps gain nothing; {drift}")
    allowed = [interval for interval in ladder if on_policy_enough(rule, measured, interval)]
    if current not in allowed and current > 1:
        return RefreshChoice(max((i for i in allowed if i < current), default=1), f"off-policy: {drift}")
    longer = [interval for interval in ladder if interval > current][:1]
    # At one step a round the ratios are 1 by construction, so that there is nothing to extrapolate.
    reachable = [interval for interval in longer if interval in allowed or measured.interval == 1]

    def learned(interval: int) -> float:
        return kept(measured, interval) / time.seconds(interval)

    for interval in reachable:
        saved = 1 - learned(current) / learned(interval) if learned(interval) else 0.0
        if saved >= rule.least_saving:
            return RefreshChoice(interval, f"{saved:.0%} of the time for the same learning is saved; {drift}")
    if shorter and learned(current) <= (1 - rule.least_saving) * learned(shorter[0]):
        return RefreshChoice(shorter[0], f"fresher samples learn more in a second; {drift}")
    if longer and not reachable and time.seconds(longer[0]) <= (1 - rule.least_saving) * time.seconds(current):
        reason = f"τ stays at {current}, since samples would not keep at {longer[0]}; {drift}"
        return RefreshChoice(current, reason, stale=True)
    return RefreshChoice(current, f"a longer τ would save less than {rule.least_saving:.0%}; {drift}")
