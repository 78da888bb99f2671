"""This module identifies which law a reward curve follows, with which constants, and how certain that is.

Every law of `grpo.dynamics.laws` is fitted by weighted least squares. A round's pass rate has a known standard error,
so the sum of squares is a χ². To account for noise that is correlated from round to round, every error is first
multiplied by the square root of `history.noise_factor`. Laws with different numbers k of parameters are compared by
QAICc = χ² + 2k + 2k(k+1)/(n−k−1) with these errors (Burnham & Anderson, Model Selection, 2002).

A curve counts as identified when a law that levels off beats the straight line, also if line and law may wander
(`wander`), its plateau is known well enough to act on, and its residuals show no pattern. Where the oscillator is the
law, its stiffness must be known too. Until then the result says "not identified yet" and why. The laws do not forecast
the curve: `forecast` does, by the curve's trend.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import least_squares

from grpo.dynamics.history import noise_factor
from grpo.dynamics.laws import (
    CONSTANT,
    EXPONENTIAL,
    LINE,
    MIXTURE,
    SIGMOID,
    History,
    Law,
    gating_law,
    largest_stiffness,
    oscillator_law,
)
from grpo.dynamics.oscillator import held_coefficients
from grpo.dynamics.wander import NUM_PARAMETERS, deviances
from grpo.types import Interval

Array = NDArray[np.float64]

# The information about a direction of parameter space is at least this, so its standard deviation is at most 1/√ of it.
LEAST_INFORMATION = 1e-4
# A law that levels off must beat the straight line by this much AICc before the curve counts as bent.
BEND_AICC = 4.0
# And by this much, with wander for both, before it counts as more than wander (benchmarks/flat_curves.py).
WANDER_AICC = 8.0
# The plateau counts as known when half the width of its 95 % interval is at most this, in pass rate.
PLATEAU_HALF_WIDTH = 0.15
# The stiffness counts as known when the ends of its 95 % interval differ by at most this factor.
STIFFNESS_FACTOR = 4.0
# A law does not count as the curve's if the size or the correlation of its residuals is less likely than this.
LEAST_PROBABILITY = 0.01
# Intervals are computed from this many random draws of the parameters.
NUM_DRAWS = 400
# Curves of draws are computed for at most this many points at a time, since a law makes a dozen arrays of their size. A
# process keeps the memory of the largest ones, and a long run has thousands of rounds.
LARGEST_BLOCK = 2**15
# No draw may be less likely than this by the law's own likelihood (Wilks' theorem).
DRAWN_PROBABILITY = 1e-4
# A law with a smaller share of the Akaike weight than this is left out.
LEAST_SUPPORT = 0.02
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

    @property
    def r_squared(self) -> float:
        """Returns the share of the curve's weighted variance that the law explains."""
        weights = self.history.errors**-2
        mean = weights @ self.history.values / weights.sum()
        total = weights @ (self.history.values - mean) ** 2
        return float(1 - self.chi_square / total) if total else float("nan")

    @property
    def misfit_p(self) -> float:
        """Returns the probability of a χ² at least this large if law and errors are right. If small, they are not."""
        freedom = len(self.history) - len(self.free)
        return float(stats.chi2.sf(self.chi_square, freedom)) if freedom > 0 else float("nan")

    @property
    def pattern_p(self) -> float:
        """Returns the two-sided p value of the residuals' lag-1 correlation under independence.

        A small p value says that the law has the wrong shape.
        """
        n = len(self.residuals)
        centered = self.residuals - self.residuals.mean()
        spread = centered @ centered
        if n < 4 or not spread:
            return float("nan")
        z = (centered[1:] @ centered[:-1] / spread + 1 / n) * np.sqrt(n)
        return float(2 * stats.norm.sf(abs(z)))

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

    def interval(self, function: Callable[[Array], Array]) -> Interval:
        """Returns the value of `function` at the fitted free parameters, with a 95 % interval from the draws.

        The function maps free parameters [draws, parameters] to values [draws].
        """
        low, high = np.nanquantile(function(self.draws), [0.025, 0.975])
        return Interval(float(function(self.free[None])[0]), float(low), float(high))


def fit_law(law: Law, history: History) -> LawFit:
    """Fits `law` by least squares from its most promising guesses, and returns the best fit."""

    def residuals(free: Array) -> Array:
        return (law.predict(free, history.steps, history.intervals, history.lags) - history.values) / history.errors

    # SciPy asks for the derivatives at the parameters of its last residuals, unless it rejects these parameters.
    asked: list[Array] = []

    def first_row(free: Array) -> Array:
        # Forward differences as SciPy takes them, of all parameters at once: a curve alone costs as much as ten.
        points = free + np.diag(LEAST_MOVE * np.where(free >= 0, 1.0, -1.0) * np.maximum(1.0, np.abs(free)))
        rows = residuals(np.vstack([free, points]))
        asked[:] = free.copy(), ((rows[1:] - rows[0]) / (points.diagonal() - free)[:, None]).T
        return rows[0]

    def jacobian(free: Array) -> Array:
        if not np.array_equal(free, asked[0]):
            first_row(free)
        return asked[1]

    guesses = np.asarray(law.guesses(history), float)
    starts = guesses[np.argsort((residuals(guesses) ** 2).sum(axis=1), kind="stable")][:MOST_STARTS]
    optima = [least_squares(first_row, start, jacobian, method="trf", max_nfev=200) for start in starts]
    best = min(optima, key=lambda optimum: optimum.cost)
    values, vectors = np.linalg.eigh(best.jac.T @ best.jac)
    covariance = (vectors / np.maximum(values, LEAST_INFORMATION)) @ vectors.T
    return LawFit(law, history, best.x, covariance, float(2 * best.cost), -residuals(best.x))


@dataclass(frozen=True, slots=True)
class Identification:
    """An identification says which laws a run's curve follows, with the model's constants.

    fits            one fit of every law, best AICc first
    identified      whether the curve bends towards a plateau that is known to ± `PLATEAU_HALF_WIDTH`
    reason          why the curve is identified or not, in one line
    plateau         P*, the median over all laws that level off, weighted by their Akaike weights
    damping_ratio   ζ of the oscillator at the present τ
    stiffness       κ of the oscillator, per optimizer step
    """

    fits: tuple[LawFit, ...]
    identified: bool
    reason: str
    plateau: Interval
    damping_ratio: Interval
    stiffness: Interval

    def fit(self, name: str) -> LawFit:
        """Returns the fit of one law. Raises KeyError for a law that was not fitted."""
        for fit in self.fits:
            if fit.law.name == name:
                return fit
        raise KeyError(name)

    @property
    def weights(self) -> dict[str, float]:
        """Returns the Akaike weight of each law, which says how well the data support it. The weights add up to 1."""
        scores = np.array([fit.aicc for fit in self.fits])
        relative = np.exp(-(scores - scores.min()) / 2)
        return dict(zip([fit.law.name for fit in self.fits], map(float, relative / relative.sum()), strict=True))


LEVELLING = ("oscillator", "exponential", "mixture", "gating", "sigmoid")
FEWEST_POINTS = 6


def laws(momentum: float, exponent: float | None, mean_exponent: float = 0.0) -> tuple[Law, ...]:
    """Returns all laws that are fitted: the oscillator at momentum μ, its rivals, line and constant.

    The gating law follows from α (`exponent`) and β (`mean_exponent`) of the advantage, and is left out without an α.
    """
    gating = () if exponent is None else (gating_law(exponent, mean_exponent),)
    return (oscillator_law(momentum), EXPONENTIAL, MIXTURE, *gating, SIGMOID, LINE, CONSTANT)


def identify(
    history: History, momentum: float, exponent: float | None = 1.0, mean_exponent: float = 0.0
) -> Identification | None:
    """Fits all laws to a history. Returns None if it has fewer than `FEWEST_POINTS` rounds."""
    if len(history) < FEWEST_POINTS:
        return None
    sampling_errors = history.errors
    history = replace(history, errors=sampling_errors * np.sqrt(noise_factor(history.values)))
    fits = sorted((fit_law(law, history) for law in laws(momentum, exponent, mean_exponent)), key=lambda fit: fit.aicc)
    best = levelling(fits)[0]
    flat = min(fit.aicc for fit in fits if fit.law.name not in LEVELLING)
    ends = np.concatenate([plateau_of(fit.law, draws) for fit, draws in supported(levelling(fits))])
    plateau = Interval(*map(float, np.quantile(ends, [0.5, 0.025, 0.975])))
    model = next(fit for fit in fits if fit.law.name == "oscillator")
    interval, lag = float(history.intervals[-1]), float(history.lags[-1])
    stiffness = model.interval(lambda free: model.law.read(free)[..., 2])
    doubt = (
        _doubt(best, flat, plateau, fits)
        or _wanders(levelling(fits), sampling_errors)
        or (_stiffness_doubt(stiffness, momentum) if best is model else "")
    )
    known = f"{best.law.name} law, plateau {plateau.value:.0%} [{plateau.low:.0%}, {plateau.high:.0%}]"
    return Identification(
        fits=tuple(fits),
        identified=not doubt,
        reason=doubt or known,
        plateau=plateau,
        damping_ratio=model.interval(lambda free: damping_ratio(model.law, free, momentum, interval, lag)),
        stiffness=stiffness,
    )


def supported(fits: Sequence[LawFit]) -> list[tuple[LawFit, Array]]:
    """Divides `NUM_DRAWS` draws among the fits in proportion to their Akaike weights.

    Returns (fit, its draws [draws, parameters]) for each fit with draws. Together the draws show the uncertainty of the
    parameters and of the choice of law.
    """
    scores = np.array([fit.aicc for fit in fits])
    shares = np.exp(-(scores - scores.min()) / 2)
    shares = np.where(shares < LEAST_SUPPORT * shares.sum(), 0.0, shares)
    counts = np.round(NUM_DRAWS * shares / shares.sum()).astype(int)
    return [(fit, fit.draws[:count]) for fit, count in zip(fits, counts, strict=True) if count]


def levelling(fits: Sequence[LawFit]) -> list[LawFit]:
    """Returns the fits of the laws that level off to a plateau."""
    return [fit for fit in fits if fit.law.name in LEVELLING]


def plateau_of(law: Law, free: Array) -> Array:
    """Returns the plateaus [draws] of a law that levels off, for free parameters [draws, parameters]."""
    names = {"plateau", "ceiling"} & set(law.names)
    return law.read(free)[..., law.names.index(names.pop())]


def damping_ratio(law: Law, free: Array, momentum: float, interval: float, lag: float = 0.0) -> Array:
    """Computes the damping ratios ζ [draws] from the oscillator law's free parameters [draws, parameters], at this
    interval τ and lag."""
    stiffness, inertia = np.moveaxis(law.read(free)[..., 2:], -1, 0)
    mass, damping = held_coefficients(momentum, stiffness, interval, lag)
    return damping / (2 * np.sqrt(stiffness * (mass - (1 + momentum) / 2 + inertia)))


def _doubt(best: LawFit, flat: float, plateau: Interval, fits: Sequence[LawFit]) -> str:
    """Says why the curve is not identified, or returns "". `flat` is the best AICc of the laws without a plateau."""
    if best.aicc > flat - BEND_AICC:
        moved = "has not moved" if fits[0].law is CONSTANT else "runs straight, so where it levels off is open"
        return f"not identified yet: the curve {moved}"
    if plateau.high - plateau.low > 2 * PLATEAU_HALF_WIDTH:
        ends = f"{plateau.low:.0%} and {plateau.high:.0%}"
        return f"not identified yet: laws that fit as well level off anywhere between {ends}"
    if min(best.misfit_p, best.pattern_p) < LEAST_PROBABILITY:
        return f"not identified: the {best.law.name} law fits best, and misses the curve by more than noise"
    return ""


def _wanders(fits: Sequence[LawFit], errors: Array) -> str:
    """Says that a curve that wanders about a level or a line explains the data as well as these fits, or returns ""."""
    history = fits[0].history
    curves = np.array([fit.predict(history.steps, history.intervals, history.lags) for fit in fits])
    of_laws, of_lines = deviances(history.values, errors, curves)
    law = min(map(_aicc, of_laws, (len(fit.free) for fit in fits), [len(history)] * len(fits)))
    line = min(_aicc(deviance, number, len(history)) for deviance, number in zip(of_lines, (1, 2), strict=True))
    if law < line - WANDER_AICC:
        return ""
    return "not identified yet: a curve that wanders as this one does explains it as well as a law"


def _aicc(deviance: float, number: int, points: int) -> float:
    """Returns the AICc of a curve of `number` parameters that wanders, or ∞ for too few points."""
    k = number + NUM_PARAMETERS
    return deviance + 2 * k + 2 * k * (k + 1) / (points - k - 1) if points > k + 1 else float("inf")


def _stiffness_doubt(stiffness: Interval, momentum: float) -> str:
    """Says that the oscillator's stiffness is not known well enough to act on, or returns "".

    A stiffness near the largest that a law allows is as good as unknown.
    """
    if stiffness.high <= min(STIFFNESS_FACTOR * stiffness.low, largest_stiffness(momentum) / 2):
        return ""
    ends = f"{stiffness.low:.2g} and {stiffness.high:.2g}"
    return f"not identified yet: the oscillator law fits best, and its stiffness lies anywhere between {ends}"
