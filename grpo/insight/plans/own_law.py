"""This module fits a law of one's own to a reward curve, and predicts by it.

A law is a function of the optimizer steps, and returns a pass rate for each. Its other arguments are the law's
parameters. Their defaults are where the fit begins:

    def rise(steps, start=0.2, end=0.8, time=50.0):
        return end + (start - end) * np.exp(-steps / time)

It is fitted by weighted least squares, since the standard errors of rounds are known. Laws with different numbers k of
parameters are compared by AICc = χ² + 2k + 2k(k+1)/(n−k−1), where noise that is correlated from round to round has
counted (Burnham & Anderson, Model Selection, 2002).
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import least_squares

from grpo.config.errors import UserError, first_line, require
from grpo.dynamics.history import History, noise_factor
from grpo.types.imported import imported

Array = NDArray[np.float64]
Curve = Callable[..., Array]

MOST_EVALUATIONS = 2000
# Derivatives are taken over this share of a parameter, or of 1 if the parameter is smaller.
MOVE = 1e-6
# A direction of the parameters that the curve says less about than this, in the best known direction's units, is free.
LEAST_INFORMATION = 1e-12


@dataclass(frozen=True, slots=True)
class Law:
    """A law has the `path` by which it was imported, and the names and first values of its parameters."""

    path: str
    function: Curve
    first: dict[str, float]

    @property
    def name(self) -> str:
        return self.path.rpartition(":")[2]

    def rates(self, steps: Array, values: Array) -> Array:
        """Returns the pass rates [points]. Raises UserError where the law returns something else."""
        try:
            with np.errstate(all="ignore"):
                rates = np.asarray(self.function(steps.copy(), *map(float, values)))
                require(not np.iscomplexobj(rates), f"law={self.path} returns complex numbers: return pass rates")
                rates = np.asarray(rates, float)
        except UserError:
            raise
        except (Exception, SystemExit) as error:  # a person's function may raise anything
            raise UserError(f"law={self.path} fails: {type(error).__name__}: {first_line(error)}") from error
        require(
            rates.shape == steps.shape,
            f"law={self.path} returns the shape {rates.shape} for {len(steps)} steps: return one pass rate for each",
        )
        return rates


@dataclass(frozen=True, slots=True)
class LawFit:
    """A fit is a law with the parameters that fit a history best.

    values      [parameters]
    covariance  [parameters, parameters] of these
    chi_square  Σ((value − law)/error)²
    points      number of rounds
    """

    law: Law
    values: Array
    covariance: Array
    chi_square: float
    points: int

    @property
    def freedom(self) -> int:
        return self.points - len(self.values)

    @property
    def probability(self) -> float:
        """Returns the probability of a χ² as large as this, if the law is right."""
        return float(stats.chi2.sf(self.chi_square, self.freedom))

    @property
    def aicc(self) -> float:
        k = len(self.values)
        return self.chi_square + 2 * k + 2 * k * (k + 1) / (self.points - k - 1)

    @property
    def errors(self) -> Array:
        """Returns the parameters' standard errors. A law that fits badly has larger ones."""
        return np.sqrt(self.covariance.diagonal())

    def band(self, steps: Array, coverage: float = 0.9) -> tuple[Array, Array, Array]:
        """Returns the law's pass rates at `steps`, and the ends of their interval if the law is right."""
        rates, slopes = self.law.rates(steps, self.values), _slopes(self.law, steps, self.values)
        spread = np.sqrt(np.einsum("pi,ij,pj->p", slopes, self.covariance, slopes)) * stats.norm.ppf((1 + coverage) / 2)
        return rates, rates - spread, rates + spread


def own_law(path: str) -> Law:
    """Imports the law at ``"file.py:function"`` or ``"package.module:function"``. Raises UserError for what is none."""
    require(":" in path, f"law={path} is no import path: give file.py:function or package.module:function")
    try:
        function = imported(path)
        parameters = [*inspect.signature(function).parameters.values()][1:]
    except (Exception, SystemExit) as error:  # a module may raise anything while it is imported
        raise UserError(f"law={path} cannot be imported: {type(error).__name__}: {first_line(error)}") from error
    first = {one.name: one.default for one in parameters}
    wrong = [name for name, value in first.items() if isinstance(value, bool) or not isinstance(value, int | float)]
    require(
        bool(first) and not wrong,
        f"law={path} needs a number as default of {wrong[0] if wrong else 'a parameter after the steps'}, where the "
        "fit begins: def law(steps, start=0.2, end=0.8, time=50.0)",
    )
    return Law(path, function, {name: float(value) for name, value in first.items()})


def fit_law(law: Law, history: History) -> LawFit:
    """Fits a law to a history. Raises UserError for a curve that cannot decide its parameters."""
    errors = history.errors * noise_factor(history.values) ** 0.5
    first, points = np.array([*law.first.values()]), len(history)
    require(
        points > len(first) + 1,
        f"law={law.path} has {len(first)} parameters, and {points} rounds decide at most {points - 2}: fix some",
    )
    start = law.rates(history.steps, first)
    require(
        bool(np.isfinite(start).all()),
        f"law={law.path} is not finite at its defaults ({_words(law, first)}): give others, where the fit can begin",
    )

    def residuals(values: Array) -> Array:
        return np.nan_to_num((law.rates(history.steps, values) - history.values) / errors, nan=1e6, posinf=1e6)

    best = least_squares(residuals, first, x_scale="jac", max_nfev=MOST_EVALUATIONS)
    slopes = _slopes(law, history.steps, best.x) / errors[:, None]
    lengths = np.linalg.norm(slopes, axis=0)
    for name, length in zip(law.first, lengths, strict=True):
        require(
            length > 0,
            f"law={law.path}: {name} changes nothing where the fit ends ({_words(law, best.x)}): give other defaults, "
            "or leave it out",
        )
    require(best.status > 0, f"law={law.path} could not be fitted: give defaults that are nearer to the curve")
    information, directions = np.linalg.eigh((slopes / lengths).T @ (slopes / lengths))
    known = np.maximum(information, LEAST_INFORMATION * information.max())
    chi_square = float(2 * best.cost)
    covariance = (directions / known) @ directions.T / np.outer(lengths, lengths)
    return LawFit(law, best.x, covariance * max(1.0, chi_square / (points - len(first))), chi_square, points)


def _slopes(law: Law, steps: Array, values: Array) -> Array:
    """Returns the derivatives of the law's pass rates by its parameters, [points, parameters]."""
    moves = np.diag(MOVE * np.maximum(1.0, np.abs(values)))
    columns = [(law.rates(steps, values + move) - law.rates(steps, values - move)) / (2 * move.sum()) for move in moves]
    return np.array(columns).T


def _words(law: Law, values: Array) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in zip(law.first, values, strict=True))
