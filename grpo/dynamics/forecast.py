"""This module forecasts a run's reward curve: where it goes, when it gets there, and whether continuing is worth it.

The forecast extends the curve's trend (`trend.follow`), and needs no law of the curve. benchmarks/results/dynamics.md
reports how often the intervals held, on simulated, public and own runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from grpo.dynamics.history import History
from grpo.dynamics.trend import Trend, follow
from grpo.types import Interval

Array = NDArray[np.float64]

# A forecast consists of this many drawn curves, each of this many points, and its interval holds this share of them.
NUM_DRAWS, NUM_POINTS, COVERAGE = 1000, 50, 0.9
# A forecast predicts the mean pass rate measured over this share of the whole run's rounds.
MEASURED_SHARE = 0.2
# The interval for the present reaches within two standard errors of the means of so many last rounds or evaluations.
NEWEST_ROUNDS = (1, 3, 5)


@dataclass(frozen=True, slots=True)
class Forecast:
    """A forecast is a predicted reward curve.

    steps              [points] future optimizer steps
    value, low, high   [points] median and interval of the measured pass rate at these steps, measurement noise included
    gain               gain of the true pass rate from now to the last of `steps`, with the same coverage
    gains              [draws] gain of each drawn curve
    measured           length of the measured curve, in optimizer steps
    """

    steps: Array
    value: Array
    low: Array
    high: Array
    gain: Interval
    gains: Array
    measured: float

    def chance(self, gain: float) -> float:
        """Returns the probability that the pass rate gains more than `gain` until the last step."""
        return float(np.mean(self.gains > gain))

    @property
    def guess_from(self) -> float | None:
        """Returns the step from which the forecast reaches further ahead than the curve was measured, or None."""
        step = float(self.steps[0]) + self.measured
        return step if step < self.steps[-1] else None

    def numbered(self, history: History) -> Forecast:
        """Returns the forecast of `history` at the steps by which logs number rounds.

        It begins where the last round ends, and still ends with the policy after its last step.
        """
        delay = float(history.delays[-1])
        return replace(self, steps=self.steps + delay * np.linspace(1, 0, len(self.steps)))


def forecast(history: History, last_step: float) -> Forecast:
    """Forecasts from the last measured step to `last_step`. The history needs at least two rounds.

    The interval at a step includes the noise with which the pass rate will be measured: the noise of a mean over a
    fifth of all rounds until that step, but over at least one round.
    """
    trend = follow(history)
    steps = np.linspace(history.steps[-1], max(last_step, float(history.steps[-1]) + 1), NUM_POINTS)
    rounds = np.maximum(MEASURED_SHARE * (steps - history.steps[0]) / trend.pace, 1.0)
    return _forecast(trend, history, steps, rounds)


def forecast_held_out(held_out: History, training: History, last_step: float) -> Forecast:
    """Forecasts held-out evaluations by their trend, on the time scale (span) of the `training` curve.

    The interval includes the noise of one evaluation. At least three evaluations are needed.
    """
    trend = follow(held_out, follow(training).span)
    steps = np.linspace(held_out.steps[-1], max(last_step, float(held_out.steps[-1]) + 1), NUM_POINTS)
    return _forecast(trend, held_out, steps, np.ones(NUM_POINTS))


def _forecast(trend: Trend, history: History, steps: Array, rounds: Array) -> Forecast:
    """Draws curves at `steps`, and adds the noise of means over `rounds` rounds.

    The middle follows the trend alone. The ends know that most runs keep what they have learned: were falls weighed in
    the middle too, it would lie above every curve that stands.
    """
    candidates, tail = trend.candidates(steps, NUM_DRAWS), (1 - COVERAGE) / 2
    noise = np.random.default_rng(1).standard_normal(len(candidates.rates)) * candidates.errors
    measured_rates = np.clip(candidates.rates + noise[:, None] / np.sqrt(rounds), 0.0, 1.0)
    middle = np.median(measured_rates, axis=0)
    kept = candidates.kept(NUM_DRAWS)
    low, high = np.quantile(np.take_along_axis(measured_rates, kept, axis=0), [tail, 1 - tail], axis=0)
    low, high = _never_narrower(*_reaching(np.minimum(low, middle), np.maximum(high, middle), history))
    gains = candidates.rates[:, -1] - candidates.rates[:, 0]
    kept_gains = gains[kept[:, -1]]
    gain = Interval(float(np.median(gains)), *map(float, np.quantile(kept_gains, [tail, 1 - tail])))
    return Forecast(steps, middle, low, high, gain, kept_gains, float(np.ptp(history.steps)))


def _reaching(low: Array, high: Array, history: History) -> tuple[Array, Array]:
    """Widens an interval, at all steps alike, until the newest values do not contradict it at the present.

    A trend follows a jump in the last rounds, or evaluations, only when more of them have come.
    """
    below = above = 0.0
    for number in NEWEST_ROUNDS:
        mean = float(history.values[-number:].mean())
        reach = 2 * float(np.linalg.norm(history.errors[-number:])) / min(number, len(history))
        below, above = max(below, low[0] - mean - reach), max(above, mean - reach - high[0])
    return np.maximum(low - below, 0.0), np.minimum(high + above, 1.0)


def _never_narrower(low: Array, high: Array) -> tuple[Array, Array]:
    """Widens an interval where it is narrower than at an earlier step, at both ends alike and within 0 and 1.

    A curve that rises towards 1 would seem better known the farther it lies ahead, although only the bound is known.

    >>> _never_narrower(np.array([0.2, 0.5]), np.array([0.6, 0.7]))
    (array([0.2, 0.4]), array([0.6, 0.8]))
    """
    lacking = np.maximum.accumulate(high - low) - (high - low)
    low, high = low - lacking / 2, high + lacking / 2
    # The part that leaves [0, 1] at one end is added at the other.
    over, under = np.maximum(high - 1, 0.0), np.maximum(-low, 0.0)
    return low - over + under, high - over + under
