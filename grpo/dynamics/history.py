"""From counts of correct completions to a reward curve with errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from grpo.dynamics.laws import History

Counts = Mapping[tuple[int, int], int]
"""(correct, group size) → groups, as in `RoundStatistics.reward_counts`."""


def pass_rate(counts: Counts) -> tuple[float, float]:
    """Mean pass rate of a round and its standard error.

    Completions of one prompt are alike, so the error is that of the groups' totals (the ratio estimator of cluster
    sampling), and never less than that of independent completions at a rate shrunk towards ½: a round in which
    everything was wrong is not known to be hopeless.
    """
    correct, sizes, groups = (
        np.array(column, float) for column in zip(*((k, n, g) for (k, n), g in counts.items()), strict=True)
    )
    tried, number = groups @ sizes, groups.sum()
    rate = groups @ correct / tried
    between = groups @ (correct - rate * sizes) ** 2 / tried**2 * (number / max(number - 1, 1))
    shrunk = (groups @ correct + 1) / (tried + 2)
    return float(rate), float(np.sqrt(max(between, shrunk * (1 - shrunk) / tried)))


def history_of(rounds: Iterable[tuple[int, int, Counts]]) -> History:
    """A curve from rounds of (optimizer steps at the end, refresh interval, counts).

    A round's completions come from the policy of its beginning, so its point stands `interval` steps before its end.
    Rounds without completions are left out.
    """
    points = [
        (step - interval, *pass_rate(counts), interval) for step, interval, counts in rounds if sum(counts.values())
    ]
    steps, values, errors, intervals = (np.array(column, float) for column in zip(*points, strict=True))
    return History(steps, values, errors, intervals)
