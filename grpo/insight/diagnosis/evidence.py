"""This module estimates levels and changes of a noisy series, with confidence intervals for autocorrelated rounds.

A diagnosis compares the bounds of these intervals with its thresholds, never a single value, since one unlucky round is
no finding. Successive rounds resemble each other, so n rounds count as fewer independent ones: about n(1−r)/(1+r) in an
AR(1) series of correlation r. Few rounds say little about r. So the half-width of an interval is the mean over all r,
weighted by their likelihood in the whole series (`windows`).
"""

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from grpo.dynamics.history import History, noise_factor
from grpo.insight.diagnosis.windows import CONFIDENCE, Windows
from grpo.insight.logs.run_log import RunLog, Series
from grpo.types import Interval
from grpo.types import metrics as m

Array = NDArray[np.float64]

# A window holds this share of a run's rounds, but at least `FEWEST_ROUNDS`.
FEWEST_ROUNDS, WINDOW_SHARE = 10, 0.25
# The mean of this many first rounds says where a run began (`since_beginning`).
FIRST_ROUNDS = 3
# `step_at` compares windows of these lengths on both sides of a step.
STEP_WINDOWS = (6, 12, 24, 48)


def window_length(num_rounds: int) -> int:
    """Returns the number of rounds in a window: a quarter of the run, but at least `FEWEST_ROUNDS`."""
    return max(FEWEST_ROUNDS, round(WINDOW_SHARE * num_rounds))


def level(series: Series) -> Interval | None:
    """Returns the mean of the last window, or None if the series is shorter than `FEWEST_ROUNDS`."""
    if len(series) < FEWEST_ROUNDS:
        return None
    return Windows(series.values, window_length(len(series))).last


def share_right(log: RunLog) -> Interval | None:
    """Returns the share of right answers in the last window, or None if it is not known."""
    return None if log.partial else level(log[m.PASS_RATE])


def start(series: Series) -> Interval | None:
    """Returns the mean of the first window, or None if the series is shorter than 2 × `FEWEST_ROUNDS`."""
    if len(series) < 2 * FEWEST_ROUNDS:
        return None
    return Windows(series.values, window_length(len(series))).first


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
    means = window_means(series.values, FEWEST_ROUNDS)
    earlier = means[:-FEWEST_ROUNDS]
    change = float(means[-1] - earlier.max())
    half = half_width_of_many(window_error(series.values) * 2**0.5, len(earlier))
    return Interval(change, change - half, change + half)


def since_beginning(history: History) -> Interval | None:
    """Returns the change from the first three rounds of a curve to its last window.

    This shows a loss within the first few rounds, which no window of `FEWEST_ROUNDS` shows. The error of the first
    three rounds comes from the scatter of the whole curve, and is at least the sampling error of their completions. The
    result is None for a curve that is shorter than 2 × `FEWEST_ROUNDS`.
    """
    if len(history) < 2 * FEWEST_ROUNDS:
        return None
    now = Windows(history.values, window_length(len(history))).last
    first = float(history.values[:FIRST_ROUNDS].mean())
    sampling_error = float(np.linalg.norm(history.errors[:FIRST_ROUNDS])) / FIRST_ROUNDS
    error = max(sampling_error, window_error(history.values) * (FEWEST_ROUNDS / FIRST_ROUNDS) ** 0.5)
    half = float(np.hypot(now.high - now.value, stats.norm.ppf(0.5 + CONFIDENCE / 2) * error))
    return Interval(now.value - first, now.value - first - half, now.value - first + half)


def num_falls(series: Series, deep: float) -> int:
    """Returns how often the running mean of `FEWEST_ROUNDS` rounds has fallen by `deep` or more, counting a fall again
    only after a rise by as much."""
    falls, high, low, falling = 0, -np.inf, np.inf, False
    for mean in window_means(series.values, FEWEST_ROUNDS):
        high, low = (high, min(low, mean)) if falling else (max(high, mean), low)
        if not falling and high - mean >= deep:
            falls, low, falling = falls + 1, mean, True
        elif falling and mean - low >= deep:
            high, falling = mean, False
    return falls


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


def setbacks(series: Series) -> Iterator[Setback]:
    """Yields the largest loss from one window of a series to a later one, for each pair of window lengths.

    Windows hold `FEWEST_ROUNDS` rounds, or twice or four times as many and so on, up to a quarter of the series. Long
    windows show a loss that lasts, which short ones cannot tell from luck. The intervals hold for all windows of all
    lengths at once. Windows that overlap by more than half count as one. Yields nothing if the series is shorter than
    2 × `FEWEST_ROUNDS`.
    """
    number = len(series)
    if number < 2 * FEWEST_ROUNDS:
        return
    lengths = doubled(window_length(number))
    means = {length: window_means(series.values, length) for length in lengths}
    error = window_error(series.values) * FEWEST_ROUNDS**0.5
    for early, late in product(lengths, lengths):
        # The i-th pair of neighbouring windows meets at round i + early.
        best = np.maximum.accumulate(means[early][: number - early - late + 1])
        changes = means[late][early:] - best
        index = int(changes.argmin())
        peak = int(means[early][: index + 1].argmax())
        windows = len(lengths) ** 2 * (2 * number / early) * (2 * number / late) / 2
        half = half_width_of_many(error * (1 / early + 1 / late) ** 0.5, windows)
        change = float(changes[index])
        interval = Interval(change, change - half, change + half)
        ends = peak + early - 1, index + early + late - 1
        yield Setback(interval, *(float(series.steps[end]) for end in ends))


def step_at(values: Array, before: int, after: int) -> Interval | None:
    """Returns the change from the rounds before the index `before` to those from the index `after` on.

    Of windows of 6, 12, 24 and 48 rounds on either side those with the surest loss are taken. Short windows hold little
    of what a run learns meanwhile, and long ones little noise. The interval holds for all of them at once. The result
    is None if one side is shorter than the shortest window.
    """
    if min(before, len(values) - after) < STEP_WINDOWS[0]:
        return None
    error = window_error(values) * FEWEST_ROUNDS**0.5
    changes = []
    for length in STEP_WINDOWS:
        sides = values[max(before - length, 0) : before], values[after : after + length]
        half = half_width_of_many(error * sum(1 / len(side) for side in sides) ** 0.5, len(STEP_WINDOWS))
        change = float(sides[1].mean() - sides[0].mean())
        changes.append(Interval(change, change - half, change + half))
    return min(changes, key=lambda change: change.high)


def doubled(longest: float) -> list[int]:
    """Returns `FEWEST_ROUNDS`, twice as many, four times as many and so on, up to `longest`.

    >>> doubled(45)
    [10, 20, 40]
    """
    lengths = [FEWEST_ROUNDS]
    while 2 * lengths[-1] <= longest:
        lengths.append(2 * lengths[-1])
    return lengths


def window_means(values: Array, length: int) -> Array:
    """Returns the means of all windows of `length` rounds.

    A window reaches over two blocks of `length` values: from its first value to the end of one, and from the start of
    the next one to its last value. So no huge value outside of it is subtracted again, as with running sums.

    >>> window_means(np.array([1e20, 1.0, 2.0, 3.0]), 2).tolist()
    [5e+19, 1.5, 2.5]
    """
    first = np.arange(len(values) - length + 1)
    blocks = np.append(values, np.zeros(-len(values) % length)).reshape(-1, length)
    to_end, from_start = np.cumsum(blocks[:, ::-1], axis=1)[:, ::-1].ravel(), np.cumsum(blocks, axis=1).ravel()
    return (to_end[first] + np.where(first % length, from_start[first + length - 1], 0.0)) / length


def window_error(values: Array) -> float:
    """Returns the standard error of the mean of a window of `FEWEST_ROUNDS` rounds.

    It comes from the scatter of the whole series about its running mean.
    """
    length = FEWEST_ROUNDS
    means = window_means(values, length)
    # The running mean takes its own share of the scatter.
    scatter = values[length // 2 :][: len(means)] - means
    variance = float(scatter @ scatter) / len(scatter) / (1 - 1 / length) * noise_factor(values) / length
    return variance**0.5


def half_width_of_many(error: float, number: float) -> float:
    """Returns the half-width with which `number` values with this standard error all hold at once (Bonferroni)."""
    return float(-stats.norm.ppf((1 - CONFIDENCE) / 2 / number) * error)


def difference_of_evaluations(values: Array, length: int, error: float) -> Interval:
    """Returns the mean of the last `length` values minus that of the first `length`, for values whose noise is
    independent, as the sampling noise of evaluations is.

    The noise is estimated from the distance of each value to the line between its neighbours (pseudo-residuals: Gasser,
    Sroka & Jennen-Steinmetz, Biometrika 1986). It is at least `error`. Neighbouring distances share values and
    correlate by −2/3 and 1/6, so they count for fewer degrees of freedom (Satterthwaite).
    """
    distances = values[1:-1] - (values[:-2] + values[2:]) / 2
    scatter = max(float(np.sqrt(np.mean(distances**2) / 1.5)), error)
    freedom = len(distances) / (1 + 2 * ((2 / 3) ** 2 + (1 / 6) ** 2))
    change = float(values[-length:].mean() - values[:length].mean())
    half = float(scatter * (2 / length) ** 0.5 * stats.t.ppf(0.5 + CONFIDENCE / 2, freedom))
    return Interval(change, change - half, change + half)


def difference(values: Array, length: int) -> Interval:
    """Returns the mean of the last `length` values minus that of the first `length`, with Welch's interval."""
    return Windows(values, length).difference


def paired(series: Series, steps: Array) -> Series:
    """Resamples a series at sparser steps: the value at a step is the mean over the rounds nearest to that step.

    Steps to which no round is nearest are left out.
    """
    nearest = np.abs(series.steps[:, None] - steps).argmin(axis=1)
    indices = np.unique(nearest)
    return Series(steps[indices], np.array([series.values[nearest == index].mean() for index in indices]))
