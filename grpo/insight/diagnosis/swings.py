"""This module holds the check that asks whether the pass rate swings: whether it rises and falls again and again.

One short fall is hard to tell from luck. Two in a row of the same length are easier to tell, since their average has
less noise. This check knows no law of the curve, so it also sees swings that grow.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from grpo.dynamics.history import noise_factor
from grpo.insight.diagnosis.evidence import CONFIDENCE, FEWEST_ROUNDS
from grpo.insight.diagnosis.findings import WARNING, DiagnosisRule, Finding
from grpo.insight.logs.run_log import RunLog
from grpo.types import Interval

Array = NDArray[np.float64]

# A swing is high for at least this many rounds and then low for as many.
SHORTEST = 5
# From one length of a swing that is tried to the next.
LENGTHS_RATIO = 1.15
# Each step between high and low rounds is at least this share of their mean difference.
LEAST_STEP = 0.5
# Noise is measured in the rounds before the swings if there are this many of them, otherwise in all rounds.
FEWEST_BEFORE = 30


class Swings(NamedTuple):
    """Two swings in a row are the rounds from `first` on, high for `length` rounds, then low for `length`, twice.

    `size` is how far the high rounds lie above the low ones.
    """

    size: Interval
    length: int
    first: int


def swinging(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Finds a pass rate that swings twice in a row, by more than the rounds before the swings scattered."""
    what, series, _, unit = log.judged
    if log.changing_prompts or len(series) < 4 * SHORTEST or not unit:
        return None
    scale = expected_scatter(log)
    # The errors of pass rates are those of whole rounds.
    least_noise = 1.0 if scale is log.history.errors else 0.0
    lengths = _lengths(len(series) // 4)
    # Swings that begin less than half a swing apart count as one.
    number = sum(2 * len(series) / length for length in lengths)
    significant = [
        swings
        for length in lengths
        for swings in [_largest(series.values, scale, length, number, least_noise)]
        if swings.size.low >= rule.collapse / 2 * unit and swings.size.value >= rule.collapse * unit
    ]
    if not significant:
        return None
    surest = max(significant, key=lambda swings: swings.size.low)
    steps = series.steps[surest.first], series.steps[surest.first + 4 * surest.length - 1]
    evidence = (
        f"between steps {steps[0]:g} and {steps[1]:g} the {what} was twice higher for {surest.length} rounds and "
        f"then lower for as many, by {surest.size.value:.2f} [{surest.size.low:.2f}, {surest.size.high:.2f}]"
    )
    return Finding("underdamped", WARNING, evidence, "a smaller dynamics.refresh_interval or learner.learning_rate")


def expected_scatter(log: RunLog) -> Array:
    """Returns how much each round's pass rate scatters, [rounds], up to one factor for all rounds.

    Mean rewards scatter alike in all rounds. Pass rates have their sampling error where the log has counts.
    Otherwise it is √(p(1 − p)) of the smoothed pass rate p, since rounds scatter least near 0 and 1.
    """
    what, series, _, _ = log.judged
    values = series.values
    if what != "pass rate":
        return np.ones(len(values))
    if log.counts and len(log.history) == len(values):
        return log.history.errors
    kernel = np.ones(FEWEST_ROUNDS)
    near = np.convolve(np.ones(len(values)), kernel, "same")
    rates = (np.convolve(values, kernel, "same") + 0.5) / (near + 1)
    return np.sqrt(rates * (1 - rates))


def _lengths(longest: int) -> list[int]:
    """Returns the lengths of a swing that are tried.

    >>> _lengths(12)
    [5, 6, 7, 8, 9, 10, 12]
    """
    lengths = [SHORTEST]
    while (longer := max(lengths[-1] + 1, round(lengths[-1] * LENGTHS_RATIO))) <= longest:
        lengths.append(longer)
    return lengths


def _largest(values: Array, scale: Array, length: int, number: float, least_noise: float) -> Swings:
    """Returns the largest two swings in a row of this length. The interval holds for `number` swings at once."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    means = (sums[length:] - sums[:-length]) / length
    begins = len(values) - 4 * length + 1
    parts = np.array([means[part * length :][:begins] for part in range(4)])
    steps = np.diff(parts, axis=0) * np.array([[-1], [1], [-1]])
    sizes = (steps[0] + steps[2]) / 2
    # A single fall is not two swings: both falls and the rise between them must be a part of the size.
    sizes[steps.min(axis=0) < LEAST_STEP * sizes] = 0
    first = int(sizes.argmax())
    noise, freedom = _noise(*((values[:first], scale[:first]) if first >= FEWEST_BEFORE else (values, scale)))
    during = slice(first, first + 4 * length)
    # Few rounds before may show no noise at all, as where nothing was solved yet. Swings hardly add to the differences
    # of neighbouring rounds.
    neighbours = float(np.mean((np.diff(values[during]) / scale[during][1:]) ** 2) / 2) ** 0.5
    error = max(noise, neighbours, least_noise) * float(np.mean(scale[during] ** 2) / length) ** 0.5
    half = float(stats.t.isf((1 - CONFIDENCE) / 2 / number, freedom)) * error
    size = float(sizes[first])
    return Swings(Interval(size, size - half, size + half), length, first)


def _noise(values: Array, scale: Array) -> tuple[float, float]:
    """Returns the scatter of rounds about their running mean, in units of `scale`, and its degrees of freedom.

    Correlated noise counts as more: it is multiplied by the square root of `noise_factor`.
    """
    length = FEWEST_ROUNDS
    near = np.convolve(values, np.full(length, 1 / length), "valid")
    scatter = (values[length // 2 :][: len(near)] - near) / scale[length // 2 :][: len(near)]
    factor = noise_factor(values / scale)
    # r of (1 + r)/(1 − r), and the effective number of squares of an AR(1) series.
    correlation = (factor - 1) / (factor + 1)
    independent = len(near) * (1 - 1 / length) * (1 - correlation**2) / (1 + correlation**2)
    variance = float(scatter @ scatter) / len(near) / (1 - 1 / length)
    return (variance * factor) ** 0.5, max(independent, 3.0)
