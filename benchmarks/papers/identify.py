"""This module finds which law a reward curve follows, with which constants, and how certain that is.

It fits every law of `laws` by weighted least squares. A round's pass rate has a known standard error, so the sum of
squares is a χ². To account for noise that is correlated from round to round, every error is first multiplied by the
square root of `history.noise_factor`. Laws with different numbers k of parameters are compared by QAICc = χ² + 2k +
2k(k+1)/(n−k−1) with these errors (Burnham & Anderson, Model Selection, 2002).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import least_squares

from benchmarks.papers.laws import CONSTANT, EXPONENTIAL, LINE, MIXTURE, SIGMOID, Law, gating_law, oscillator_law
from grpo.dynamics.history import History, noise_factor
from grpo.types import Interval

Array = NDArray[np.float64]

# The information about a direction of parameter space is at least this, so its standard deviation is at most 1/√ of it.
LEAST_INFORMATION = 1e-4
# Intervals are computed from this many random draws of the parameters.
NUM_DRAWS = 400
# Curves of draws are computed for at most this many points at a time, since a law makes a dozen arrays of their size. A
# process keeps the memory of the largest ones, and a long run has thousands of rounds.
LARGEST_BLOCK = 2**15
# No draw may be less likely than this by the law's own likelihood (Wilks' theorem).
DRAWN_PROBABILITY = 1e-4
# A fit starts from at most this many of a law's guesses.
MOST_STARTS = 4
# Derivatives are finite differences over this share of a parameter, or of 1 if the parameter is smaller.
LEAST_MOVE = np.finfo(np.float64).eps ** 0.5


@dataclass(frozen=True)
class LawFit:
    """A fit is one law fitted to one history.

    free         [parameters] the law's free parameters at the optimum
    covariance   [parameters, parameters] covariance of the free parameters, from the curvature of χ²
    chi_square   Σ((value − law)/error)²
    residuals    [points] (value − law)/error
    """

    law: Law
    history: History
    free: Array
    covariance: Array
    chi_square: float
    residuals: Array

    @property
    def parameters(self) -> dict[str, float]:
        """Returns the law's readable parameters by name."""
        return dict(zip(self.law.names, map(float, self.law.read(self.free)), strict=True))

    @property
    def aicc(self) -> float:
        """Returns Akaike's criterion for small samples and correlated noise (QAICc).

        It is ∞ when there are too few points for the law.
        """
        n, k = len(self.history), len(self.free)
        return self.chi_square + 2 * k + 2 * k * (k + 1) / (n - k - 1) if n > k + 1 else float("inf")

    def predict(self, steps: Array, intervals: Array, lags: Array) -> Array:
        """Returns the fitted law's pass rates [points] at `steps`."""
        return self.law.predict(self.free, steps, intervals, lags)

    @cached_property
    def draws(self) -> Array:
        """Returns draws of the free parameters from their normal approximation, [`NUM_DRAWS`, parameters].

        The seed is fixed. Where a curve says little about a parameter, the approximation is too wide. So a draw that
        the measured curve contradicts is moved towards the optimum, by quarters, until it lies within the likelihood
        region.
        """
        generator = np.random.default_rng(0)
        values, vectors = np.linalg.eigh(self.covariance)
        scatter = generator.standard_normal((NUM_DRAWS, len(self.free))) * np.sqrt(np.maximum(values, 0)) @ vectors.T
        highest = self.chi_square + stats.chi2.isf(DRAWN_PROBABILITY, len(self.free))
        outside = np.arange(NUM_DRAWS)
        while len(outside := outside[~(self._chi_squares(self.free + scatter[outside]) <= highest)]):
            scatter[outside] *= 0.75
        return self.free + scatter

    def _chi_squares(self, frees: Array) -> Array:
        """Returns χ² [draws] of parameters [draws, parameters]."""
        history = self.history

        def of_block(block: Array) -> Array:
            predicted = self.law.predict(block, history.steps, history.intervals, history.lags)
            return np.sum(((history.values - predicted) / history.errors) ** 2, axis=-1)

        num_blocks = -(-len(frees) * len(history) // LARGEST_BLOCK)
        return np.concatenate([of_block(block) for block in np.array_split(frees, num_blocks)])

    def interval(self, function: Callable[[NDArray[np.float64]], float]) -> Interval:
        """Returns the value of `function` at the fitted free parameters, with a 95 % interval from the draws."""
        values = np.array([function(free) for free in self.draws])
        low, high = np.nanquantile(values, [0.025, 0.975])
        return Interval(float(function(self.free)), float(low), float(high))


def fit_law(law: Law, history: History) -> LawFit:
    """Fits `law` by least squares from its most promising guesses, and returns the best fit."""

    def residuals(free: Array) -> Array:
        return (law.predict(free, history.steps, history.intervals, history.lags) - history.values) / history.errors

    def jacobian(free: Array) -> Array:
        # Forward differences as SciPy takes them, of all parameters at once: a curve alone costs as much as ten.
        points = free + np.diag(LEAST_MOVE * np.where(free >= 0, 1.0, -1.0) * np.maximum(1.0, np.abs(free)))
        rows = residuals(np.vstack([free, points]))
        return ((rows[1:] - rows[0]) / (points.diagonal() - free)[:, None]).T

    guesses = np.asarray(law.guesses(history), float)
    starts = guesses[np.argsort((residuals(guesses) ** 2).sum(axis=1), kind="stable")][:MOST_STARTS]
    optima = [least_squares(residuals, start, jacobian, method="trf", max_nfev=200) for start in starts]
    best = min(optima, key=lambda optimum: optimum.cost)
    values, vectors = np.linalg.eigh(best.jac.T @ best.jac)
    covariance = (vectors / np.maximum(values, LEAST_INFORMATION)) @ vectors.T
    return LawFit(law, history, best.x, covariance, float(2 * best.cost), -residuals(best.x))


@dataclass(frozen=True, slots=True)
class Identification:
    """An identification says which laws a run's curve follows.

    fits        one fit of every law, best AICc first
    stiffness   κ of the oscillator, per optimizer step
    """

    fits: tuple[LawFit, ...]
    stiffness: Interval

    def fit(self, name: str) -> LawFit:
        """Returns the fit of one law. Raises StopIteration for a law that was not fitted."""
        return next(fit for fit in self.fits if fit.law.name == name)

    @property
    def weights(self) -> dict[str, float]:
        """Returns the Akaike weight of each law, which says how well the data support it. The weights add up to 1."""
        scores = np.array([fit.aicc for fit in self.fits])
        relative = np.exp(-(scores - scores.min()) / 2)
        return dict(zip([fit.law.name for fit in self.fits], map(float, relative / relative.sum()), strict=True))


def laws(momentum: float) -> tuple[Law, ...]:
    """Returns all laws that are fitted: the oscillator at momentum μ, its rivals (gating as under GRPO), line and
    constant."""
    return (oscillator_law(momentum), EXPONENTIAL, MIXTURE, gating_law(1.0), SIGMOID, LINE, CONSTANT)


def identify(history: History, momentum: float) -> Identification:
    """Fits all laws to a history."""
    history = replace(history, errors=history.errors * np.sqrt(noise_factor(history.values)))
    fits = sorted((fit_law(law, history) for law in laws(momentum)), key=lambda fit: fit.aicc)
    model = next(fit for fit in fits if fit.law.name == "oscillator")
    return Identification(tuple(fits), model.interval(lambda free: float(model.law.read(free)[2])))
