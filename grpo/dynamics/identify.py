"""Which law a reward curve follows, with which constants, and how sure that is.

Every law of `grpo.dynamics.laws` is fitted by weighted least squares: a round's pass rate has a known standard
error, so the sum of squares is a χ² and laws of different size compare by AICc = χ² + 2k + 2k(k+1)/(n−k−1). A
curve counts as identified when a law that levels off beats the straight line and its plateau is known well enough
to act on. Until then the answer is "not identified yet", with the interval there is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import least_squares

from grpo.dynamics.laws import (
    CONSTANT,
    EXPONENTIAL,
    LINE,
    MIXTURE,
    SATURATION,
    SIGMOID,
    History,
    Law,
    gating_law,
    oscillator_law,
)
from grpo.dynamics.oscillator import oscillator
from grpo.types import Interval

Array = NDArray[np.float64]

# Directions of parameter space that the data say less about than this have a standard deviation of 1/√ of it.
LEAST_INFORMATION = 1e-4
# A law that levels off must beat the straight line by this much AICc before the curve counts as bent.
BEND_AICC = 4.0
# Half the width of the plateau's 95 % interval below which it counts as known, in pass rate.
PLATEAU_HALF_WIDTH = 0.15
NUM_DRAWS = 400
# A law with less of the Akaike weight than this is left out.
LEAST_SUPPORT = 0.02
MOST_STARTS = 4


@dataclass(frozen=True)
class LawFit:
    """One law fitted to one history.

    free         [parameters] the law's free parameters at the optimum
    covariance   [parameters, parameters] theirs, from the curvature of χ²
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
        return dict(zip(self.law.names, map(float, self.law.read(self.free)), strict=True))

    @property
    def aicc(self) -> float:
        """Akaike's criterion for small samples; ∞ when there are too few points for the law."""
        n, k = len(self.history), len(self.free)
        return self.chi_square + 2 * k + 2 * k * (k + 1) / (n - k - 1) if n > k + 1 else float("inf")

    @property
    def r_squared(self) -> float:
        """Share of the curve's weighted variance that the law explains."""
        weights = self.history.errors**-2
        mean = weights @ self.history.values / weights.sum()
        total = weights @ (self.history.values - mean) ** 2
        return float(1 - self.chi_square / total) if total else float("nan")

    @property
    def misfit_p(self) -> float:
        """Probability of a χ² this large when the law and the errors are right: small says they are not."""
        freedom = len(self.history) - len(self.free)
        return float(stats.chi2.sf(self.chi_square, freedom)) if freedom > 0 else float("nan")

    @property
    def pattern_p(self) -> float:
        """Two-sided p of the residuals' lag-1 correlation under independence: small says the law's shape is off."""
        n = len(self.residuals)
        centered = self.residuals - self.residuals.mean()
        spread = centered @ centered
        if n < 4 or not spread:
            return float("nan")
        z = (centered[1:] @ centered[:-1] / spread + 1 / n) * np.sqrt(n)
        return float(2 * stats.norm.sf(abs(z)))

    def predict(self, steps: Array, delays: Array) -> Array:
        return self.law.predict(self.free, steps, delays)

    @cached_property
    def draws(self) -> Array:
        """[`NUM_DRAWS`, parameters] free parameters from their normal approximation; always the same ones. Where a
        short curve leaves a parameter open they reach far, and intervals made of them are wide rather than bold."""
        generator = np.random.default_rng(0)
        values, vectors = np.linalg.eigh(self.covariance)
        scatter = generator.standard_normal((NUM_DRAWS, len(self.free))) * np.sqrt(np.maximum(values, 0))
        return self.free + scatter @ vectors.T

    def interval(self, function) -> Interval:
        """Estimate and 95 % interval of a number computed from the free parameters, by the draws."""
        found = np.array([function(each) for each in self.draws])
        low, high = np.nanquantile(found, [0.025, 0.975])
        return Interval(float(function(self.free)), float(low), float(high))


def fit_law(law: Law, history: History) -> LawFit:
    """Least squares from the law's most promising guesses; the best one."""

    def residuals(free: Array) -> Array:
        return (law.predict(free, history.steps, history.delays) - history.values) / history.errors

    guesses = sorted(np.asarray(law.guesses(history), float), key=lambda guess: np.sum(residuals(guess) ** 2))
    found = [least_squares(residuals, guess, method="trf", max_nfev=200) for guess in guesses[:MOST_STARTS]]
    best = min(found, key=lambda result: result.cost)
    values, vectors = np.linalg.eigh(best.jac.T @ best.jac)
    covariance = (vectors / np.maximum(values, LEAST_INFORMATION)) @ vectors.T
    return LawFit(law, history, best.x, covariance, float(2 * best.cost), -residuals(best.x))


@dataclass(frozen=True, slots=True)
class Identification:
    """What a run's curve says about the model, rivals beside it.

    fits            every law, best AICc first
    identified      a plateau is in sight and known to ± `PLATEAU_HALF_WIDTH`
    reason          why, or why not, in a line
    plateau         P*, of all laws that level off, each by its Akaike weight (median)
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
        """The fit of one law. Raises KeyError for a law that was not fitted."""
        for each in self.fits:
            if each.law.name == name:
                return each
        raise KeyError(name)

    @property
    def weights(self) -> dict[str, float]:
        """Akaike weights: how much each law is supported, adding up to 1."""
        scores = np.array([each.aicc for each in self.fits])
        relative = np.exp(-(scores - scores.min()) / 2)
        return dict(zip([each.law.name for each in self.fits], map(float, relative / relative.sum()), strict=True))


LEVELLING = ("oscillator", "exponential", "mixture", "gating", "sigmoid", "saturation")
FEWEST_POINTS = 6


def laws(momentum: float, exponent: float) -> tuple[Law, ...]:
    """Everything that is fitted: the model at momentum μ, its rivals (gating at dial α), and nothing happening."""
    return (oscillator_law(momentum), EXPONENTIAL, MIXTURE, gating_law(exponent), SIGMOID, SATURATION, LINE, CONSTANT)


def identify(history: History, momentum: float, exponent: float = 1.0) -> Identification | None:
    """Fits all laws. None with fewer than `FEWEST_POINTS` rounds."""
    if len(history) < FEWEST_POINTS:
        return None
    fits = sorted((fit_law(law, history) for law in laws(momentum, exponent)), key=lambda each: each.aicc)
    best = levelling(fits)[0]
    flat = min(each.aicc for each in fits if each.law.name not in LEVELLING)
    ends = [plateau_of(fit.law, free) for fit, draws in supported(levelling(fits)) for free in draws]
    plateau = Interval(*map(float, np.quantile(ends, [0.5, 0.025, 0.975])))
    model = next(each for each in fits if each.law.name == "oscillator")
    lag = float(history.delays[-1])
    identified, reason = _verdict(best, flat, plateau, fits)
    return Identification(
        fits=tuple(fits),
        identified=identified,
        reason=reason,
        plateau=plateau,
        damping_ratio=model.interval(lambda free: damping_ratio(free, momentum, lag)),
        stiffness=model.interval(lambda free: float(np.exp(free[2]))),
    )


def supported(fits: Sequence[LawFit]) -> list[tuple[LawFit, Array]]:
    """These laws, each with as many of `NUM_DRAWS` draws [draws, parameters] as its Akaike weight gives it: what is
    unknown of the parameters and of the law together."""
    scores = np.array([each.aicc for each in fits])
    shares = np.exp(-(scores - scores.min()) / 2)
    shares = np.where(shares < LEAST_SUPPORT * shares.sum(), 0.0, shares)
    counts = np.round(NUM_DRAWS * shares / shares.sum()).astype(int)
    return [(fit, fit.draws[:count]) for fit, count in zip(fits, counts, strict=True) if count]


def levelling(fits: Sequence[LawFit]) -> list[LawFit]:
    """Those that end in a plateau."""
    return [each for each in fits if each.law.name in LEVELLING]


def plateau_of(law: Law, free: Array) -> float:
    """Where a law that levels off ends."""
    names = {"plateau", "ceiling"} & set(law.names)
    return float(law.read(free)[law.names.index(names.pop())])


def damping_ratio(free: Array, momentum: float, lag: float) -> float:
    """ζ of the oscillator law's free parameters at refresh interval `lag`."""
    stiffness, inertia = np.exp(np.clip(free[2:], -60, 60))
    model = oscillator(momentum, float(stiffness), lag)
    mass = model.mass - (1 + momentum) / 2 + inertia
    return float(model.damping / (2 * np.sqrt(stiffness * mass)))


def _verdict(best: LawFit, flat: float, plateau: Interval, fits: Sequence[LawFit]) -> tuple[bool, str]:
    if best.aicc > flat - BEND_AICC:
        name = "has not moved" if fits[0].law is CONSTANT else "has not bent"
        return (
            False,
            f"not identified yet: the curve {name}; plateau anywhere in [{plateau.low:.2f}, {plateau.high:.2f}]",
        )
    if plateau.high - plateau.low > 2 * PLATEAU_HALF_WIDTH:
        return False, f"not identified yet: plateau anywhere in [{plateau.low:.2f}, {plateau.high:.2f}]"
    return True, f"{best.law.name} law, plateau {plateau.value:.2f} [{plateau.low:.2f}, {plateau.high:.2f}]"
