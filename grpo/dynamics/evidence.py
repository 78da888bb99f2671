"""How far a noisy series has come, and where it stands, with intervals that noise and autocorrelation widen.

A diagnosis compares the bounds of these intervals with its thresholds, never a single value: one unlucky round is
no finding. Rounds that follow one another are alike, so n of them count as n(1−r)/(1+r), r being the lag-1
correlation about their own straight line where it is positive (the large-sample variance of an AR(1) series' mean).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from grpo.dynamics.run_log import Series
from grpo.types import Interval

Array = NDArray[np.float64]

# Of every interval here.
CONFIDENCE = 0.99
# Rounds that one window holds at least, and the share of a run beyond that.
FEWEST_ROUNDS, WINDOW_SHARE = 10, 0.25


def window_length(num_rounds: int) -> int:
    """Rounds in the window that a level is taken over: a quarter of the run, at least `FEWEST_ROUNDS`."""
    return max(FEWEST_ROUNDS, round(WINDOW_SHARE * num_rounds))


def level(series: Series) -> Interval | None:
    """Mean of the last window; None with fewer rounds than one."""
    if len(series) < FEWEST_ROUNDS:
        return None
    return mean_interval(series.values[-window_length(len(series)) :])


def start(series: Series) -> Interval | None:
    """Mean of the first window; None with fewer rounds than two."""
    if len(series) < 2 * FEWEST_ROUNDS:
        return None
    return mean_interval(series.values[: window_length(len(series))])


def change(series: Series) -> Interval | None:
    """From the first window to the last; None with fewer rounds than two."""
    if len(series) < 2 * FEWEST_ROUNDS:
        return None
    return difference(series.values, window_length(len(series)))


def late_change(series: Series) -> Interval | None:
    """From the window before the last to the last."""
    length = window_length(len(series))
    if len(series) < 2 * FEWEST_ROUNDS:
        return None
    return difference(series.values[-2 * length :], length)


def fall(series: Series) -> Interval | None:
    """From the best `FEWEST_ROUNDS` in a row before the last so many, to these; negative when the series has come
    down. The best of many windows is a lucky one, so a threshold has to leave room for that."""
    length, values = FEWEST_ROUNDS, series.values
    if len(values) < 2 * length:
        return None
    means = np.convolve(values[:-length], np.full(length, 1 / length), "valid")
    best = int(np.argmax(means))
    return difference(np.concatenate([values[best : best + length], values[-length:]]), length)


def difference(values: Array, length: int) -> Interval:
    """Mean of the last `length` values minus that of the first (Welch)."""
    (before, error_before, freedom_before), (after, error_after, freedom_after) = (
        _mean(values[:length]),
        _mean(values[-length:]),
    )
    variance = error_before**2 + error_after**2
    freedom = variance**2 / max(error_before**4 / freedom_before + error_after**4 / freedom_after, 1e-300)
    half = _half_width(variance**0.5, max(freedom, 1.0))
    return Interval(after - before, after - before - half, after - before + half)


def mean_interval(values: Array) -> Interval:
    """Mean with its interval."""
    mean, error, freedom = _mean(values)
    half = _half_width(error, freedom)
    return Interval(mean, mean - half, mean + half)


def paired(series: Series, steps: Array) -> Series:
    """The series at other, sparser steps: its mean over the rounds that are nearest to each."""
    nearest = np.abs(series.steps[:, None] - steps).argmin(axis=1)
    kept = np.unique(nearest)
    return Series(steps[kept], np.array([series.values[nearest == each].mean() for each in kept]))


def _half_width(error: float, freedom: float) -> float:
    return float(error * stats.t.ppf(0.5 + CONFIDENCE / 2, freedom))


def _mean(values: Array) -> tuple[float, float, float]:
    """Mean, its standard error, degrees of freedom."""
    n = len(values)
    residuals = values - np.polynomial.Polynomial.fit(np.arange(n), values, 1)(np.arange(n)) if n > 2 else values
    spread = residuals @ residuals
    correlation = float(residuals[1:] @ residuals[:-1] / spread) if spread > 0 else 0.0
    # About a fitted line a short series looks less correlated than it is (Kendall, Biometrika 1954).
    correlation = min(max(correlation + (2 + 4 * correlation) / n, 0.0), 0.95)
    effective = max(n * (1 - correlation) / (1 + correlation), 3.0)
    return float(values.mean()), float(np.sqrt(spread / max(n - 2, 1) / effective)), effective - 1
