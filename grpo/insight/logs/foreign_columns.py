"""This module gathers the numbers of a log's rows into columns, a row at a time, since mappings take much memory.

`LastRun` keeps the rows of the last run of a log that holds several runs, or a resumed one.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo.insight.logs.foreign_names import (
    OF_CALLS,
    OF_TRAINING,
    ROLLOUT,
    TOTAL,
    TRAIN_STEP,
    Row,
    further_step_name,
    numbers_of,
    our_name,
    step_name,
)
from grpo.insight.logs.run_log import Series
from grpo.types import metrics as m

Array = NDArray[np.float64]

# Larger numbers are left out, since errors are computed from fourth powers, which could overflow.
LARGEST = 1e60
# Such metrics are never negative. Shares, whose names end in _fraction, are at most 1, too.
POSITIVE = {m.REWARD_STD, m.LENGTH, m.ENTROPY, m.SAMPLER_ENTROPY, m.GRADIENT_NORM, m.LEARNING_RATE, m.ROUND_SECONDS}
# A share may be rounded.
SLACK = 1e-3
# A row that goes back by fewer logged steps than so many may be that of a slower rank.
FAR_BACK = 3
# Values may change at every n-th row alone by luck, with a probability of n ** (1 − changes).
BY_LUCK = 1e-4
# Where other columns lack at least the half of the cells that a column of norms lacks, nothing is wrong with gradients.
OFTENER = 2


TWO_COUNTS = (
    "the log counts rollouts and optimizer steps apart: a row of training has the number of its rollout as its step"
)


class Column(NamedTuple):
    """A column holds the index of each of its cells' rows, ascending, and the cells' numbers."""

    rows: NDArray[np.int64]
    values: Array


class Columns:
    """Columns are gathered from rows, which have one step each."""

    def __init__(self) -> None:
        self.steps = array("d")
        self._cells: dict[str, tuple[array[int], array[float]]] = {}
        # The names of the last row, and their cells: most rows of a log have the same names.
        self._names: tuple[str, ...] = ()
        self._last: list[tuple[array[int], array[float]]] = []

    def add(self, step: float, numbers: Mapping[str, float]) -> None:
        """Adds a row."""
        index = len(self.steps)
        self.steps.append(step)
        if (names := tuple(numbers)) != self._names:
            self._names = names
            self._last = [self._cells.setdefault(name, (array("q"), array("d"))) for name in names]
        for (rows, values), value in zip(self._last, numbers.values(), strict=True):
            rows.append(index)
            values.append(value)

    def before(self, step: float) -> Columns:
        """Returns columns without the rows from `step` on."""
        earlier = Columns()
        kept_rows = np.array(self.steps) < step
        earlier.steps = array("d", np.array(self.steps)[kept_rows].tobytes())
        renumbered = np.cumsum(kept_rows) - 1
        for name, column in self.named().items():
            kept = kept_rows[column.rows]
            if kept.any():
                rows = array("q", renumbered[column.rows[kept]].astype(np.int64).tobytes())
                earlier._cells[name] = rows, array("d", column.values[kept].tobytes())
        return earlier

    def steps_of(self, name: str) -> Iterable[float]:
        """Returns the steps at which a metric was logged."""
        return (self.steps[row] for row in self._cells[name][0]) if name in self._cells else ()

    def named(self) -> dict[str, Column]:
        """Returns the columns by name."""
        return {
            name: Column(np.array(rows, np.int64), np.array(values)) for name, (rows, values) in self._cells.items()
        }


class LastRun:
    """This class tells the last run in a log from those before it, while the log's rows are added.

    A row marks a restart if most of its metrics were already logged at its step, and since then at `FAR_BACK` later
    steps. If no kept row precedes that step, another run begins. Otherwise the run was resumed, and its earlier rows
    from that step on are dropped. Rows that are merely out of order repeat no step.

    Rows that have only the number of a logger's call are dropped where other rows have a step of training.
    """

    def __init__(self) -> None:
        self.columns = Columns()
        self._runs, self._resumed_steps, self._negative = 1, list[float](), 0
        self._farthest, self._newest_step, self._step_name = [-math.inf] * FAR_BACK, dict[str, float](), ""
        self._trains, self._calls = False, 0
        # slime counts rollouts, and apart from them the optimizer steps, of which a rollout may have several.
        self._rollout, self._trained_within = -math.inf, False
        # The steps at which a metric was logged. They are looked up only for metrics that go back.
        self._seen_steps: dict[str, set[float]] = {}

    def add(self, row: Row) -> None:
        """Adds a row. A row without a step, or with a negative one, is left out."""
        name, numbers = step_name(row), numbers_of(row)
        if name in OF_TRAINING and not self._trains:
            self._trains = True
            if self._calls:
                self._forget_from(-math.inf)
        self._calls += name in OF_CALLS
        if name in OF_CALLS and self._trains:
            return
        step = row[name] if name else None
        if step is None and not self.columns.steps:
            self._step_name = self._step_name or further_step_name(numbers)
        if step is None:
            step = numbers.pop(self._step_name, None)
        if step is None or not step >= 0:
            self._negative += step is not None
            return
        if not ROLLOUT.isdisjoint(row):
            self._rollout = step
        elif TRAIN_STEP in row and -math.inf < self._rollout < step:
            step, self._trained_within = self._rollout, True
        if step < self._farthest[0]:
            newest = self._newest_step
            repeated = [name for name in numbers if step < newest.get(name, -math.inf) and step in self._seen(name)]
            if 2 * len(repeated) > len(numbers):
                self._begin_again(step)
        if step > self._farthest[0] and step not in self._farthest:
            self._farthest = sorted([*self._farthest[1:], step])
        self._newest_step.update(dict.fromkeys(numbers, step))
        for name in self._seen_steps.keys() & numbers.keys():
            self._seen_steps[name].add(step)
        self.columns.add(step, numbers)

    def _seen(self, name: str) -> set[float]:
        if name not in self._seen_steps:
            self._seen_steps[name] = set(self.columns.steps_of(name))
        return self._seen_steps[name]

    def _forget_from(self, step: float) -> None:
        self.columns = self.columns.before(step)
        self._seen_steps.clear()
        self._farthest = [-math.inf] * FAR_BACK

    def _begin_again(self, step: float) -> None:
        self._forget_from(step)
        if self.columns.steps:
            self._resumed_steps.append(step)
        else:
            self._runs, self._resumed_steps = self._runs + 1, []

    @property
    def notes(self) -> tuple[str, ...]:
        """Says in sentences what was left out."""
        notes = [f"{self._step_name} is taken for the step"] if self._step_name else []
        notes += [TWO_COUNTS] if self._trained_within else []
        notes += [f"{self._calls} rows without a step of training are left out"] if self._calls and self._trains else []
        notes += [f"{self._negative} rows with a negative step are left out"] if self._negative else []
        if self._runs > 1:
            notes.append(
                f"the log holds {self._runs} runs one after another, since its steps begin again: the last one is "
                "read; to read another one, put its rows into a file of their own"
            )
        if self._resumed_steps:
            steps = ", ".join(f"{step:g}" for step in self._resumed_steps)
            notes.append(f"the run was resumed at step {steps}: what it had logged from there on before is left out")
        return tuple(notes)


def series_of(steps: Array, columns: Mapping[str, Column]) -> dict[str, Series]:
    """Returns every column as a series over ascending steps, without values beyond ±`LARGEST`.

    If a step was logged several times, as by a resumed run, its last value is kept. If most steps were, as by several
    ranks, their values are averaged. `steps` are those of the rows.
    """
    series = {}
    for name, column in columns.items():
        kept = np.abs(column.values) <= LARGEST
        at, values = steps[column.rows[kept]], column.values[kept]
        order = np.argsort(at, kind="stable")
        at, values = at[order], values[order]
        if not len(at):
            continue
        once, first, times = np.unique(at, return_index=True, return_counts=True)
        means = are_averaged(times)
        series[name] = Series(once, np.add.reduceat(values, first) / times if means else values[first + times - 1])
    return series


def are_averaged(times: NDArray[np.int64]) -> bool:
    """Tells whether the values of a step are averaged, by how often each step was logged."""
    return len(times) > 1 and bool(np.median(times) > 1)


def times_logged(values: Array) -> int:
    """Returns how many rows in a row each value was logged, or 1 if values change at any row.

    >>> times_logged(np.repeat([3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0], 10))
    10
    """
    gaps = np.diff(np.flatnonzero(np.diff(values)))
    times = int(np.gcd.reduce(gaps)) if len(gaps) else 1
    return times if float(times) ** -len(gaps) < BY_LUCK else 1


def once_each(one: Series) -> Series:
    """Returns a series with one point for a value that was logged several times, as `times_logged` finds."""
    if (times := times_logged(one.values)) == 1:
        return one
    # The last value may not have been logged as often yet.
    rows = np.unique(
        np.append(np.arange(np.flatnonzero(np.diff(one.values))[0] % times, len(one), times), len(one) - 1)
    )
    return Series(one.steps[rows], one.values[rows])


def translated(columns: Mapping[str, Column], num_rows: int) -> dict[str, Column]:
    """Returns the columns under our names of metrics. A metric that a row has under two names keeps its first value.

    It adds a skipped step where the gradient norm is not finite, and the share of silent groups where the shares of
    all-correct and all-wrong groups are logged.
    """
    ours: dict[str, Column] = {}
    for name, column in columns.items():
        our = our_name(name)
        ours[our] = _united(ours[our], column) if our in ours else column
    if m.REWARD not in ours and TOTAL in ours:
        ours[m.REWARD] = ours.pop(TOTAL)
    if m.GRADIENT_NORM in ours:
        others = [column for name, column in ours.items() if name != m.GRADIENT_NORM and "loss" not in name]
        skipped = _skipped(ours[m.GRADIENT_NORM], others, num_rows)
        ours[m.SKIPPED] = _united(ours[m.SKIPPED], skipped) if m.SKIPPED in ours else skipped
    if {m.ALL_RIGHT, m.ALL_WRONG} <= ours.keys():
        rows, right, wrong = np.intersect1d(ours[m.ALL_RIGHT].rows, ours[m.ALL_WRONG].rows, True, return_indices=True)
        silent = Column(rows, ours[m.ALL_RIGHT].values[right] + ours[m.ALL_WRONG].values[wrong])
        ours[m.SILENT] = _united(ours[m.SILENT], silent) if m.SILENT in ours else silent
    return ours


def impossible(series: Mapping[str, Series]) -> dict[str, str]:
    """Returns the metrics that have values which they cannot have, each with the reason, by our names.

    >>> impossible({"groups/silent_fraction": Series(np.array([1.0, 2.0]), np.array([0.0, 45.0]))})
    {'groups/silent_fraction': 'goes up to 45, and a share is at most 1: divide percentages by 100'}
    """
    wrong = {}
    for name, one in series.items():
        low, high = float(one.values.min()), float(one.values.max())
        if name.endswith("_fraction") and high > 1 + SLACK:
            wrong[name] = f"goes up to {high:g}, and a share is at most 1: divide percentages by 100"
        elif low < 0 and (name in POSITIVE or name.endswith("_fraction")):
            wrong[name] = f"goes down to {low:g}, and is never negative"
    return wrong


def _united(first: Column, second: Column) -> Column:
    """Returns the cells of the first column, and those of the second in rows that the first lacks."""
    more = ~np.isin(second.rows, first.rows)
    rows = np.concatenate([first.rows, second.rows[more]])
    order = np.argsort(rows)
    return Column(rows[order], np.concatenate([first.values, second.values[more]])[order])


def _skipped(norm: Column, others: Iterable[Column], num_rows: int) -> Column:
    """Returns whether the step of each row with a gradient norm was skipped: 1 where the norm is not finite, else 0.

    NaN may also stand for a cell that was not logged. It does in a row without most of the numbers that rows with a
    norm have, such as a row of an evaluation, and in a log whose other columns lack as many cells.
    """
    finite, not_a_number = np.isfinite(norm.values), np.isnan(norm.values)
    normed = norm.rows[finite] if finite.any() else norm.rows
    presences = []
    for column in others:
        has_number = np.zeros(num_rows, bool)
        has_number[column.rows[np.isfinite(column.values)]] = True
        if 2 * has_number[normed].sum() > len(normed):
            presences.append(has_number)
    if not_a_number.any() and presences:
        of_training = np.mean(presences, axis=0) > 0.5
        missing = np.median([(~has_number[of_training]).sum() for has_number in presences])
        lacking = not_a_number & ~of_training[norm.rows]
        if (not_a_number & ~lacking).sum() <= OFTENER * missing:
            lacking = not_a_number
        norm, finite = Column(norm.rows[~lacking], norm.values[~lacking]), finite[~lacking]
    return Column(norm.rows, (~finite).astype(float))
