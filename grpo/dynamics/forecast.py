"""This module forecasts a run's reward curve: where it goes, when it gets there, and whether continuing is worth it.

The forecast extends the curve's trend (`trend.follow`), and needs none of the laws of `identify`, which describe the
measured curve. benchmarks/results/dynamics.md reports how often the intervals held, on simulated, public and own runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from grpo.dynamics.laws import History
from grpo.dynamics.trend import Trend, follow
from grpo.types import Interval

Array = NDArray[np.float64]

# A forecast consists of this many drawn curves.
NUM_DRAWS = 1000
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
    """

    steps: Array
    value: Array
    low: Array
    high: Array
    gain: Interval
    gains: Array

    def chance(self, gain: float) -> float:
        """Returns the probability that the pass rate gains more than `gain` until the last step."""
        return float(np.mean(self.gains > gain))


def forecast(history: History, last_step: float, coverage: float = 0.9, points: int = 50) -> Forecast:
    """Forecasts from the last measured step to `last_step`. The history needs at least two rounds.

    The interval includes the noise with which the pass rate will be measured: the noise of a mean over a fifth of all
    rounds until `last_step`, but over at least one round.
    """
    trend = follow(history)
    end = max(last_step, float(history.steps[-1]) + 1)
    rounds = max(MEASURED_SHARE * (end - float(history.steps[0])) / trend.pace, 1.0)
    return _reaching(_forecast(trend, float(history.steps[-1]), end, rounds, coverage, points), history)


def forecast_held_out(
    held_out: History, training: History, last_step: float, coverage: float = 0.9, points: int = 50
) -> Forecast:
    """Forecasts held-out evaluations by their trend, on the time scale (span) of the `training` curve.

    The interval includes the noise of one evaluation. At least three evaluations are needed.
    """
    trend = follow(held_out, follow(training).span)
    end = max(last_step, float(held_out.steps[-1]) + 1)
    return _reaching(_forecast(trend, float(held_out.steps[-1]), end, 1.0, coverage, points), held_out)


def _reaching(ahead: Forecast, history: History) -> Forecast:
    """Widens a forecast's interval, at all steps alike, until the newest values do not contradict it at the present.

    A trend follows a jump in the last rounds, or evaluations, only when more of them have come.
    """
    below = above = 0.0
    for number in NEWEST_ROUNDS:
        mean = float(history.values[-number:].mean())
        reach = 2 * float(np.linalg.norm(history.errors[-number:])) / min(number, len(history))
        below, above = max(below, ahead.low[0] - mean - reach), max(above, mean - reach - ahead.high[0])
    low, high = np.maximum(ahead.low - below, 0.0), np.minimum(ahead.high + above, 1.0)
    return replace(ahead, low=low, high=high)


def _forecast(trend: Trend, now: float, end: float, rounds: float, coverage: float, points: int) -> Forecast:
    """Draws curves from `now` to `end`, and adds the noise of a mean over `rounds` rounds."""
    steps = np.linspace(now, end, points)
    curves, error = trend.draws(steps, NUM_DRAWS)
    noise = np.random.default_rng(1).standard_normal(NUM_DRAWS) * error / np.sqrt(rounds)
    tail = (1 - coverage) / 2
    measured_rates = np.clip(curves + noise[:, None], 0.0, 1.0)
    low, middle, high = np.quantile(measured_rates, [tail, 0.5, 1 - tail], axis=0)
    gains = curves[:, -1] - curves[:, 0]
    least, usual, most = np.quantile(gains, [tail, 0.5, 1 - tail])
    return Forecast(steps, middle, low, high, Interval(float(usual), float(least), float(most)), gains)
