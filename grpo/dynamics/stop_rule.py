"""This module decides whether a run stops because it has little left to gain."""

from __future__ import annotations

from dataclasses import dataclass

from grpo.dynamics.forecast import Forecast

# A run has little left to gain when the probability of gaining more is below this.
UNLIKELY = 0.1


@dataclass(frozen=True, slots=True)
class StopRule:
    """A stop rule ends a run that has little left to gain.

    The run stops once a gain above `least_gain` was unlikely (`UNLIKELY`) for `patience` decisions in a row, but not
    before `fewest_steps` optimizer steps. With `least_gain` 0 the run never stops.
    """

    least_gain: float
    patience: int
    fewest_steps: int

    def next(self, ahead: Forecast | None, step: int, rounds_below: int) -> tuple[bool, int]:
        """Returns whether to stop now, and the number of decisions in a row with too small a gain (`rounds_below`).

        Without a forecast (`ahead` is None when there are too few rounds) the count starts anew.
        """
        below = self.least_gain > 0 and ahead is not None and ahead.chance(self.least_gain) < UNLIKELY
        count = rounds_below + 1 if below else 0
        return count >= self.patience and step >= self.fewest_steps, count
