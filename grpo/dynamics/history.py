"""This module turns counts of correct completions into a reward curve with standard errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

SMOOTHED_ROUNDS = 5
# A forecast or a prediction needs a curve of at least this many rounds.
FEWEST_POINTS = 6
# The standard error is at least this where it has to be estimated from the curve's own scatter.
LEAST_ERROR = 1e-3
# The correlation of the noise is measured in curves of at least `FEWEST_CORRELATED` rounds, about a running mean over
# at most `LONGEST_WINDOW` rounds.
FEWEST_CORRELATED, LONGEST_WINDOW = 12, 15
# A measured correlation above this is cut to it, since the rest is the curve's own movement.
HIGHEST_CORRELATION = 0.8


@dataclass(frozen=True, slots=True)
class History:
    """A history is a measured reward curve, with one point for each round.

    steps      [points] optimizer steps taken by the policy that sampled the round
    values     [points] mean pass rate of the round
    errors     [points] standard error of the pass rate
    intervals  [points] refresh interval τ: the steps for which the round's samples are held
    lags       [points] steps by which the round was sampled ahead
    """

    steps: Array
    values: Array
    errors: Array
    intervals: Array
    lags: Array

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def delays(self) -> Array:
        """Returns how old the sampling policy is at the end of each round, in optimizer steps: τ + lag, [points]."""
        return self.intervals + self.lags

    @property
    def ends(self) -> Array:
        """Returns the optimizer step at the end of each round, by which logs number the rounds, [points]."""
        return self.steps + self.delays

    def until(self, step: float) -> History:
        """Returns the points at or before `step`."""
        mask = self.steps <= step
        columns = self.steps, self.values, self.errors, self.intervals, self.lags
        return History(*(column[mask] for column in columns))


NO_HISTORY = History(*(np.empty(0) for _ in range(5)))
"""This is the reward curve of a log without a round that has a pass rate."""

Counts = Mapping[tuple[int, int], int]
"""Counts map (correct, group size) to the number of groups, as `RoundStatistics.reward_counts` does."""


def pass_rate(counts: Counts) -> tuple[float, float]:
    """Returns the mean pass rate of a round and its standard error.

    Every group counts the same, whatever its size. When sizes depend on the answers (`grpo.dynamics.budget`), a mean
    over completions would be biased towards the prompts that were asked more often.

    Completions of one prompt resemble each other, so the error is computed from the scatter of the groups' rates. It is
    never less than the error of independent completions at a rate shrunk towards ½. Otherwise a round in which
    everything was wrong would count as certain.
    """
    correct, sizes, groups = (
        np.array(column, float) for column in zip(*((k, n, g) for (k, n), g in counts.items()), strict=True)
    )
    rates, number = correct / sizes, groups.sum()
    rate = groups @ rates / number
    rate_variance = groups @ (rates - rate) ** 2 / number / max(number - 1, 1)
    completions = groups @ sizes
    shrunk_rate = (rate * completions + 1) / (completions + 2)
    return float(rate), float(np.sqrt(max(rate_variance, shrunk_rate * (1 - shrunk_rate) / completions)))


def pooled_errors(values: ArrayLike, errors: ArrayLike, tried: ArrayLike) -> NDArray[np.float64]:
    """Returns the standard errors of a curve's rounds, estimated from all rounds together.

    A round's own error depends on its luck: a round that happened to solve nearly everything looks certain, and a fit
    weighted by such errors runs above the curve. So the rate is smoothed over neighbouring rounds, and the error of
    independent completions is computed from it. Prompts differ in difficulty, which makes the true errors larger. One
    factor for the whole run, at least 1, accounts for that.
    """
    values, errors, tried = (np.asarray(column, float) for column in (values, errors, tried))
    kernel = np.ones(min(SMOOTHED_ROUNDS, len(values)))
    smooth = np.convolve(values, kernel, "same") / np.convolve(np.ones(len(values)), kernel, "same")
    # One success and one failure are added to each window, so that no rate is certain.
    near = len(kernel) * tried
    smooth = (smooth * near + 1) / (near + 2)
    independent = smooth * (1 - smooth) / tried
    excess = max(1.0, float((errors**2).sum() / independent.sum()))
    return np.sqrt(excess * independent)


def noise_factor(values: ArrayLike) -> float:
    """Returns the factor by which correlated noise makes the variance of a mean larger, (1 + r)/(1 − r).

    r is the lag-1 correlation of the values about their running mean over k rounds, if it is positive. The running mean
    makes the residuals of uncorrelated noise correlate by −(k + 1)/(k(k − 1)), which is taken off.

    >>> noise_factor([0.2, 0.3] * 20)
    1.0
    """
    values = np.asarray(values, float)
    number = len(values)
    if number < FEWEST_CORRELATED:
        return 1.0
    width = min(2 * (max(number // 10, 3) // 2) + 1, LONGEST_WINDOW)
    window = np.ones(width)
    residuals = values - np.convolve(values, window, "same") / np.convolve(np.ones(number), window, "same")
    spread = residuals @ residuals
    if spread <= 0:
        return 1.0
    own_correlation = (width + 1) / (width * (width - 1))
    correlation = float(np.clip(residuals[1:] @ residuals[:-1] / spread + own_correlation, 0, HIGHEST_CORRELATION))
    return (1 + correlation) / (1 - correlation)


def history_of(rounds: Iterable[tuple[int, int, int, Counts]]) -> History:
    """Builds a reward curve from rounds of (optimizer steps at the end, refresh interval, lag, counts).

    A round's point is placed at the step of the policy that sampled it: the round's beginning, or `lag` steps before.
    Rounds without completions that could be graded are left out.
    """
    points = [
        (step - interval - steps_ahead, *pass_rate(counts), num_tried(counts), interval, steps_ahead)
        for step, interval, steps_ahead, counts in rounds
        if sum(counts.values())
    ]
    return curve_of(points) if points else NO_HISTORY


def curve_of(points: Iterable[tuple[float, float, float, int, int, int]]) -> History:
    """Returns the curve of points (step, pass rate, its standard error, completions, refresh interval, lag)."""
    steps, values, errors, tried, intervals, lags = (np.array(column, float) for column in zip(*points, strict=True))
    # The running maximum keeps the steps in order: a lag that grows by more than a round would put a point before the
    # last one.
    return History(np.maximum.accumulate(steps), values, pooled_errors(values, errors, tried), intervals, lags)


def history_of_values(steps: ArrayLike, values: ArrayLike, interval: int = 1) -> History:
    """Builds a reward curve of which only the values are known, without counts. It needs at least three points.

    All points get one common error. It is estimated from the distance of each value to the line between its neighbours
    (pseudo-residuals: Gasser, Sroka & Jennen-Steinmetz, Biometrika 1986).
    """
    steps, values = np.asarray(steps, float), np.asarray(values, float)
    residuals = values[1:-1] - (values[:-2] + values[2:]) / 2
    error = max(float(np.sqrt(np.mean(residuals**2) / 1.5)), LEAST_ERROR)
    count = len(values)
    intervals, lags = np.full(count, float(interval)), np.zeros(count)
    return History(steps - interval, values, np.full(count, error), intervals, lags)


def num_tried(counts: Counts) -> int:
    """Returns the number of completions in a round."""
    return sum(size * groups for (_, size), groups in counts.items())
