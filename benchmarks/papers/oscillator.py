"""This module holds the reduced-order model of training: the distance to the plateau is a damped oscillator.

    M·Ë + C·Ė + k·E = ξ(t),   E = P − P*,   time in optimizer steps      (Ghosh et al., arXiv:2606.30789)

Momentum μ acts as inertia. The lag τ of the sampling policy reduces the damping. The group size acts as a temperature:
it appears in the noise only. The coefficients come from the central expansion of the heavy-ball update with a gradient
that is τ steps old, x_{t+1} − x_t = μ(x_t − x_{t−1}) − κ·x_{t−τ}:

    M = (1+μ)/2 + ½κτ²      C = (1−μ) − κτ      k = κ

κ = Kη is the stiffness per step, that is reward curvature times step size. It is measured, never set. Under Adam,
whose first moment is an average, Kη(1 − β₁) stands in its place, and the threshold is Kητ < 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Oscillator:
    """An oscillator is given by mass M, damping C and stiffness k of the reduced model. Time is in optimizer steps."""

    mass: float
    damping: float
    stiffness: float

    @property
    def frequency(self) -> float:
        """Returns the natural frequency ω₀ = √(k/M), in radians per step."""
        return float(np.sqrt(self.stiffness / self.mass))

    @property
    def damping_ratio(self) -> float:
        """Returns the damping ratio ζ = C/(2√(kM)). Above 1 the model is overdamped, below 1 it oscillates.

        At 0 or less it is unstable.
        """
        return self.damping / (2 * float(np.sqrt(self.stiffness * self.mass)))


def oscillator(momentum: float, stiffness: float, lag: float) -> Oscillator:
    """Returns the model for momentum μ, stiffness κ > 0 and a lag of τ ≥ 0 steps."""
    return Oscillator(
        mass=(1 + momentum) / 2 + stiffness * lag**2 / 2,
        damping=(1 - momentum) - stiffness * lag,
        stiffness=stiffness,
    )


def sampled_oscillator(momentum: float, stiffness: float, interval: float, lag: float = 0.0) -> Oscillator:
    """Returns the model of sample and hold: a gradient stays the same for `interval` steps, as in training.

    The samples' age a is `lag` … `lag` + τ−1 steps, each equally often. So the expansion in the module's docstring,
    averaged over a, has E[a] = lag + (τ−1)/2 instead of τ, and E[a²] = E[a]² + (τ²−1)/12 instead of τ². At τ = 1
    without a lag the model is the heavy ball itself.

    >>> held_oscillator(0.9, 0.004, 1) == oscillator(0.9, 0.004, 0)
    True
    """
    mass, damping = sampled_coefficients(momentum, stiffness, interval, lag)
    return Oscillator(mass, damping, stiffness)


def sampled_coefficients(momentum: float, stiffness: Any, interval: float, lag: float = 0) -> tuple[Any, Any]:
    """Returns mass and damping of `sampled_oscillator`, for one stiffness or an array of them."""
    age = lag + (interval - 1) / 2
    square = age**2 + (interval**2 - 1) / 12
    return (1 + momentum) / 2 + stiffness * square / 2, (1 - momentum) - stiffness * age


def propagate(
    steps: ArrayLike, position: ArrayLike, velocity: ArrayLike, damping_ratio: ArrayLike, frequency: ArrayLike
) -> tuple[Array, Array]:
    """Returns E and Ė after `steps` from E(0) = `position` and Ė(0) = `velocity`, in closed form.

    `steps` is [points]. The other arguments are scalars, or [draws, 1] for results [draws, points].

        E = e^{−at}·[E₀·c + (Ė₀ + aE₀)·s],  a = ζω,  b² = (ζ²−1)ω²,  c = cosh bt,  s = sinh(bt)/b

    For b² < 0, cos and sin take the place of cosh and sinh; at b = 0 the limit is used. When bt is large, the two
    exponentials of cosh and sinh are computed separately, so that nothing overflows.
    """
    time, position, velocity, damping_ratio, frequency = (
        np.asarray(number, float) for number in (steps, position, velocity, damping_ratio, frequency)
    )
    decay, square = damping_ratio * frequency, (damping_ratio**2 - 1) * frequency**2
    apart = (square * time**2 > 1) & (damping_ratio > 0)
    near = np.where(apart, 0.0, time)
    c, s = _cosh_and_sinh_over(square, near)
    with np.errstate(over="ignore"):
        envelope = np.exp(-decay * near)
        lead = velocity + decay * position
        position_near = envelope * (position * c + lead * s)
        velocity_near = -decay * position_near + envelope * (position * square * s + lead * c)
    if not apart.any():
        return position_near, velocity_near
    # Where they are not apart, what is computed here has no meaning and is left out.
    with np.errstate(all="ignore"):
        root = np.sqrt(square)
        # The slow rate a − b is computed as ω²/(a + b), which does not cancel.
        fast, slow = decay + root, frequency**2 / (decay + root)
        slow_part = (fast * position + velocity) / (fast - slow) * np.exp(-slow * time)
        fast_part = -(slow * position + velocity) / (fast - slow) * np.exp(-fast * time)
        return (
            np.where(apart, slow_part + fast_part, position_near),
            np.where(apart, -slow * slow_part - fast * fast_part, velocity_near),
        )


def _cosh_and_sinh_over(square: Array, time: Array) -> tuple[Array, Array]:
    """Returns cosh(bt) and sinh(bt)/b for b² = `square` of either sign."""
    z = square * time**2
    root = np.sqrt(np.abs(z))
    small = root < 1e-4
    safe = np.where(small, 1.0, root)
    # Only one of two for a single curve, as a fit asks for it.
    grows, turns = bool((square >= 0).any()), bool((square < 0).any())
    with np.errstate(over="ignore"):
        c, s = (np.cosh(root), np.sinh(safe)) if grows else (np.cos(root), np.sin(safe))
        if grows and turns:
            c, s = np.where(square >= 0, c, np.cos(root)), np.where(square >= 0, s, np.sin(safe))
        ratio = np.where(small, 1 + z / 6, s / safe)
    return c, time * ratio
