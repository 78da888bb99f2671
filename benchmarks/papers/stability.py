"""This module computes stability limits of the refresh interval τ: how stale the sampling policy may be.

Limits are given in units of c = κτ/(1−μ), the loop's gain over its damping. κ is the stiffness per optimizer step in
the convention of the heavy ball, and μ the momentum. The printed bound is c < 1 (arXiv:2606.30789: Kη·K_ref < 1−μ,
which says that the damping C stays positive). The exact limit depends on how staleness arises:

    constant_lag      the gradient is always τ steps old
    sample_and_hold   the gradient is frozen at the snapshot for the τ steps of a round, then taken anew
    fresh             importance weights make every inner step's gradient current, to first order

When samples are drawn ahead of their round, the policy that wrote them is older by `lag`, the optimizer steps between
its weights and the round's beginning. The delay τ + lag then takes the place of τ in c.

At the exact limit the largest eigenvalue of the linear iteration reaches the unit circle.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq

PRINTED_BOUND = 1.0


def constant_lag_radius(momentum: float, stiffness: float, interval: int, lag: int = 0) -> float:
    """Returns the spectral radius of x_{t+1} = (1+μ)x_t − μx_{t−1} − κx_{t−d}, with d = τ + lag."""
    delay = interval + lag
    coefficients = np.zeros(max(delay, 1) + 2)
    coefficients[0], coefficients[1], coefficients[2] = 1.0, -(1 + momentum), momentum
    coefficients[delay + 1] += stiffness
    return float(np.abs(np.roots(coefficients)).max())


def sample_and_hold_radius(momentum: float, stiffness: float, interval: int, lag: int = 0) -> float:
    """Returns the spectral radius of one round of τ steps v ← μv − κx₀, x ← x + v.

    x₀ is the first x of the round, or with a `lag` that of an earlier round. The lag is rounded up to whole rounds.
    """
    powers = momentum ** np.arange(1, interval + 1)
    # v_j = μ^j v₀ − κx₀(1 + … + μ^{j−1}); x_τ is x₀ plus all of them.
    sums = np.cumsum(np.concatenate([[1.0], powers[:-1]]))
    # The state is v, then x at the beginning of this round, then x of the earlier rounds that still act.
    earlier = -(-lag // interval)
    round_map = np.zeros((earlier + 2, earlier + 2))
    round_map[0, 0], round_map[1, 0], round_map[1, 1] = powers[-1], powers.sum(), 1.0
    round_map[0, -1] -= stiffness * sums[-1]
    round_map[1, -1] -= stiffness * sums.sum()
    round_map[2:, 1:-1] = np.eye(earlier)
    return float(np.abs(np.linalg.eigvals(round_map)).max())


def fresh_radius(momentum: float, stiffness: float, interval: int, lag: int = 0) -> float:
    """Returns the spectral radius without staleness, which depends on neither `interval` nor `lag`."""
    return constant_lag_radius(momentum, stiffness, 0)


RADII: dict[str, Callable[[float, float, int, int], float]] = {
    "constant_lag": constant_lag_radius,
    "sample_and_hold": sample_and_hold_radius,
    "fresh": fresh_radius,
}


def critical_stiffness(kind: str, momentum: float, interval: int, lag: int = 0) -> float:
    """Returns the κ at which the iteration of this kind loses stability, or ∞ if none is found.

    `kind` is a key of `RADII`, and `interval` is at least 1.
    """
    radius = RADII[kind]

    def excess(stiffness: float) -> float:
        return radius(momentum, stiffness, interval, lag) - 1

    # The iteration is stable for small κ. A grid finds the first crossing; bisection alone could find a later one,
    # since stability may return at larger κ.
    guess = (1 - momentum) / (interval + lag)
    grid = guess * np.geomspace(1e-3, 1e3, 400)
    values = np.array([excess(stiffness) for stiffness in grid])
    first = int(np.argmax(values > 1e-12))
    if values[first] <= 1e-12:
        return float("inf")
    return float(brentq(excess, grid[first - 1], grid[first], xtol=1e-14, rtol=1e-12))


def critical_gain(kind: str, momentum: float, interval: int, lag: int = 0) -> float:
    """Returns the stability threshold in units of c = κ(τ + lag)/(1−μ). The printed bound is 1."""
    return gain(momentum, critical_stiffness(kind, momentum, interval, lag), interval + lag)


def gain(momentum: float, stiffness: float, delay: float) -> float:
    """Returns c = κd/(1−μ), with the delay d = τ + lag."""
    return stiffness * delay / (1 - momentum)
