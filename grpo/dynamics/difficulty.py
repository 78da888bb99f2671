"""This module estimates how hard the prompts are: the distribution of pass rates behind counts of k correct of G.

With few tries, k/G is a poor estimate of the pass rate p, and averages of p(1−p) or p^G over it are biased. A prompt
with 0 of 8 correct need not be impossible. So the distribution itself is estimated, as a mixture of binomials whose
mixing distribution is free on a grid (Kiefer & Wolfowitz, 1956; Laird, 1978), by expectation maximization.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[np.float64]

Counts = Mapping[tuple[int, int], float]
"""Counts map (correct, tried) to a number of prompts. A number may be fractional, so that old rounds can count less."""

# The grid includes 0 and 1, since some prompts are never or always solved. It is denser near them, where p^G changes
# fast.
GRID = np.sin(np.linspace(0, np.pi / 2, 101)) ** 2
# A prior that is flat on the grid weighs as much as this many prompts. It keeps every pass rate possible.
PRIOR_PROMPTS = 1.0
MOST_ITERATIONS, TOLERANCE = 2000, 1e-7


@dataclass(frozen=True, slots=True)
class Difficulty:
    """A difficulty is a distribution of prompts over pass rates.

    `weights` [points] are the shares of prompts that have each of the `pass_rates` [points]. They add up to 1.
    """

    pass_rates: Array
    weights: Array

    @property
    def mean(self) -> float:
        """Returns the mean pass rate."""
        return float(self.weights @ self.pass_rates)

    def posterior(self, correct: int, tried: int) -> Difficulty:
        """Returns the posterior of one prompt's pass rate after `correct` of `tried`, with this difficulty as prior."""
        likelihood = stats.binom.pmf(correct, tried, self.pass_rates)
        evidence = self.weights * likelihood
        total = evidence.sum()
        return Difficulty(self.pass_rates, evidence / total if total else self.weights)


def fit_difficulty(counts: Counts) -> Difficulty:
    """Fits the distribution of pass rates to counts by maximum penalized likelihood, or returns a flat one without
    counts.

    The iteration ends when the mean log-likelihood of a prompt gains less than `TOLERANCE`.
    """
    pairs = [(pair, number) for pair, number in sorted(counts.items()) if number > 0 and pair[1] > 0]
    weights = np.full(len(GRID), 1 / len(GRID))
    if not pairs:
        return Difficulty(GRID, weights)
    correct, tried = np.array([pair for pair, _ in pairs]).T
    numbers = np.array([number for _, number in pairs], float)
    likelihood = stats.binom.pmf(correct[:, None], tried[:, None], GRID)
    previous_score, total = -np.inf, numbers.sum()
    for _ in range(MOST_ITERATIONS):
        evidence = likelihood @ weights
        score = numbers @ np.log(evidence) / total
        if score - previous_score < TOLERANCE:
            break
        previous_score = score
        expected_counts = weights * ((numbers / evidence) @ likelihood)
        weights = (expected_counts + PRIOR_PROMPTS / len(GRID)) / (total + PRIOR_PROMPTS)
    return Difficulty(GRID, weights)
