"""This script reproduces how the group size G changes the reward curve.

    python benchmarks/papers/invariance.py FOLDER

The mean curve changes little with G (arXiv:2606.30789), namely by the drift's residual dependence on G
(arXiv:2607.00152). The variance of single curves about the mean falls as 1/G.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from benchmarks.papers.comparison import Comparison, Reproduction, Row, command
from benchmarks.papers.ensemble import Policy, pass_rates
from grpo.dynamics.sigma import drift

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

SIZES = (4, 8, 16, 32)
REPLICAS = 20_000


def reproduce() -> Reproduction:
    """Compares the drift, mean curves and fluctuations of many replicas of a simulated policy with theory."""
    curves = {
        (optimizer, size): pass_rates(_policy(optimizer, size), 400, 2000).mean(axis=1)
        for optimizer in ("sgd", "adam")
        for size in SIZES
    }
    variances = {size: _fluctuation(size) for size in SIZES}
    return Reproduction(
        name="invariance",
        comparisons=(_residue(), _curves(curves), _noise(variances)),
        remarks=(
            "The mean curve is not invariant under plain SGD, since a small group's drift is the share of its limit "
            "that the identity predicts. Adam divides by the gradient's size, which removes most of the difference.",
        ),
        draw=lambda figure: _draw(figure, curves, variances),
    )


def _policy(optimizer: str, size: int) -> Policy:
    step_size = 0.02 if optimizer == "sgd" else 0.008
    return Policy(size, start=0.1, penalty=0.25, optimizer=optimizer, momentum=0.9 * (optimizer == "adam"),
                  step_size=step_size)  # fmt: skip


def _residue() -> Comparison:
    rows = []
    for rate in (0.5, 0.3, 0.1, 0.05):
        for exponent, name in ((1.0, "GRPO"), (0.0, "Dr. GRPO")):
            law = float(drift(rate, 4, exponent) / drift(rate, 16, exponent))
            # The drift is measured as the mean first step of many replicas.
            drifts = [_first_move(rate, size, exponent) for size in (4, 16)]
            rows.append(
                Row(f"drift G = 4 : G = 16 at p = {rate}, {name}", f"{law:.2f}", f"{drifts[0] / drifts[1]:.2f}")
            )
    return Comparison("Residual dependence of the drift under SGD", "derived", rows)


def _first_move(rate: float, size: int, exponent: float) -> float:
    policy = Policy(size, exponent, start=rate, step_size=1e-4)
    rates = pass_rates(policy, 1, REPLICAS)
    return float((rates[1] - rates[0]).mean())


def _curves(curves: dict[tuple[str, int], Array]) -> Comparison:
    rows = []
    for optimizer in ("sgd", "adam"):
        reference = curves[optimizer, SIZES[-1]]
        middle = (reference[0] + reference[-1]) / 2
        halves = {size: int(np.argmax(curves[optimizer, size] >= middle)) for size in SIZES}
        spread = max(np.abs(curves[optimizer, size] - reference).max() for size in SIZES)
        rows.append(
            Row(
                f"steps to half way at G = {', '.join(map(str, SIZES))}, {optimizer}",
                "equal",
                ", ".join(str(halves[size]) for size in SIZES),
            )
        )
        rows.append(Row(f"largest distance of a mean curve from that of G = {SIZES[-1]}, {optimizer}", "0",
                        f"{spread:.3f}"))  # fmt: skip
    return Comparison("Mean curves (claimed: invariant to leading order)", "printed", rows)


def _fluctuation(size: int) -> float:
    """Returns the variance of the pass rate about its plateau, over replicas.

    The policy is trained with Dr. GRPO's advantages (α = 0), whose plateau depends least on G.
    """
    policy = Policy(size, exponent=0.0, start=0.7, penalty=0.25, step_size=0.05)
    return float(pass_rates(policy, 1500, 1000)[500:].var(axis=1).mean())


def _noise(variances: dict[int, float]) -> Comparison:
    slope = np.polyfit(np.log(list(variances)), np.log(list(variances.values())), 1)[0]
    rows = [Row("exponent of G in the variance", "−1", f"{slope:.2f}")]
    rows += [Row(f"variance × G at G = {size}", "constant", f"{size * value:.2e}") for size, value in variances.items()]
    return Comparison("Fluctuation about the plateau", "printed", rows)


def _draw(figure: Figure, curves: dict[tuple[str, int], Array], variances: dict[int, float]) -> None:
    panels = figure.subplots(1, 3)
    for axes, optimizer in zip(panels, ("sgd", "adam"), strict=False):
        for size in SIZES:
            axes.plot(curves[optimizer, size], label=f"G = {size}")
        axes.set_title(f"mean pass rate, {optimizer}")
        axes.set_xlabel("step")
        axes.set_ylim(0, 1)
        axes.legend()
    sizes = np.array(SIZES, float)
    panels[2].loglog(sizes, list(variances.values()), "o", label="measured")
    panels[2].loglog(sizes, variances[SIZES[0]] * SIZES[0] / sizes, label="1/G")
    panels[2].minorticks_off()
    panels[2].set_xticks(sizes, SIZES)
    panels[2].set_title("variance about the plateau")
    panels[2].set_xlabel("G")
    panels[2].legend()


if __name__ == "__main__":
    command(sys.argv[1:], reproduce)
