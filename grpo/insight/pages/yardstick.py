"""This module holds the two yardsticks of a comparison: pass@1, and the mean reward where nothing else was measured."""

import math
from dataclasses import dataclass

from grpo.types import Interval


@dataclass(frozen=True, slots=True)
class Yardstick:
    """A yardstick says what variants are compared by, and formats its values and changes.

    name       of the value
    rate       the same for single problems
    unit       of changes, in sentences; `change_unit` is longer, for axes
    bounds     the smallest and the largest value possible
    meaning    of the value, as a sentence
    """

    name: str
    rate: str
    unit: str
    change_unit: str
    bounds: tuple[float, float]
    meaning: str

    @property
    def in_percent(self) -> bool:
        return self.bounds == (0.0, 1.0)

    @property
    def factor(self) -> float:
        """Returns the number that turns a change into one of `change_unit`."""
        return 100.0 if self.in_percent else 1.0

    @property
    def change_bounds(self) -> tuple[float, float]:
        """Returns the smallest and the largest change possible."""
        low, high = self.bounds
        return low - high, high - low

    def value(self, value: float) -> str:
        """Formats a value.

        >>> PASS_RATE.value(0.5), MEAN_REWARD.value(4.125)
        ('50.0%', '4.12')
        """
        return f"{value:.1%}" if self.in_percent else f"{value:.3g}"

    def change(self, change: float) -> str:
        """Formats a change with its sign. A change that rounds to 0 has no sign.

        >>> PASS_RATE.change(0.0204), MEAN_REWARD.change(-1.5), PASS_RATE.change(-0.0004), MEAN_REWARD.change(0.0)
        ('+2.0', '-1.5', '0.0', '0')
        """
        text = f"{self.factor * change:+.1f}" if self.in_percent else f"{change:+.3g}"
        return text if float(text) else text[1:]

    def values(self, interval: Interval) -> str:
        """Formats a value, with its interval in brackets if it has a width."""
        return _spelled(*map(self.value, (interval.value, interval.low, interval.high)))

    def changes(self, interval: Interval) -> str:
        """Formats a change, with its interval in brackets if it has a width."""
        return _spelled(*map(self.change, (interval.value, interval.low, interval.high)))


def _spelled(value: str, low: str, high: str) -> str:
    return value if low == high else f"{value} [{low}, {high}]"


PASS_RATE = Yardstick(
    *("pass@1", "pass rate", "points", "percentage points", (0.0, 1.0)),
    "The share of held-out problems solved at the first try.",
)
MEAN_REWARD = Yardstick(
    *("mean reward", "mean reward", "of reward", "mean reward", (-math.inf, math.inf)),
    "The mean reward of completions of held-out problems.",
)
