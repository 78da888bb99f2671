"""Where a run is going, when it gets there, and whether going on is worth it.

A forecast averages the laws, each by its Akaike weight, and their parameters by draws from their normal
approximation: its interval holds what is unknown of the parameters and of the law, and nothing that no law knows.
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
    """The predicted reward curve.

    steps, value, low, high   [points] median and interval of the mean pass rate at future optimizer steps
    plateau                   where it ends, with the same coverage
    gain                      plateau-ward gain from now to the last of `steps`
    """

    steps: Array
    value: Array
    low: Array
    high: Array
    plateau: Interval
    gain: Interval


def forecast(identification: Identification, last_step: float, coverage: float = 0.9, points: int = 50) -> Forecast:
    """From the last measured step to `last_step`, the present refresh interval kept."""
    history = identification.fits[0].history
    now = float(history.steps[-1])
    steps = np.linspace(now, max(last_step, now + 1), points)
    every = np.concatenate([history.steps[:-1], steps])
    delays = np.concatenate([history.delays[:-1], np.full(points, history.delays[-1])])
    fits = identification.fits
    # Also by the straight line and the constant, as far as they are supported: it may go on as it does.
    future = slice(len(history) - 1, None)
    predicted = [fit.law.predict(free, every, delays)[future] for fit, draws in supported(fits) for free in draws]
    curves = np.clip(np.array(predicted), 0.0, 1.0)
    plateaus = [plateau_of(fit.law, free) for fit, draws in supported(levelling(fits)) for free in draws]
    tail = (1 - coverage) / 2

    def interval(draws: Array) -> Interval:
        low, middle, high = np.quantile(draws, [tail, 0.5, 1 - tail])
        return Interval(float(middle), float(low), float(high))

    low, middle, high = np.quantile(curves, [tail, 0.5, 1 - tail], axis=0)
    return Forecast(steps, middle, low, high, interval(np.array(plateaus)), interval(curves[:, -1] - curves[:, 0]))


def steps_to_plateau(found: Forecast, within: float) -> float | None:
    """Optimizer steps from now until the median curve is within the share `within` of its remaining way to the
    plateau; None when the forecast does not reach so far."""
    way = abs(found.plateau.value - found.value[0])
    close = np.abs(found.plateau.value - found.value) <= within * way
    return float(found.steps[np.argmax(close)] - found.steps[0]) if close.any() else None


@dataclass(frozen=True, slots=True)
class StopRule:
    """Stop when the upper bound of the gain that is left stays below `least_gain` for `patience` rounds, and not
    before `fewest_steps` optimizer steps. With `least_gain` 0, never."""

    least_gain: float
    patience: int
    fewest_steps: int

    def next(self, ahead: Forecast | None, step: int, rounds_below: int) -> tuple[bool, int]:
        """Returns whether to stop now, and the number of rounds in a row below the bound. The count starts anew where
        there is no forecast because nothing is identified."""
        below = self.least_gain > 0 and ahead is not None and ahead.gain.high < self.least_gain
        count = rounds_below + 1 if below else 0
        return count >= self.patience and step >= self.fewest_steps, count


@dataclass(frozen=True, slots=True)
class Phases:
    """The three phases of arXiv:2507.18014 in optimizer steps: slow start until `rise`, plateau from `plateau`."""

    rise: float
    plateau: float


# Shares of the whole improvement at which the rise begins and ends.
RISE, SETTLED = 0.1, 0.9


def phases(identification: Identification) -> Phases | None:
    """Where the phases part, or None ("phases not identified"): the curve must be identified, its improvement
    clear of noise, and its start slow, that is a law with an inflection must beat the single exponential."""
    with_start = [each for each in identification.fits if each.law.name in ("oscillator", "gating", "sigmoid")]
    best = with_start[0]
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
