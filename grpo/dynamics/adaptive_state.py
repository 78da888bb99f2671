"""What `dynamics=adaptive` remembers from round to round, as plain frozen data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from grpo.dynamics.guard import GuardState
from grpo.dynamics.history import lag, num_tried, pass_rate, pooled_errors
from grpo.dynamics.laws import History
from grpo.interfaces import ROUND
from grpo.types import RoundStatistics

# Counts of older rounds are multiplied by this each round: difficulty is that of the present policy.
FORGETTING = 0.8
# Counts that have become smaller than this are dropped.
SMALLEST_COUNT = 1e-3
# A fit reads at most so many points; older neighbours are merged.
MOST_POINTS = 200


@dataclass(frozen=True, slots=True)
class PastRound:
    """One round as it was measured.

    step            optimizer steps of the policy that wrote its samples
    value, error    pass rate and its standard error, from `tried` completions
    interval        optimizer steps of the round (τ); `delay` adds the lag of sampling ahead
    seconds         of the whole round; `fixed_seconds` are those that one refresh costs
    """

    step: int
    value: float
    error: float
    tried: int
    interval: int
    delay: int
    seconds: float
    fixed_seconds: float


@dataclass(frozen=True, slots=True)
class AdaptiveState:
    """The scheduler's memory.

    longest       longest refresh interval that is still tried
    rounds        the rounds since the run began or went back
    counts        (correct, group size, weighted number of groups), older rounds weighing less
    guard         the guard's memory
    rounds_below  decisions in a row whose forecast gain was too small
    wish          group size that the last decision asked for and did not get yet
    """

    longest: int
    rounds: tuple[PastRound, ...] = ()
    counts: tuple[tuple[int, int, float], ...] = ()
    guard: GuardState = field(default_factory=GuardState)
    rounds_below: int = 0
    wish: int | None = None


def state_of(values: Mapping[str, Any]) -> AdaptiveState:
    """Returns the state that was saved as JSON. Older checkpoints nest the count of decisions under `stop`."""
    return AdaptiveState(
        longest=values["longest"],
        rounds=tuple(PastRound(**row) for row in values["rounds"]),
        counts=tuple((correct, size, number) for correct, size, number in values["counts"]),
        guard=GuardState(**values["guard"]),
        rounds_below=values["stop"]["rounds_below"] if "stop" in values else values["rounds_below"],
        wish=values["wish"],
    )


def afresh(state: AdaptiveState) -> AdaptiveState:
    """Forgets the curve and the counts of a policy that the run has left: they say nothing of the next one."""
    return replace(state, rounds=(), counts=(), wish=None)


def remember(state: AdaptiveState, statistics: RoundStatistics) -> AdaptiveState:
    """Adds a round, and lets the counts of the earlier ones fade."""
    counts = {(correct, size): FORGETTING * number for correct, size, number in state.counts}
    for pair, number in statistics.reward_counts.items():
        counts[pair] = counts.get(pair, 0.0) + number
    rate, error = pass_rate(statistics.reward_counts)
    interval, behind = statistics.plan.refresh_interval, lag_of(statistics)
    past = PastRound(
        step=statistics.step - interval - behind,
        value=rate,
        error=error,
        tried=num_tried(statistics.reward_counts),
        interval=interval,
        delay=interval + behind,
        seconds=statistics.seconds[ROUND],
        fixed_seconds=statistics.seconds.get("sync", 0.0),
    )
    kept = tuple((*pair, number) for pair, number in sorted(counts.items()) if number > SMALLEST_COUNT)
    return replace(state, counts=kept, rounds=(*state.rounds, past))


def curve_of(rounds: Sequence[PastRound]) -> History:
    """Returns the reward curve of these rounds."""
    names = ("step", "value", "error", "tried", "delay")
    steps, values, errors, tried, delays = (np.array([getattr(past, name) for past in rounds], float) for name in names)
    return History(np.maximum.accumulate(steps), values, pooled_errors(values, errors, tried), delays)


def merged(history: History, most: int = MOST_POINTS) -> History:
    """The same curve with neighbours averaged, weighted by their information, until at most `most` points are left.
    Only rounds of one delay are merged."""
    while len(history) > most:
        half = len(history) // 2
        pairs = [(2 * index, 2 * index + 1) for index in range(half)]
        points = []
        for a, b in pairs:
            if history.delays[a] != history.delays[b]:
                points += [_point(history, [a]), _point(history, [b])]
            else:
                points.append(_point(history, [a, b]))
        points += [_point(history, [index]) for index in range(2 * half, len(history))]
        if len(points) == len(history):
            return history
        history = History(*(np.array(column) for column in zip(*points, strict=True)))
    return history


def _point(history: History, rows: list[int]) -> tuple[float, float, float, float]:
    weights = history.errors[rows] ** -2.0
    total = weights.sum()
    return (
        float(history.steps[rows] @ weights / total),
        float(history.values[rows] @ weights / total),
        float(total**-0.5),
        float(history.delays[rows[0]]),
    )


def lag_of(statistics: RoundStatistics) -> int:
    """Optimizer steps between the weights that sampled a round and those that it began with, as measured."""
    measured = statistics.means.get("staleness/mean")
    return lag(measured.value if measured and measured.count else 0.0, statistics.plan.refresh_interval)
