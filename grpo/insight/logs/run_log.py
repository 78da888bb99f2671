"""This module holds a run's log in one form, whichever framework wrote it, for fits and diagnoses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo.dynamics.history import Counts, History, history_of_values
from grpo.types import metrics as m

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Series:
    """A series is one metric over time: optimizer steps [points], ascending, and values [points]."""

    steps: Array
    values: Array

    def __len__(self) -> int:
        return len(self.steps)

    def between(self, first: float, last: float) -> Series:
        """Returns the points with first ≤ step ≤ last."""
        mask = (self.steps >= first) & (self.steps <= last)
        return Series(self.steps[mask], self.values[mask])


# A held-out curve needs at least this many evaluations.
FEWEST_EVALUATIONS = 3
# A curve of mean rewards needs at least this many rows.
FEWEST_REWARDS = 3
NOTHING = Series(np.empty(0), np.empty(0))


# A reward's standard deviation counts as this pass rate's: that of completions of which one in five is right.
STD_OF_RATES = 0.4
# Where it is not logged, the scatter from round to round counts as this, as in rounds of some ten prompts.
SCATTER_OF_RATES = 0.05


class Judged(NamedTuple):
    """The judged curve of a run is its pass rate, or else its mean reward.

    what      "pass rate" or "mean reward"
    history   the curve with errors
    unit      how much of the reward weighs as much as a pass rate of 1; 0 if the reward never moves
    """

    what: str
    series: Series
    history: History
    unit: float


@dataclass(frozen=True)
class RunLog:
    """A run log holds all that is known of a run, under this project's metric names.

    history     the reward curve
    series      metric → its series; metrics that were not logged are absent
    counts      [rounds] (correct, group size) → number of groups, for each round; empty if the log has none
    held_out    pass rate on held-out problems
    held_out_error  mean standard error of one such evaluation, 0 if it is not known
    held_out_bounds  ends of the 95 % interval of each such evaluation, if they are known
    exponent, mean_exponent   the dials' α and β
    dialled     whether advantages follow the dials (r − r̄)·σ^(−α)·r̄^(−β)
    shared_std  whether one σ divides all groups of a step, so that α does not weigh the groups against each other
    learns_from_equal  whether groups of equal rewards give a gradient too, so that silent groups are no loss
    partial     whether answers get parts of a point, so that no height of the pass rate means that problems are solved
    num_steps   optimizer steps that the run was to take
    last_step   the step to which forecasts go, if one was asked for; else 0
    decisions   (optimizer step, reason) of each change of plan by the scheduler
    changing_prompts  whether a curriculum changes how hard the prompts are, so that a pass rate may fall without a loss
    settings    key → value of the run's configuration, as far as it is known
    framework   the framework that wrote the log, in whose option names advice is given; "" if it is not known
    notes       what was assumed when the log was read, in sentences
    """

    history: History
    series: Mapping[str, Series]
    counts: Sequence[Counts] = ()
    held_out: Series = NOTHING
    held_out_error: float = 0.0
    held_out_bounds: tuple[Series, Series] | None = None
    exponent: float = 1.0
    mean_exponent: float = 0.0
    dialled: bool = True
    shared_std: bool = False
    learns_from_equal: bool = False
    partial: bool = False
    num_steps: int = 0
    last_step: int = 0
    decisions: Sequence[tuple[int, str]] = ()
    changing_prompts: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    framework: str = "grpo"
    notes: Sequence[str] = ()

    @property
    def group_dials(self) -> tuple[float, float] | None:
        """Returns the α and β that weigh the groups of one step against each other: α is 0 with one σ for all groups.

        The result is None where advantages do not follow the dials.
        """
        if not self.dialled:
            return None
        return 0.0 if self.shared_std else self.exponent, self.mean_exponent

    def held_out_history(self) -> History | None:
        """Returns the held-out evaluations as a curve, or None if there are fewer than three."""
        if len(self.held_out) < FEWEST_EVALUATIONS:
            return None
        curve = history_of_values(self.held_out.steps, self.held_out.values, interval=0)
        return replace(curve, errors=np.maximum(curve.errors, self.held_out_error))

    @cached_property
    def judged(self) -> Judged:
        """Returns the curve by which the run is judged."""
        if len(self[m.PASS_RATE]):
            return Judged("pass rate", self[m.PASS_RATE], self.history, 1.0)
        reward, spread = self[m.REWARD], self[m.REWARD_STD].values
        if len(reward) < FEWEST_REWARDS:
            return Judged("mean reward", reward, self.history, 0.0)
        unit = float(np.median(spread)) / STD_OF_RATES if len(spread) else 0.0
        unit = unit or float(np.std(np.diff(reward.values))) / 2**0.5 / SCATTER_OF_RATES
        return Judged("mean reward", reward, history_of_values(reward.steps, reward.values), unit)

    @property
    def steps_taken(self) -> float:
        """Returns the optimizer steps of the run so far. The log needs at least one round with a pass rate."""
        return float(self.history.steps[-1] + self.history.delays[-1])

    @property
    def horizon(self) -> float:
        """Returns the step to which a forecast goes: the one asked for, the run's last step, or 1.5 times the steps
        taken so far.

        The last applies if the run has ended or its last step is not known. The log needs at least one round with a
        pass rate.
        """
        if self.last_step:
            return self.last_step
        return self.num_steps if self.num_steps > self.steps_taken else 1.5 * self.steps_taken

    def __getitem__(self, name: str) -> Series:
        """Returns a metric's series, which is empty if the metric was not logged."""
        return self.series.get(name, NOTHING)
