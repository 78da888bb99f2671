"""From counts of correct completions to a reward curve with errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from grpo.dynamics.laws import History

SMOOTHED_ROUNDS = 5
# Of a curve's value, where the curve itself has to tell.
LEAST_ERROR = 1e-3

Counts = Mapping[tuple[int, int], int]
"""(correct, group size) → groups, as in `RoundStatistics.reward_counts`."""


def pass_rate(counts: Counts) -> tuple[float, float]:
    """Mean pass rate of a round and its standard error.

    Every group counts alike, whatever its size: where sizes follow the answers (`grpo.dynamics.budget`), a mean over
    completions would be of the prompts that were asked more. Completions of one prompt are alike, so the error is
    that of the groups' rates, and never less than that of independent completions at a rate shrunk towards ½: a
    round in which everything was wrong is not known to be hopeless.
    """
    correct, sizes, groups = (
        np.array(column, float) for column in zip(*((k, n, g) for (k, n), g in counts.items()), strict=True)
    )
    rates, number = correct / sizes, groups.sum()
    rate = groups @ rates / number
    between = groups @ (rates - rate) ** 2 / number / max(number - 1, 1)
    tried = groups @ sizes
    shrunk = (rate * tried + 1) / (tried + 2)
    return float(rate), float(np.sqrt(max(between, shrunk * (1 - shrunk) / tried)))


def pooled_errors(values: ArrayLike, errors: ArrayLike, tried: ArrayLike) -> NDArray[np.float64]:
    """Standard errors of a curve's rounds, from what all of them show together.

    A round's own error goes with its own luck: one that happened to solve nearly everything looks certain, and a fit
    weighted by such errors runs above the curve. So the rate is smoothed over neighbouring rounds, and the excess
    over independent completions (prompts differ) is one factor for the whole run, at least 1.
    """
    values, errors, tried = (np.asarray(column, float) for column in (values, errors, tried))
    kernel = np.ones(min(SMOOTHED_ROUNDS, len(values)))
    smooth = np.convolve(values, kernel, "same") / np.convolve(np.ones(len(values)), kernel, "same")
    # Never certain: as if each window had seen one success and one failure more.
    near = len(kernel) * tried
    smooth = (smooth * near + 1) / (near + 2)
    independent = smooth * (1 - smooth) / tried
    excess = max(1.0, float((errors**2).sum() / independent.sum()))
    return np.sqrt(excess * independent)


def lag(staleness: float, interval: int) -> int:
    """Whole optimizer steps that a round's samples were drawn ahead of it, from the mean staleness of its groups:
    (τ−1)/2 of that is the round's own.

    >>> lag(0.5, 2), lag(2.5, 2)
    (0, 2)
    """
    return max(0, round(staleness - (interval - 1) / 2))


def history_of(rounds: Iterable[tuple[int, int, int, Counts]]) -> History:
    """A curve from rounds of (optimizer steps at the end, refresh interval, lag, counts).

    A round's completions come from the policy of its beginning, or of `lag` steps before it: its point stands there.
    Rounds without completions are left out.
    """
    points = [
        (step - interval - behind, *pass_rate(counts), num_tried(counts), interval + behind)
        for step, interval, behind, counts in rounds
        if sum(counts.values())
    ]
    steps, values, errors, tried, delays = (np.array(column, float) for column in zip(*points, strict=True))
    # A lag that grows by more than a round would let the curve run backwards.
    return History(np.maximum.accumulate(steps), values, pooled_errors(values, errors, tried), delays)


def history_of_values(steps: ArrayLike, values: ArrayLike, interval: int = 1) -> History:
    """A curve of which only values are known: their common error is that of one value about the line between its
    neighbours (pseudo-residuals: Gasser, Sroka & Jennen-Steinmetz, Biometrika 1986). At least three points."""
    steps, values = np.asarray(steps, float), np.asarray(values, float)
    residuals = values[1:-1] - (values[:-2] + values[2:]) / 2
    error = max(float(np.sqrt(np.mean(residuals**2) / 1.5)), LEAST_ERROR)
    return History(steps - interval, values, np.full(len(values), error), np.full(len(values), float(interval)))


def num_tried(counts: Counts) -> int:
    """Completions of a round."""
    return sum(size * groups for (_, size), groups in counts.items())
