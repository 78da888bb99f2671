"""This script tests whether a slow start comes from momentum's inertia (arXiv:2606.30789) or from the gating by σ
(arXiv:2607.00152).

    python benchmarks/papers/slow_start.py FOLDER

Gating means that a group's gradient is small while σ, the standard deviation of its rewards, is small.

It sweeps the momentum β₁ at equal drift, η(β₁) = η(1−β₁). The delay by inertia, M/C = (1+β₁)/(2(1−β₁)) steps, grows
with β₁. The delay by gating does not depend on β₁. When both are at work, the measured delay shows which is longer.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from benchmarks.papers.comparison import Comparison, Reproduction, Row, command
from benchmarks.papers.ensemble import Policy, pass_rates
from benchmarks.papers.identify import identify
from grpo.dynamics.history import History

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

MOMENTA = (0.0, 0.5, 0.9, 0.97)
STARTS = (0.05, 0.4)
STEPS, SIZE, PROMPTS = 150, 32, 16
RATE = 0.15


def reproduce() -> Reproduction:
    """Compares how long learning is delayed for a simulated policy under GRPO, from a low and a middling pass rate."""
    curves = {(start, momentum): _curve(start, momentum) for start in STARTS for momentum in MOMENTA}
    tables = [_delays(curves, start) for start in STARTS]
    return Reproduction(
        name="slow-start",
        comparisons=(*tables, _laws(curves)),
        remarks=(
            "Both causes are real, and their delays add up. From a hard start without momentum the delay comes from "
            "gating, and momentum lengthens it.",
            "At small β₁ the gating law fits best, as it should. When both causes are at work neither law is true, and "
            "a third law, the sigmoid, may fit best (AICc, one noisy replica each).",
        ),
        draw=lambda figure: _draw(figure, curves),
    )


def _policy(start: float, momentum: float) -> Policy:
    return Policy(SIZE, start=start, prompts=PROMPTS, momentum=momentum, step_size=RATE * (1 - momentum))


def _curve(start: float, momentum: float) -> Array:
    return pass_rates(_policy(start, momentum), STEPS, 200).mean(axis=1)


def delay(curve: Array) -> float:
    """Returns the number of steps until the curve's slope first reaches half of its maximum."""
    slope = np.gradient(curve)
    return float(np.argmax(slope >= slope.max() / 2))


def _delays(curves: dict[tuple[float, float], Array], start: float) -> Comparison:
    gating_delay = delay(curves[start, 0.0])
    rows = []
    for momentum in MOMENTA:
        inertia = (1 + momentum) / (2 * (1 - momentum))
        measured_delay = delay(curves[start, momentum])
        expected_delays = f"inertia {inertia:.1f}, gating {gating_delay:.0f}"
        rows.append(
            Row(f"steps to half of the steepest slope, β₁ = {momentum}", expected_delays, f"{measured_delay:.0f}")
        )
    return Comparison(f"Slow start from p = {start}, GRPO, matched drift", "predicted, each alone", rows)


def _laws(curves: dict[tuple[float, float], Array]) -> Comparison:
    rows = []
    for start, momentum in curves:
        rates = pass_rates(_policy(start, momentum), STEPS, 1, seed=1)[:, 0]
        generator = np.random.default_rng(2)
        num_tries = SIZE * PROMPTS
        values = generator.binomial(num_tries, rates) / num_tries
        errors = np.sqrt(np.maximum(rates * (1 - rates), 1 / num_tries) / num_tries)
        steps = np.arange(len(rates), dtype=float)
        identification = identify(History(steps, values, errors, np.ones_like(steps), np.zeros_like(steps)), momentum)
        order = ", ".join(
            f"{fit.law.name} {identification.weights[fit.law.name]:.2f}" for fit in identification.fits[:2]
        )
        rows.append(Row(f"p = {start}, β₁ = {momentum}", "gating" if momentum == 0 else "–", order))
    return Comparison("Laws by AICc weight", "true law", rows)


def _draw(figure: Figure, curves: dict[tuple[float, float], Array]) -> None:
    for axes, start in zip(figure.subplots(1, 2), STARTS, strict=True):
        for momentum in MOMENTA:
            axes.plot(curves[start, momentum], label=f"β₁ = {momentum}")
        axes.set_title(f"mean pass rate from p = {start}")
        axes.set_xlabel("step")
        axes.set_ylim(0, 1)
        axes.legend()


if __name__ == "__main__":
    command(sys.argv[1:], reproduce)
