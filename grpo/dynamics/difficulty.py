"""How hard the prompts are: the distribution of pass rates behind counts of k correct of G.

With few tries k/G is a poor pass rate, and averages of p(1−p) or p^G over it are biased: a group of 8 that got
nothing right need not be impossible. So the distribution itself is estimated, as a mixture of binomials whose
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
"""(correct, tried) → how many prompts; fractions are allowed, so that old rounds may count less."""

# Both ends are in: some prompts are never, some always solved. Denser towards them, where p^G changes fast.
GRID = np.sin(np.linspace(0, np.pi / 2, 101)) ** 2
# Weight of a prior that is flat on the grid, in prompts: keeps every pass rate possible.
PRIOR_PROMPTS = 1.0


@dataclass(frozen=True, slots=True)
class Difficulty:
    """Pass rates [points] and the share of prompts [points] that has each; shares add up to 1."""

    pass_rates: Array
    weights: Array

    @property
    def mean(self) -> float:
        return float(self.weights @ self.pass_rates)

    def posterior(self, correct: int, tried: int) -> Difficulty:
        """The distribution of one prompt's pass rate after `correct` of `tried` (Bayes, this as the prior)."""
        likelihood = stats.binom.pmf(correct, tried, self.pass_rates)
        evidence = self.weights * likelihood
        total = evidence.sum()
        return Difficulty(self.pass_rates, evidence / total if total else self.weights)


def fit_difficulty(counts: Counts, max_iterations: int = 2000, tolerance: float = 1e-7) -> Difficulty:
    """The mixing distribution of largest penalized likelihood. Flat without any counts.

    Stops when the mean log-likelihood of a prompt gains less than `tolerance` in an iteration.
    """
    pairs = [(pair, number) for pair, number in sorted(counts.items()) if number > 0 and pair[1] > 0]
    weights = np.full(len(GRID), 1 / len(GRID))
    if not pairs:
        return Difficulty(GRID, weights)
    correct, tried = np.array([pair for pair, _ in pairs]).T
    numbers = np.array([number for _, number in pairs], float)
    likelihood = stats.binom.pmf(correct[:, None], tried[:, None], GRID)
    previous = -np.inf
    for _ in range(max_iterations):
        evidence = likelihood @ weights
        score = numbers @ np.log(evidence) / numbers.sum()
        if score - previous < tolerance:
            break
        previous = score
        expected = weights * ((numbers / evidence) @ likelihood)
        weights = (expected + PRIOR_PROMPTS / len(GRID)) / (numbers.sum() + PRIOR_PROMPTS)
    return Difficulty(GRID, weights)
