"""Oscillation and the refresh-interval threshold of arXiv:2606.30789, in the softmax bandit it reduces training to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from grpo.dynamics import bandit
from grpo.dynamics.oscillator import oscillator
from grpo.dynamics.thresholds import PRINTED_BOUND, critical_gain
from grpo.report.comparison import Comparison, Reproduction, Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOMENTUM = 0.9
INTERVALS = (2, 4, 8, 16, 32)
# Which exact law each way of making staleness must follow.
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
    """Every boundary at the stiffness measured from the bandit's own early curve."""
    measured = bandit.measured_stiffness(MOMENTUM, 0.01)
    curvature = measured / 0.01
    found = {
        (mode, interval): bandit.critical_step_size(gradient, MOMENTUM, interval)
        * curvature
        * interval
        / (1 - MOMENTUM)
        for mode, gradient in bandit.MODES.items()
        for interval in (INTERVALS if mode != "ratio_and_loss" else INTERVALS[:3])
    }
    boundaries = [
        Row(
            f"{NAMES[mode]}, τ = {interval}",
            f"{critical_gain(LAWS[mode], MOMENTUM, interval):.3f}",
            f"{value:.3f}" if np.isfinite(value) else "none found",
        )
        for (mode, interval), value in found.items()
    ]
    stiffness = Row("κ per step at η = 0.01", f"{0.01 * bandit.curvature():.3e}", f"{measured:.3e}")
    return Reproduction(
        name="bandit",
        comparisons=(
            Comparison("Stiffness, measured from the early curve", "exact", (stiffness,)),
            Comparison("Stability is lost at c = Kητ/(1−μ), μ = 0.9 (printed bound: 1)", "predicted", boundaries),
            Comparison("Oscillation begins at ζ = 1: Kη/(1−μ)", "reduced model", _oscillation()),
        ),
        remarks=(
            "The printed bound c < 1 is safe in every case and tight for a constant lag only.",
            "Importance weights do not move the threshold while the KL penalty sits inside the reward: what pulls the "
            "policy back is frozen with the round. With the penalty in the loss they remove it.",
            _clipping(curvature),
        ),
        draw=lambda figure: _draw(figure, found),
    )


def _oscillation() -> list[Row]:
    """Where a run first overshoots, by bisection, against 4kM = C²."""
    rows = []
    for interval in (0, 4, 16):
        low, high = 1e-4, 10.0
        while high / low > 1.01:
            middle = (low * high) ** 0.5
            over = bandit.overshoots(bandit.constant_lag, MOMENTUM, middle, interval)
            low, high = (low, middle) if over else (middle, high)
        ours = low * bandit.curvature() / (1 - MOMENTUM)
        ratios = np.geomspace(1e-4, 10, 4000)
        kinds = [oscillator(MOMENTUM, each * (1 - MOMENTUM), interval).damping_ratio for each in ratios]
        model = ratios[np.argmax(np.array(kinds) < 1)]
        rows.append(Row(f"constant lag τ = {interval}", f"{model:.4f}", f"{ours:.4f}"))
    return rows


def _clipping(curvature: float) -> str:
    """What clipping does beyond the threshold: it bounds the swing, it does not restore stability."""
    interval = 8
    step_size = 1.5 * critical_gain("sample_and_hold", MOMENTUM, interval) * (1 - MOMENTUM) / (curvature * interval)
    swings = []
    for clip in (np.inf, 0.2):
        gradient = bandit.weighted(clip, penalty_in_loss=False)
        path = bandit.train(gradient, bandit.fixed_point() + 0.01, MOMENTUM, step_size, interval, 4000)
        rates = 1 / (1 + np.exp(-path[len(path) // 2 :]))
        swings.append(float(np.ptp(rates)))
    return (
        f"At 1.5 times its threshold (τ = {interval}) the pass rate swings over {swings[0]:.2f}; with ratios clipped "
        f"to 1 ± 0.2 over {swings[1]:.2f}: what is unstable stays so."
    )


def _draw(figure: Figure, found: dict[tuple[str, int], float]) -> None:
    axes = figure.subplots()
    every = np.arange(2, 33)
    for index, mode in enumerate(mode for mode in bandit.MODES if mode != "ratio_and_loss"):
        color = f"C{index}"
        points = [(interval, value) for (name, interval), value in found.items() if name == mode]
        marker = {"ratio": "x"}.get(mode, "o")
        axes.plot(*zip(*points, strict=True), marker, color=color, label=f"{NAMES[mode]}: measured")
    for kind, color in (("constant_lag", "C0"), ("sample_and_hold", "C1")):
        exact = [critical_gain(kind, MOMENTUM, int(each)) for each in every]
        axes.plot(every, exact, color=color, linewidth=1, label=f"{NAMES[kind]}: eigenvalues")
    axes.axhline(PRINTED_BOUND, color="0.5", linestyle="--", label="printed bound")
    axes.set_xlabel("refresh interval τ")
    axes.set_title("stability boundary c = Kητ/(1−μ) of the softmax bandit, μ = 0.9")
    axes.set_ylim(0, 5)
    axes.legend(fontsize=8)
