"""This module defines a mean, an interval, and when numbers count as equal in spite of float rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# The rounding error that is allowed, relative to what was added up: sixteen times the distance from 1 to the next
# float64.
ROUNDING = 16 * 2.0**-52


def alike(values: Sequence[float], magnitude: float = 0.0) -> bool:
    """Tells whether all `values` are equal up to float rounding, as .3 and .1 + .2 are.

    A reward is a weighted sum, and its weights, parts, products, sum and penalty are all rounded. Each reward is off by
    at most four units in the last place of what was added up. Two rewards that are equal on paper therefore differ by
    at most eight units. `ROUNDING` allows twice that, relative to the largest value. When parts cancel, more was added
    up than the values show; `magnitude` is then that larger amount. The bound is relative: 1e-12 and 2e-12 differ.
    """
    if not values:
        return True
    low, high = min(values), max(values)
    return high - low <= ROUNDING * max(abs(low), abs(high), magnitude)


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean is kept as a sum and a count, so that it can be added over micro-batches, ranks and steps."""

    total: float
    count: float

    def __add__(self, other: Mean) -> Mean:
        return Mean(self.total + other.total, self.count + other.count)

    @property
    def value(self) -> float:
        """Returns the mean itself, which is NaN when the count is 0."""
        return self.total / self.count if self.count else float("nan")

    def effective_fraction(self, squares: Mean) -> float:
        """Returns the effective sample size as a fraction of n, for importance weights w with this mean.

        `squares` is the mean of the squared weights. The formula is Kish's, (Σw)² / (n·Σw²). Equal weights give 1.
        Without any weights the result is NaN.
        """
        return self.value**2 / squares.value if squares.total else float("nan")


@dataclass(frozen=True, slots=True)
class Interval:
    """An interval is a point estimate with its confidence bounds, all in the estimate's unit."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"
