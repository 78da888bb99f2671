"""This module defines laws of a reward curve: the reduced-order model and its rivals, as functions of the step.

A law maps free parameters and the history of a run to pass rates, and guesses where a fit should start. The free
parameters are unbounded, as optimizers need them. `read` converts them to readable parameters, and `names` names these.

    oscillator    P* + (P₀−P*)·E(t), arXiv:2606.30789; τ may change from round to round
    exponential   the overdamped limit of the oscillator
    mixture       P* + (P₀−P*)/(1 + t/T): prompts of many difficulties, whose relaxation rates are exponentially
                  distributed with mean 1/T, so that easy prompts rise at once and hard ones much later
    gating        no inertia: a prompt moves by σ^(4−α), arXiv:2607.00152 on Bernoulli logits
    sigmoid       γ/(1+e^(−δ(t−t₀))) above a floor, arXiv:2507.18014 (v1)
    line, constant  fit best when the curve has not bent, or not moved, yet
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from benchmarks.papers.oscillator import propagate, sampled_coefficients
from benchmarks.papers.sigma_laws import objective
from grpo.dynamics.history import History

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Law:
    """A law is a parametric reward curve.

    `curve(free, times, intervals, lags)` returns pass rates [points], or [draws, points] of free parameters
    [draws, parameters]. `times` are optimizer steps since the curve began; the rest is as in `History`.
    `guesses(history)` returns starting points for a fit.
    """

    name: str
    names: tuple[str, ...]
    curve: Callable[[Array, Array, Array, Array], Array]
    guesses: Callable[[History], list[list[float]]]
    read: Callable[[Array], Array]

    def predict(self, free: Array, steps: Array, intervals: Array, lags: Array) -> Array:
        """Returns the pass rates [points] at `steps`, or [draws, points] of several draws of the parameters.

        The curve begins at the first step.
        """
        return self.curve(free, steps - steps[0], intervals, lags)


def _spread(history: History) -> tuple[float, float, float]:
    """Returns the curve's start and end, estimated by medians, and its length in steps."""
    tail = max(1, len(history) // 5)
    start, end = np.median(history.values[:tail]), np.median(history.values[-tail:])
    return _inside(float(start)), _inside(float(end)), max(float(np.ptp(history.steps)), 1.0)


def _columns(free: Array) -> list[Array]:
    """Returns each parameter with a last axis of length 1, which broadcasts over the points of a curve."""
    return [free[..., index, None] for index in range(free.shape[-1])]


def _inside(rate: float) -> float:
    """Moves a rate away from 0 and 1, where its logit would be infinite."""
    return float(np.clip(rate, 0.01, 0.99))


def largest_stiffness(momentum: float) -> float:
    """Returns the stiffness above which training is unstable even without staleness, 2(1+μ)."""
    return 2 * (1 + momentum)


def oscillator_law(momentum: float) -> Law:
    """Returns the oscillator law at known momentum μ.

    The free parameters are logit P₀, logit P*, log κ and log M₀, where M₀ is the inertia in M = M₀ + ½κ·E[a²], and a
    the age of a round's samples (`sampled_oscillator`). With μ known, C = (1−μ) − κ·E[a]. The model says M₀ = (1+μ)/2.
    The fit leaves M₀ free because the fitted damping ratio ζ depends on it. κ stays below `largest_stiffness`; where κ
    is small, its free parameter is its logarithm.
    """
    most = largest_stiffness(momentum)

    def bounded(free: Array) -> Array:
        return 1 / (np.exp(np.clip(-free, -60, 60)) + 1 / most)

    def curve(free: Array, times: Array, intervals: Array, lags: Array) -> Array:
        start, end = _columns(expit(free[..., :2]))
        stiffness, inertia = bounded(free[..., 2, None]), np.exp(np.clip(free[..., 3, None], -60, 60))
        return end + (start - end) * _distance(times, intervals, lags, momentum, stiffness, inertia)

    def guesses(history: History) -> list[list[float]]:
        start, end, span = _spread(history)
        delay = float(np.median(history.delays))
        points = []
        for share in (0.1, 0.3, 1.0):
            stiffness = (1 - momentum) / (share * span + delay)
            for inertia in (0.5 * (1 + momentum), 0.1 * span * (1 - momentum)):
                for plateau in (end, _inside(end + 0.3 * (end - start))):
                    points.append([logit(start), logit(plateau), np.log(stiffness), np.log(inertia)])
        return points

    def read(free: Array) -> Array:
        return np.concatenate([expit(free[..., :2]), bounded(free[..., 2:3]), np.exp(free[..., 3:])], axis=-1)

    return Law("oscillator", ("start", "plateau", "stiffness", "inertia"), curve, guesses, read)


def _distance(steps: Array, intervals: Array, lags: Array, momentum: float, stiffness: Array, inertia: Array) -> Array:
    """Returns the oscillator's distance to its plateau at `steps`, as a share of its distance at the start: E(t)/E(0).

    `stiffness` and `inertia` are [1] or [draws, 1]. Each stretch of equal τ and lag has its own coefficients;
    position and velocity are carried over.
    """
    result = np.ones((*stiffness.shape[:-1], len(steps)))
    position, velocity, since = np.ones_like(stiffness), np.zeros_like(stiffness), 0.0
    edges = [0, *(np.flatnonzero((np.diff(intervals) != 0) | (np.diff(lags) != 0)) + 1), len(steps)]
    for first, last in pairwise(edges):
        mass, damping = sampled_coefficients(momentum, stiffness, intervals[first], lags[first])
        mass = mass - (1 + momentum) / 2 + inertia
        frequency = np.sqrt(stiffness / mass)
        ratio = damping / (2 * np.sqrt(stiffness * mass))
        # A round is measured before its steps are taken, so its τ acts from its point to the next.
        end = steps[last] if last < len(steps) else steps[last - 1]
        times = np.append(steps[first:last], end) - since
        positions, velocities = propagate(times, position, velocity, ratio, frequency)
        result[..., first:last] = positions[..., :-1]
        position, velocity, since = positions[..., -1:], velocities[..., -1:], end
    return np.clip(np.nan_to_num(result, nan=1e3, posinf=1e3, neginf=-1e3), -1e3, 1e3)


def _two_rates(free: Array) -> Array:
    """Returns a law's parameters, given the logits of two pass rates and the logarithms of the other parameters."""
    return np.concatenate([expit(free[..., :2]), np.exp(free[..., 2:])], axis=-1)


def _three(function: Callable[[Array, Array, Array, Array], Array], name: str, names: tuple[str, ...]) -> Law:
    """Makes a law from `function`, with two pass rates and one time constant as its parameters.

    The free parameters are the logits of the two rates and the logarithm of the time.
    """

    def curve(free: Array, times: Array, *_: Array) -> Array:
        first, second = _columns(expit(free[..., :2]))
        return function(first, second, np.exp(np.clip(free[..., 2, None], -60, 60)), times)

    def guesses(history: History) -> list[list[float]]:
        start, end, span = _spread(history)
        plateaus = (end, _inside(end + 0.3 * (end - start)))
        return [
            [logit(start), logit(plateau), np.log(share * span)] for share in (0.1, 0.3, 1.0) for plateau in plateaus
        ]

    return Law(name, names, curve, guesses, _two_rates)


EXPONENTIAL = _three(
    lambda start, plateau, time, steps: plateau + (start - plateau) * np.exp(-steps / time),
    "exponential",
    ("start", "plateau", "relaxation_steps"),
)


MIXTURE = _three(
    lambda start, plateau, time, steps: plateau + (start - plateau) / (1 + steps / time),
    "mixture",
    ("start", "plateau", "relaxation_steps"),
)


def gating_law(exponent: float, mean_exponent: float = 0.0) -> Law:
    """Returns the gating law: one typical prompt with ṗ ∝ [p(1−p)]^((4−α)/2)·p^(−β), times a ceiling.

    It starts slowly because σ is small near p = 0. The solution is F(p(t)) = F(p₀) + t/T, where F is the objective at
    the exponents 4−α and −β. For α = 1 and β = 0 it is the closed form of a power-law saturation.
    """
    rates = expit(np.linspace(-14, 14, 2001))
    potential = objective(rates, 4 - exponent, -mean_exponent)

    def function(start: Array, ceiling: Array, time: Array, steps: Array) -> Array:
        first = np.interp(np.minimum(start / ceiling, rates[-1]), rates, potential)
        return ceiling * np.interp(first + steps / time, potential, rates)

    return _three(function, "gating", ("start", "ceiling", "time_steps"))


def _sigmoid() -> Law:
    """Returns the sigmoid law. Its free parameters are two logits, the logarithm of the width, and the middle step."""

    def curve(free: Array, times: Array, *_: Array) -> Array:
        floor, end = _columns(expit(free[..., :2]))
        width, middle = np.exp(np.clip(free[..., 2, None], -60, 60)), free[..., 3, None]
        return floor + (end - floor) * expit((times - middle) / width)

    def guesses(history: History) -> list[list[float]]:
        start, end, span = _spread(history)
        middle = float(np.mean(history.steps - history.steps[0]))
        return [
            [logit(start), logit(end), np.log(width * span), center * middle]
            for width in (0.05, 0.2)
            for center in (0.5, 1.0, 1.5)
        ]

    def read(free: Array) -> Array:
        return np.concatenate([expit(free[..., :2]), np.exp(free[..., 2:3]), free[..., 3:]], axis=-1)

    return Law("sigmoid", ("floor", "plateau", "width_steps", "middle_step"), curve, guesses, read)


SIGMOID = _sigmoid()
LINE = Law(
    "line",
    ("start", "slope"),
    lambda free, times, *_: free[..., 0, None] + free[..., 1, None] * times,
    lambda history: [[float(history.values.mean()), 0.0]],
    np.asarray,
)
CONSTANT = Law(
    "constant",
    ("level",),
    lambda free, times, *_: free[..., 0, None] + np.zeros(len(times)),
    lambda history: [[float(history.values.mean())]],
    np.asarray,
)
