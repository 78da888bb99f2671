"""A run as it was logged: what the laws are fitted to and what a diagnosis looks at, whoever wrote the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from grpo.dynamics.history import Counts
from grpo.dynamics.laws import History

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Series:
    """One metric: optimizer steps [points], ascending, and its values [points]."""

    steps: Array
    values: Array

    def __len__(self) -> int:
        return len(self.steps)

    def between(self, first: float, last: float) -> Series:
        """The points of first ≤ step ≤ last."""
        kept = (self.steps >= first) & (self.steps <= last)
        return Series(self.steps[kept], self.values[kept])


NOTHING = Series(np.empty(0), np.empty(0))


@dataclass(frozen=True, slots=True)
class RunLog:
    """Everything that is known of a run, with our names of metrics.

    history     the reward curve
    series      metric → its series; metrics that were not logged are absent
    counts      [rounds] (correct, group size) → groups of each round, or empty where the log has none
    held_out    pass rate on held-out problems
    momentum    μ, or Adam's β₁
    exponent    the dial's α
    num_steps   optimizer steps that the run was to take
    staleness   how the pipeline makes staleness: a key of `thresholds.RADII`
    decisions   (optimizer step, reason) of each plan that the scheduler changed
    """

    history: History
    series: Mapping[str, Series]
    counts: Sequence[Counts] = ()
    held_out: Series = NOTHING
    momentum: float = 0.9
    exponent: float = 1.0
    num_steps: int = 0
    staleness: str = "sample_and_hold"
    decisions: Sequence[tuple[int, str]] = ()

    def __getitem__(self, name: str) -> Series:
        """A metric's series, empty when it was not logged."""
        return self.series.get(name, NOTHING)
