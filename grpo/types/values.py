"""A mean, an interval, and when two numbers count as equal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# A share of what was added up: sixteen times the distance from 1 to the next float64.
ROUNDING = 16 * 2.0**-52


def alike(values: Sequence[float], magnitude: float = 0.0) -> bool:
    """Whether all `values` are equal but for float rounding, as .3 and .1 + .2 are.

    A reward is a weighted sum, and its weights, parts, products, sum and penalty are all rounded. Each reward is off by
    at most four units in the last place of what was added up, so two that are equal on paper differ by at most eight.
    `ROUNDING` allows twice that, as a share of the largest value. `magnitude` is what was added up where it is larger
    than the values themselves, because parts cancelled. The bound is relative: 1e-12 and 2e-12 differ.
    """
    if not values:
        return True
    low, high = min(values), max(values)
    return high - low <= ROUNDING * max(abs(low), abs(high), magnitude)


@dataclass(frozen=True, slots=True)
class Mean:
    """A sum and a count: can be added over micro-batches, ranks and steps, and divided once."""

    total: float
    count: float

    def __add__(self, other: Mean) -> Mean:
        return Mean(self.total + other.total, self.count + other.count)

    @property
    def value(self) -> float:
        """The mean, or NaN of nothing."""
        return self.total / self.count if self.count else float("nan")

    def effective_fraction(self, squares: Mean) -> float:
        """The share of samples that weights of this mean leave effective (Kish: (Σw)² / (n·Σw²)), or NaN of nothing.

        `squares` is the mean of the squared weights. Equal weights leave 1.
        """
        return self.value**2 / squares.value if squares.total else float("nan")


@dataclass(frozen=True, slots=True)
class Interval:
    """A point estimate and its confidence interval, in the estimate's own unit."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"
