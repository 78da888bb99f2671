"""The softmax bandit that training reduces to (arXiv:2606.30789), with everything known exactly.

Two arms, one of them right: policy p = 1/(1+e^−θ), reward 1 for the right arm, a KL penalty β to the policy of θ = 0.
It holds the policy at θ* = 1/β, where the reward's pull and the penalty's balance, with curvature K = β·p*(1−p*).
Expected gradients, so that stability is a property of the iteration and not of luck. What a step reads where:

    constant_lag      the gradient of the policy τ steps ago
    sample_and_hold   the gradient of the round's first policy, for all τ steps of the round
    ratio             importance weights: Σ_a π_old ρ Â_old ∇log π. The score and the ratio are of the present policy,
                      the penalty inside the reward is of the round's first
    ratio_and_loss    the same with the penalty in the loss, where it is of the present policy too
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

Array = NDArray[np.float64]

Gradient = Callable[[Array, int, int], float]
"""(policies so far [step + 1], step, τ) → ascent direction of θ."""

PENALTY = 0.5


def fixed_point() -> float:
    """θ*."""
    return 1 / PENALTY


def curvature() -> float:
    """K = −d(gradient)/dθ at θ*."""
    rate = expit(fixed_point())
    return float(PENALTY * rate * (1 - rate))


def exact(theta: float) -> float:
    """Gradient of the objective E[reward] − β·KL: p(1−p)(1 − βθ)."""
    rate = expit(theta)
    return float(rate * (1 - rate) * (1 - PENALTY * theta))


def constant_lag(past: Array, step: int, interval: int) -> float:
    return exact(past[max(step - interval, 0)])


def sample_and_hold(past: Array, step: int, interval: int) -> float:
    return exact(past[step - step % interval])


def weighted(clip: float, penalty_in_loss: bool) -> Gradient:
    """Importance-weighted steps on a round's samples, ratios clipped to 1 ± `clip` (∞: not at all)."""

    def gradient(past: Array, step: int, interval: int) -> float:
        old, now = past[step - step % interval], past[step]
        p_old, p_now = expit(old), expit(now)
        reward_gap = 1.0 if penalty_in_loss else 1 - PENALTY * old
        # Advantages of the right and the wrong arm under the old policy.
        advantages = np.array([(1 - p_old) * reward_gap, -p_old * reward_gap])
        ratios = np.array([p_now / p_old, (1 - p_now) / (1 - p_old)])
        kept = np.where(advantages > 0, ratios < 1 + clip, ratios > 1 - clip)
        scores = np.array([1 - p_now, -p_now])
        found = float(np.sum(np.array([p_old, 1 - p_old]) * ratios * advantages * scores * kept))
        return found - (PENALTY * p_now * (1 - p_now) * now if penalty_in_loss else 0.0)

    return gradient


MODES: dict[str, Gradient] = {
    "constant_lag": constant_lag,
    "sample_and_hold": sample_and_hold,
    "ratio": weighted(np.inf, penalty_in_loss=False),
    "ratio_and_loss": weighted(np.inf, penalty_in_loss=True),
}


def train(
    gradient: Gradient, start: float, momentum: float, step_size: float, interval: int, steps: int, bound: float = 50.0
) -> Array:
    """θ [steps taken + 1] under heavy-ball ascent v ← μv + g, θ ← θ + ηv, until it is `bound` away from θ*."""
    past = np.empty(steps + 1)
    past[0], velocity, end = start, 0.0, fixed_point()
    for step in range(steps):
        velocity = momentum * velocity + gradient(past, step, interval)
        past[step + 1] = past[step] + step_size * velocity
        if abs(past[step + 1] - end) > bound:
            return past[: step + 2]
    return past


def stable(gradient: Gradient, momentum: float, step_size: float, interval: int) -> bool:
    """Whether a small push away from θ* dies out before it is a thousand times itself."""
    push, steps = 1e-6, max(4000, 40 * interval)
    path = train(gradient, fixed_point() + push, momentum, step_size, interval, steps, bound=1e3 * push)
    distance = np.abs(path - fixed_point())
    half = len(distance) // 2
    # Peaks of the two halves: an oscillation's own zeros do not count.
    return len(path) == steps + 1 and bool(distance[half:].max() < distance[:half].max())


def critical_step_size(gradient: Gradient, momentum: float, interval: int) -> float:
    """The step size at which stability is lost, by bisection to a thousandth."""
    guess = (1 - momentum) / (curvature() * interval)
    factors = np.geomspace(0.2, 500, 60)
    unstable = next((each for each in factors if not stable(gradient, momentum, guess * each, interval)), None)
    if unstable is None:
        return float("inf")
    low, high = unstable / (factors[1] / factors[0]), unstable
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if stable(gradient, momentum, guess * middle, interval) else (low, middle)
    return float(guess * low)


def measured_stiffness(momentum: float, step_size: float) -> float:
    """κ = Kη from the early curve of a run without staleness: its relaxation time T, κ = (1−μ)/T, at a step size
    small enough to be overdamped."""
    steps = int(20 * (1 - momentum) / (curvature() * step_size))
    distance = train(constant_lag, fixed_point() - 0.05, momentum, step_size, 0, steps) - fixed_point()
    kept = np.abs(distance) > 1e-4 * abs(distance[0])
    window = np.flatnonzero(kept)[len(np.flatnonzero(kept)) // 4 :]
    slope = np.polyfit(window, np.log(np.abs(distance[window])), 1)[0]
    # The slow eigenvalue z = e^slope of z² − (1+μ−κ)z + μ = 0.
    z = np.exp(slope)
    return float((1 + momentum) - z - momentum / z)


def overshoots(gradient: Gradient, momentum: float, step_size: float, interval: int) -> bool:
    """Whether a run that starts below its fixed point goes past it: underdamped."""
    path = train(gradient, fixed_point() - 0.05, momentum, step_size, interval, 4000) - fixed_point()
    return bool(path.max() > 1e-4 * 0.05)
