"""This script reproduces when training oscillates, and from which refresh interval it is unstable (arXiv:2606.30789).

    python benchmarks/papers/bandit.py FOLDER

The refresh interval τ is the number of optimizer steps between two updates of the sampler's weights. Training is
reduced to a softmax bandit, as in the paper.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.papers import bandit_model as bandit
from benchmarks.papers.comparison import Comparison, Reproduction, Row, command
from benchmarks.papers.oscillator import oscillator
from benchmarks.papers.stability import PRINTED_BOUND, critical_gain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOMENTUM = 0.9
INTERVALS = (2, 4, 8, 16, 32)
# The kind of staleness of each simulated gradient (`bandit.MODES`) → the kind whose exact threshold it must follow.
LAWS = {
    "constant_lag": "constant_lag",
    "sample_and_hold": "sample_and_hold",
    "ratio": "sample_and_hold",
    "ratio_and_loss": "fresh",
}
NAMES = {
    "constant_lag": "constant lag",
    "sample_and_hold": "sample and hold",
    "ratio": "importance weights, KL in the reward",
    "ratio_and_loss": "importance weights, KL in the loss",
}


def reproduce() -> Reproduction:
    """Measures the bandit's stability boundaries, and compares them with the predicted ones.

    The measured step sizes are converted to the gain c with the stiffness from the bandit's own early curve.
    """
    measured_stiffness = bandit.measured_stiffness(MOMENTUM, 0.01)
    curvature = measured_stiffness / 0.01
    boundaries = {
        (mode, interval): bandit.critical_step_size(gradient, MOMENTUM, interval)
        * curvature
        * interval
        / (1 - MOMENTUM)
        for mode, gradient in bandit.MODES.items()
        for interval in (INTERVALS if mode != "ratio_and_loss" else INTERVALS[:3])
    }
    boundary_rows = [
        Row(
            f"{NAMES[mode]}, τ = {interval}",
            f"{critical_gain(LAWS[mode], MOMENTUM, interval):.3f}",
            f"{value:.3f}" if np.isfinite(value) else "none found",
        )
        for (mode, interval), value in boundaries.items()
    ]
    stiffness = Row("κ per step at η = 0.01", f"{0.01 * bandit.curvature():.3e}", f"{measured_stiffness:.3e}")
    return Reproduction(
        name="bandit",
        comparisons=(
            Comparison("Stiffness, measured from the early curve", "exact", (stiffness,)),
            Comparison("Stability is lost at c = Kητ/(1−μ), μ = 0.9 (printed bound: 1)", "predicted", boundary_rows),
            Comparison("Oscillation begins at ζ = 1: Kη/(1−μ)", "reduced model", _oscillation()),
        ),
        remarks=(
            "The printed bound c < 1 is safe in every case and tight for a constant lag only.",
            "Importance weights do not move the threshold while the KL penalty is part of the reward, because the pull "
            "towards the reference is then fixed for the round. With the penalty in the loss, the weights remove the "
            "threshold.",
            _clipping(curvature),
        ),
        draw=lambda figure: _draw(figure, boundaries),
    )


def _oscillation() -> list[Row]:
    """Compares the smallest step size at which a run overshoots, found by bisection, with the reduced model's.

    The model is a damped oscillator with mass M, damping C and stiffness k, which overshoots where 4kM > C².
    """
    rows = []
    for interval in (0, 4, 16):
        low, high = 1e-4, 10.0
        while high / low > 1.01:
            middle = (low * high) ** 0.5
            is_overshooting = bandit.overshoots(bandit.constant_lag, MOMENTUM, middle, interval)
            low, high = (low, middle) if is_overshooting else (middle, high)
        our_threshold = low * bandit.curvature() / (1 - MOMENTUM)
        ratios = np.geomspace(1e-4, 10, 4000)
        damping = [oscillator(MOMENTUM, ratio * (1 - MOMENTUM), interval).damping_ratio for ratio in ratios]
        model = ratios[np.argmax(np.array(damping) < 1)]
        rows.append(Row(f"constant lag τ = {interval}", f"{model:.4f}", f"{our_threshold:.4f}"))
    return rows


def _clipping(curvature: float) -> str:
    """Measures how far the pass rate swings beyond the stability threshold, with and without clipped ratios."""
    interval = 8
    step_size = 1.5 * critical_gain("sample_and_hold", MOMENTUM, interval) * (1 - MOMENTUM) / (curvature * interval)
    swings = []
    for clip in (np.inf, 0.2):
        gradient = bandit.weighted(clip, penalty_in_loss=False)
        path = bandit.train(gradient, bandit.fixed_point() + 0.01, MOMENTUM, step_size, interval, 4000)
        rates = 1 / (1 + np.exp(-path[len(path) // 2 :]))
        swings.append(float(np.ptp(rates)))
    return (
        f"At 1.5 times the threshold (τ = {interval}) the pass rate swings by {swings[0]:.2f}, and by {swings[1]:.2f} "
        "with ratios clipped to 1 ± 0.2, so clipping does not make an unstable run stable."
    )


def _draw(figure: Figure, boundaries: dict[tuple[str, int], float]) -> None:
    axes = figure.subplots()
    intervals = np.arange(2, 33)
    for index, mode in enumerate(mode for mode in bandit.MODES if mode != "ratio_and_loss"):
        color = f"C{index}"
        points = [(interval, value) for (name, interval), value in boundaries.items() if name == mode]
        marker = {"ratio": "x"}.get(mode, "o")
        axes.plot(*zip(*points, strict=True), marker, color=color, label=f"{NAMES[mode]}: measured")
    for kind, color in (("constant_lag", "C0"), ("sample_and_hold", "C1")):
        exact = [critical_gain(kind, MOMENTUM, int(interval)) for interval in intervals]
        axes.plot(intervals, exact, color=color, linewidth=1, label=f"{NAMES[kind]}: eigenvalues")
    axes.axhline(PRINTED_BOUND, color="0.5", linestyle="--", label="printed bound")
    axes.set_xlabel("refresh interval τ")
    axes.set_title("stability boundary c = Kητ/(1−μ) of the softmax bandit, μ = 0.9")
    axes.set_ylim(0, 5)
    axes.legend(fontsize=8)


if __name__ == "__main__":
    command(sys.argv[1:], reproduce)
