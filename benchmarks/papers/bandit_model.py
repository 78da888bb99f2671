"""This module simulates the softmax bandit to which training reduces (arXiv:2606.30789). Everything is known exactly.

The bandit has two arms, one of them right. The policy is p = 1/(1+e^−θ), the reward is 1 for the right arm, and a KL
penalty β pulls towards the policy of θ = 0. Reward and penalty balance at θ* = 1/β, with curvature K = β·p*(1−p*).
Gradients are expectations, so that stability is a property of the iteration and not of luck.

The modes differ in the gradient that a step uses:

    constant_lag      the gradient of the policy τ steps ago
    sample_and_hold   the gradient of the round's first policy, for all τ steps of the round
    ratio             importance weights: Σ_a π_old ρ Â_old ∇log π. Score and ratio are those of the present policy;
                      the penalty stands in the reward and is that of the round's first policy
    ratio_and_loss    the same with the penalty in the loss, where it is that of the present policy
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

Array = NDArray[np.float64]

Gradient = Callable[[Array, int, int], float]
"""A gradient function maps (θ so far [step + 1], step, τ) to the ascent direction of θ."""

PENALTY = 0.5
"""This is the coefficient β of the KL penalty."""


def fixed_point() -> float:
    """Returns θ*, where the reward's pull and the penalty's balance."""
    return 1 / PENALTY


def curvature() -> float:
    """Returns the curvature K = −d(gradient)/dθ at θ*."""
    rate = expit(fixed_point())
    return float(PENALTY * rate * (1 - rate))


def exact(theta: float) -> float:
    """Returns the gradient p(1−p)(1 − βθ) of the objective E[reward] − β·KL."""
    rate = expit(theta)
    return float(rate * (1 - rate) * (1 - PENALTY * theta))


def constant_lag(past: Array, step: int, interval: int) -> float:
    """Returns the gradient of the policy τ steps ago."""
    return exact(past[max(step - interval, 0)])


def sample_and_hold(past: Array, step: int, interval: int) -> float:
    """Returns the gradient of the round's first policy."""
    return exact(past[step - step % interval])


def weighted(clip: float, penalty_in_loss: bool) -> Gradient:
    """Returns the gradient function of importance-weighted steps on a round's samples.

    Ratios are clipped to 1 ± `clip`; ∞ means no clipping.
    """

    def gradient(past: Array, step: int, interval: int) -> float:
        old, now = past[step - step % interval], past[step]
        p_old, p_now = expit(old), expit(now)
        reward_gap = 1.0 if penalty_in_loss else 1 - PENALTY * old
        # These are the advantages of the right and of the wrong arm under the old policy.
        advantages = np.array([(1 - p_old) * reward_gap, -p_old * reward_gap])
        ratios = np.array([p_now / p_old, (1 - p_now) / (1 - p_old)])
        mask = np.where(advantages > 0, ratios < 1 + clip, ratios > 1 - clip)
        scores = np.array([1 - p_now, -p_now])
        of_reward = float(np.sum(np.array([p_old, 1 - p_old]) * ratios * advantages * scores * mask))
        return of_reward - (PENALTY * p_now * (1 - p_now) * now if penalty_in_loss else 0.0)

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
    """Runs heavy-ball ascent v ← μv + g, θ ← θ + ηv. Returns θ [steps taken + 1].

    It takes `steps` steps, or ends once θ is more than `bound` away from θ*.
    """
    past = np.empty(steps + 1)
    past[0], velocity, end = start, 0.0, fixed_point()
    for step in range(steps):
        velocity = momentum * velocity + gradient(past, step, interval)
        past[step + 1] = past[step] + step_size * velocity
        if abs(past[step + 1] - end) > bound:
            return past[: step + 2]
    return past


def stable(gradient: Gradient, momentum: float, step_size: float, interval: int) -> bool:
    """Tells whether a small push away from θ* dies out. A push that grows a thousandfold counts as unstable."""
    push, steps = 1e-6, max(4000, 40 * interval)
    path = train(gradient, fixed_point() + push, momentum, step_size, interval, steps, bound=1e3 * push)
    distance = np.abs(path - fixed_point())
    half = len(distance) // 2
    # The peaks of the two halves are compared, since an oscillation passes through zero by itself.
    return len(path) == steps + 1 and bool(distance[half:].max() < distance[:half].max())


def critical_step_size(gradient: Gradient, momentum: float, interval: int) -> float:
    """Returns the step size at which stability is lost, by bisection to a thousandth. It is ∞ if none is found."""
    guess = (1 - momentum) / (curvature() * interval)
    factors = np.geomspace(0.2, 500, 60)
    unstable = next((factor for factor in factors if not stable(gradient, momentum, guess * factor, interval)), None)
    if unstable is None:
        return float("inf")
    low, high = unstable / (factors[1] / factors[0]), unstable
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if stable(gradient, momentum, guess * middle, interval) else (low, middle)
    return float(guess * low)


def measured_stiffness(momentum: float, step_size: float) -> float:
    """Measures κ = Kη from the decay of a run without staleness.

    The step size must be small enough for the run to be overdamped. κ follows from the slow eigenvalue of the
    iteration. For small κ this means κ = (1−μ)/T with the relaxation time T.
    """
    steps = int(20 * (1 - momentum) / (curvature() * step_size))
    distance = train(constant_lag, fixed_point() - 0.05, momentum, step_size, 0, steps) - fixed_point()
    inside = np.abs(distance) > 1e-4 * abs(distance[0])
    window = np.flatnonzero(inside)[len(np.flatnonzero(inside)) // 4 :]
    slope = np.polyfit(window, np.log(np.abs(distance[window])), 1)[0]
    # z = e^slope is the slow eigenvalue, a root of z² − (1+μ−κ)z + μ = 0.
    z = np.exp(slope)
    return float((1 + momentum) - z - momentum / z)


def overshoots(gradient: Gradient, momentum: float, step_size: float, interval: int) -> bool:
    """Tells whether a run that starts below its fixed point goes past it, that is whether it is underdamped."""
    path = train(gradient, fixed_point() - 0.05, momentum, step_size, interval, 4000) - fixed_point()
    return bool(path.max() > 1e-4 * 0.05)
