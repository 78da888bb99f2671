"""This module forecasts a run's reward curve: where it ends, when it gets there, and whether continuing is worth it.

A forecast averages the laws by their Akaike weights, and their parameters by draws from a normal approximation. Its
interval covers the uncertainty of the parameters and of the choice of law. It cannot cover what none of the laws
describes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from grpo.dynamics.identify import Identification, levelling, plateau_of, supported
from grpo.types import Interval

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Forecast:
    """A forecast is a predicted reward curve.

    steps              [points] future optimizer steps
    value, low, high   [points] median and interval of the mean pass rate at these steps
    plateau            where the curve ends, with the same coverage
    gain               gain of pass rate from now to the last of `steps`, with the same coverage
    """

    steps: Array
    value: Array
    low: Array
    high: Array
    plateau: Interval
    gain: Interval


def forecast(identification: Identification, last_step: float, coverage: float = 0.9, points: int = 50) -> Forecast:
    """Forecasts from the last measured step to `last_step`, with the present refresh interval."""
    history = identification.fits[0].history
    now = float(history.steps[-1])
    steps = np.linspace(now, max(last_step, now + 1), points)
    all_steps = np.concatenate([history.steps[:-1], steps])
    delays = np.concatenate([history.delays[:-1], np.full(points, history.delays[-1])])
    fits = identification.fits
    # Line and constant take part by their Akaike weights too, since the curve may continue as it is.
    future = slice(len(history) - 1, None)
    predicted = [fit.law.predict(free, all_steps, delays)[future] for fit, draws in supported(fits) for free in draws]
    curves = np.clip(np.array(predicted), 0.0, 1.0)
    plateaus = [plateau_of(fit.law, free) for fit, draws in supported(levelling(fits)) for free in draws]
    tail = (1 - coverage) / 2

    def interval(draws: Array) -> Interval:
        low, middle, high = np.quantile(draws, [tail, 0.5, 1 - tail])
        return Interval(float(middle), float(low), float(high))

    low, middle, high = np.quantile(curves, [tail, 0.5, 1 - tail], axis=0)
    return Forecast(steps, middle, low, high, interval(np.array(plateaus)), interval(curves[:, -1] - curves[:, 0]))


def steps_to_plateau(ahead: Forecast, within: float) -> float | None:
    """Returns the optimizer steps from now until the median curve is near its plateau.

    Near means that at most the share `within` of the present distance is left. Returns None when the forecast does not
    reach so far.
    """
    distance = abs(ahead.plateau.value - ahead.value[0])
    close = np.abs(ahead.plateau.value - ahead.value) <= within * distance
    return float(ahead.steps[np.argmax(close)] - ahead.steps[0]) if close.any() else None


@dataclass(frozen=True, slots=True)
class StopRule:
    """A stop rule ends a run that has little left to gain.

    It stops once the upper bound of the gain that is left was below `least_gain` for `patience` decisions in a row, but
    not before `fewest_steps` optimizer steps. With `least_gain` 0 it never stops.
    """

    least_gain: float
    patience: int
    fewest_steps: int

    def next(self, ahead: Forecast | None, step: int, rounds_below: int) -> tuple[bool, int]:
        """Returns whether to stop now, and the new number of decisions in a row with too small a gain.

        Without a forecast (`ahead` None, since nothing is identified) the count starts anew.
        """
        below = self.least_gain > 0 and ahead is not None and ahead.gain.high < self.least_gain
        count = rounds_below + 1 if below else 0
        return count >= self.patience and step >= self.fewest_steps, count


@dataclass(frozen=True, slots=True)
class Phases:
    """These are the limits of the three phases of arXiv:2507.18014, in optimizer steps.

    The slow start lasts until `rise`, and the plateau begins at `plateau`.
    """

    rise: float
    plateau: float


# The rise begins and ends at these shares of the whole improvement.
RISE, SETTLED = 0.1, 0.9


def phases(identification: Identification) -> Phases | None:
    """Returns the limits of the three phases, or None when they are not identified.

    The curve must be identified, and its improvement must exceed the noise. Its start must be slow: a law with an
    inflection must beat the single exponential.
    """
    slow_starting = [fit for fit in identification.fits if fit.law.name in ("oscillator", "gating", "sigmoid")]
    best = slow_starting[0]
    if not identification.identified or best.aicc > identification.fit("exponential").aicc - 2:
        return None
    history = best.history
    steps = np.linspace(history.steps[0], 3 * float(history.steps[-1]), 2000)
    delays = np.full(len(steps), history.delays[-1])
    curve = best.predict(steps, delays)
    improvement = plateau_of(best.law, best.free) - curve[0]
    if improvement < 3 * float(np.median(history.errors)):
        return None
    share = (curve - curve[0]) / improvement
    return Phases(float(steps[np.argmax(share >= RISE)]), float(steps[np.argmax(share >= SETTLED)]))
