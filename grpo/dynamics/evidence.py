"""This module estimates levels and changes of a noisy series, with confidence intervals for autocorrelated rounds.

A diagnosis compares the bounds of these intervals with its thresholds, never a single value, since one unlucky round is
no finding. Successive rounds resemble each other, so n rounds count as n(1−r)/(1+r) independent ones. Here r is the
lag-1 correlation of the residuals about a straight line, if it is positive (the large-sample variance of the mean of
an AR(1) series).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from grpo.dynamics.history import noise_factor
from grpo.dynamics.laws import History
from grpo.dynamics.run_log import Series
from grpo.types import Interval

Array = NDArray[np.float64]

# This is the confidence of every interval here.
CONFIDENCE = 0.99
# A window holds this share of a run's rounds, but at least `FEWEST_ROUNDS`.
FEWEST_ROUNDS, WINDOW_SHARE = 10, 0.25
# The mean of this many first rounds says where a run began (`since_beginning`).
FIRST_ROUNDS = 3


def window_length(num_rounds: int) -> int:
    """Returns the number of rounds in a window: a quarter of the run, but at least `FEWEST_ROUNDS`."""
    return max(FEWEST_ROUNDS, round(WINDOW_SHARE * num_rounds))


def level(series: Series) -> Interval | None:
    """Returns the mean of the last window, or None if the series is shorter than `FEWEST_ROUNDS`."""
    if len(series) < FEWEST_ROUNDS:
        return None
    return mean_interval(series.values[-window_length(len(series)) :])


def start(series: Series) -> Interval | None:
    """Returns the mean of the first window, or None if the series is shorter than 2 × `FEWEST_ROUNDS`."""
    if len(series) < 2 * FEWEST_ROUNDS:
        return None
    return mean_interval(series.values[: window_length(len(series))])


def change(series: Series) -> Interval | None:
    """Returns the change from the first window to the last, or None if the series is shorter than 2 ×
    `FEWEST_ROUNDS`."""
    if len(series) < 2 * FEWEST_ROUNDS:
        return None
    return difference(series.values, window_length(len(series)))


def late_change(series: Series) -> Interval | None:
    """Returns the change from the second-last window to the last, or None if the series is shorter than 2 ×
    `FEWEST_ROUNDS`."""
    length = window_length(len(series))
    if len(series) < 2 * FEWEST_ROUNDS:
        return None
    return difference(series.values[-2 * length :], length)


def fall(series: Series) -> Interval | None:
    """Returns the change from the best `FEWEST_ROUNDS` rounds in a row to the last `FEWEST_ROUNDS` rounds.

    The change is negative when the series has fallen, and None if the series is shorter than 2 × `FEWEST_ROUNDS`. The
    best of many windows is partly lucky, so the interval holds for all windows at once (Bonferroni). The error comes
    from the scatter of the whole series about its running mean, corrected for correlated noise.
    """
    if len(series) < 2 * FEWEST_ROUNDS:
        return None
    means, error = _windows(series.values)
    earlier = means[:-FEWEST_ROUNDS]
    change = float(means[-1] - earlier.max())
    half = _half_width_of_many(error, len(earlier))
    return Interval(change, change - half, change + half)


def since_beginning(history: History) -> Interval | None:
    """Returns the change from the first three rounds of a curve to its last window.

    This shows a loss within the first few rounds, which no window of `FEWEST_ROUNDS` shows. The error of the first
    three rounds comes from the scatter of the whole curve, and is at least the sampling error of their completions. The
    result is None for a curve that is shorter than 2 × `FEWEST_ROUNDS`.
    """
    if len(history) < 2 * FEWEST_ROUNDS:
        return None
    now = mean_interval(history.values[-window_length(len(history)) :])
    first = float(history.values[:FIRST_ROUNDS].mean())
    own = float(np.linalg.norm(history.errors[:FIRST_ROUNDS])) / FIRST_ROUNDS
    error = max(own, _windows(history.values)[1] * (FEWEST_ROUNDS / FIRST_ROUNDS) ** 0.5)
    half = float(np.hypot(now.high - now.value, stats.norm.ppf(0.5 + CONFIDENCE / 2) * error))
    return Interval(now.value - first, now.value - first - half, now.value - first + half)


def since_best(evaluations: History) -> Interval | None:
    """Returns the change from the best evaluation to the mean of the last two, or None for fewer than four evaluations.

    The interval comes from the evaluations' standard errors, and holds whichever evaluation was best (Bonferroni).
    """
    values, errors = evaluations.values, evaluations.errors
    if len(values) < 4:
        return None
    best = int(values[:-2].argmax())
    error = float(np.hypot(errors[best], np.hypot(*errors[-2:]) / 2))
    half = float(stats.norm.isf((1 - CONFIDENCE) / 2 / (len(values) - 2))) * error
    change = float(values[-2:].mean() - values[best])
    return Interval(change, change - half, change + half)


class Setback(NamedTuple):
    """A setback is a loss between two windows of a series, and the steps at which the two windows end."""

    change: Interval
    best: float
    lowest: float


def setback(series: Series) -> Setback | None:
    """Returns the largest loss from one window of `FEWEST_ROUNDS` rounds to a later window, anywhere in the series.

    The interval holds for all pairs of windows at once. The result is None if the series is shorter than 2 ×
    `FEWEST_ROUNDS`.
    """
    if len(series) < 2 * FEWEST_ROUNDS:
        return None
    means, error = _windows(series.values)
    best = np.maximum.accumulate(means[:-FEWEST_ROUNDS])
    changes = means[FEWEST_ROUNDS:] - best
    index = int(changes.argmin())
    half = _half_width_of_many(error, len(changes) * (len(changes) + 1) // 2)
    change = float(changes[index])
    ends = series.steps[FEWEST_ROUNDS - 1 :]
    peak = int(means[: index + 1].argmax())
    interval = Interval(change, change - half, change + half)
    return Setback(interval, float(ends[peak]), float(ends[index + FEWEST_ROUNDS]))


def _windows(values: Array) -> tuple[Array, float]:
    """Returns the means of all windows of `FEWEST_ROUNDS` rounds, and the standard error of one such mean.

    The error comes from the scatter of the whole series about its running mean.
    """
    length = FEWEST_ROUNDS
    means = np.convolve(values, np.full(length, 1 / length), "valid")
    # The running mean takes its own share of the scatter.
    scatter = values[length // 2 :][: len(means)] - means
    variance = float(scatter @ scatter) / len(scatter) / (1 - 1 / length) * noise_factor(values) / length
    return means, variance**0.5


def _half_width_of_many(error: float, number: int) -> float:
    """Returns the half-width with which `number` differences of two windows all hold at once (Bonferroni)."""
    return float(-stats.norm.ppf((1 - CONFIDENCE) / 2 / number) * error * 2**0.5)


def difference(values: Array, length: int) -> Interval:
    """Returns the mean of the last `length` values minus that of the first `length`, with Welch's interval."""
    (before, error_before, freedom_before), (after, error_after, freedom_after) = (
        _mean(values[:length]),
        _mean(values[-length:]),
    )
    variance = error_before**2 + error_after**2
    freedom = variance**2 / max(error_before**4 / freedom_before + error_after**4 / freedom_after, 1e-300)
    half = _half_width(variance**0.5, max(freedom, 1.0))
    return Interval(after - before, after - before - half, after - before + half)


def mean_interval(values: Array) -> Interval:
    """Returns the mean of `values` with its confidence interval."""
    mean, error, freedom = _mean(values)
    half = _half_width(error, freedom)
    return Interval(mean, mean - half, mean + half)


def paired(series: Series, steps: Array) -> Series:
    """Resamples a series at sparser steps: the value at a step is the mean over the rounds nearest to that step.

    Steps to which no round is nearest are left out.
    """
    nearest = np.abs(series.steps[:, None] - steps).argmin(axis=1)
    kept = np.unique(nearest)
    return Series(steps[kept], np.array([series.values[nearest == index].mean() for index in kept]))


def _half_width(error: float, freedom: float) -> float:
    return float(error * stats.t.ppf(0.5 + CONFIDENCE / 2, freedom))


def _mean(values: Array) -> tuple[float, float, float]:
    """Returns the mean of autocorrelated values, its standard error and its degrees of freedom."""
    n = len(values)
    residuals = values - np.polynomial.Polynomial.fit(np.arange(n), values, 1)(np.arange(n)) if n > 2 else values
    spread = residuals @ residuals
    correlation = float(residuals[1:] @ residuals[:-1] / spread) if spread > 0 else 0.0
    # The correlation about a fitted line is too small in a short series; this corrects it (Kendall, Biometrika 1954).
    correlation = min(max(correlation + (2 + 4 * correlation) / n, 0.0), 0.95)
    effective = max(n * (1 - correlation) / (1 + correlation), 3.0)
    return float(values.mean()), float(np.sqrt(spread / max(n - 2, 1) / effective)), effective - 1
