"""How stale the sampling policy may be: stability limits of the refresh interval τ.

All are in units of c = κτ/(1−μ), the loop's gain over its damping; κ is the stiffness per optimizer step in the
convention of the heavy ball, μ the momentum. The printed bound is c < 1 (arXiv:2606.30789: Kη·K_ref < 1−μ, which
says that the damping C stays positive). What it is exactly depends on how staleness is made:

    constant_lag      the gradient is always τ steps old
    sample_and_hold   the gradient is frozen at the snapshot for the τ steps of a round, then taken anew
    fresh             importance weights make every inner step's gradient current, to first order

The exact limits are where the largest eigenvalue of the linear iteration reaches the unit circle.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq

PRINTED_BOUND = 1.0


def constant_lag_radius(momentum: float, stiffness: float, lag: int) -> float:
    """Spectral radius of x_{t+1} = (1+μ)x_t − μx_{t−1} − κx_{t−τ}."""
    coefficients = np.zeros(max(lag, 1) + 2)
    coefficients[0], coefficients[1], coefficients[2] = 1.0, -(1 + momentum), momentum
    coefficients[lag + 1] += stiffness
    return float(np.abs(np.roots(coefficients)).max())


def sample_and_hold_radius(momentum: float, stiffness: float, interval: int) -> float:
    """Spectral radius of one round of τ steps v ← μv − κx₀, x ← x + v with x₀ the round's first x."""
    powers = momentum ** np.arange(1, interval + 1)
    # v_j = μ^j v₀ − κx₀(1 + … + μ^{j−1}); x_τ is x₀ plus all of them.
    sums = np.cumsum(np.concatenate([[1.0], powers[:-1]]))
    round_map = np.array([[1 - stiffness * sums.sum(), powers.sum()], [-stiffness * sums[-1], powers[-1]]])
    return float(np.abs(np.linalg.eigvals(round_map)).max())


def fresh_radius(momentum: float, stiffness: float, interval: int) -> float:
    """Spectral radius without staleness; `interval` does not matter."""
    return constant_lag_radius(momentum, stiffness, 0)


RADII: dict[str, Callable[[float, float, int], float]] = {
    "constant_lag": constant_lag_radius,
    "sample_and_hold": sample_and_hold_radius,
    "fresh": fresh_radius,
}


def critical_stiffness(kind: str, momentum: float, interval: int) -> float:
    """κ at which the iteration of this kind loses stability. `kind` is a key of `RADII`; τ ≥ 1."""
    radius = RADII[kind]

    def excess(stiffness: float) -> float:
        return radius(momentum, stiffness, interval) - 1

    # Stable for small κ; one grid of factors finds the first crossing, since instability may come and go.
    guess = (1 - momentum) / interval
    grid = guess * np.geomspace(1e-3, 1e3, 400)
    values = np.array([excess(stiffness) for stiffness in grid])
    first = int(np.argmax(values > 1e-12))
    if values[first] <= 1e-12:
        return float("inf")
    return float(brentq(excess, grid[first - 1], grid[first], xtol=1e-14, rtol=1e-12))


def critical_gain(kind: str, momentum: float, interval: int) -> float:
    """The threshold in units of c = κτ/(1−μ): 1 is the printed bound."""
    return critical_stiffness(kind, momentum, interval) * interval / (1 - momentum)


def gain(momentum: float, stiffness: float, interval: float) -> float:
    """c = κτ/(1−μ)."""
    return stiffness * interval / (1 - momentum)
