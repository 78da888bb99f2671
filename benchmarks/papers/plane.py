"""This script tabulates the plane of the two dials, the exponents α of σ and β of the mean reward.

    python benchmarks/papers/plane.py FOLDER [rates=FILE]

Every number follows from the laws of `grpo.dynamics.sigma` by exact enumeration. No paper prints them for the whole
plane. The column "known as" names the methods at some of its points.
"""

from __future__ import annotations

import sys
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from benchmarks.papers import bernoulli, sigma_laws
from benchmarks.papers.comparison import Comparison, Reproduction, Row, command, pass_rates
from grpo.dynamics import sigma

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

ALPHAS, BETAS = (0.0, 0.5, 1.0, 2.0), (0.0, 0.5, 1.0)
KNOWN = {
    (0.0, 0.0): "Dr. GRPO, RLOO: p",
    (1.0, 0.0): "GRPO, DAPO: 2·arcsin√p",
    (2.0, 0.0): "log-odds",
    (0.0, 1.0): "MaxRL: log p",
}
"""The points (α, β) that are known methods, or whose gradient ascends a known function of the pass rate p."""
EASIEST, HARDEST = 0.9, 0.1
SIZE, LARGEST = 8, 512
# Slightly above 0.1, since Dr. GRPO's fidelity at G = 10 is exactly 90 %, and rounding would decide.
SHORTFALL = 0.1 + 1e-9


def reproduce(rates: Array | None = None) -> Reproduction:
    """Tabulates the plane for the prompts' pass rates `rates`. None stands for `bernoulli.big_math_like`'s rates."""
    source = "a stand-in for Big-Math's" if rates is None else "the given ones"
    pass_rates = bernoulli.big_math_like(20_000) if rates is None else rates
    values, counts = np.unique(pass_rates, return_counts=True)
    shares = counts / counts.sum()
    return Reproduction(
        name="plane",
        comparisons=(_groups(), _mass(values, shares)),
        remarks=(
            "α is the exponent of σ and β that of the mean reward: Â = (r − r̄)·σ^(−α)·r̄^(−β).",
            f"The {len(pass_rates):,} pass rates are {source}.",
        ),
        draw=lambda figure: _draw(figure, values, shares),
    )


def _groups() -> Comparison:
    """Tabulates the smallest group size with 90 % of the gradient of an infinitely large group, at three pass rates."""
    rows = []
    for alpha, beta in product(ALPHAS, BETAS):
        sizes = [
            sigma_laws.smallest_group_size([rate], [1.0], SHORTFALL, alpha, largest=LARGEST, mean_exponent=beta)
            for rate in (0.5, 0.1, 0.05)
        ]
        smallest = " / ".join(f"over {LARGEST}" if size is None else str(size) for size in sizes)
        rows.append(Row(_point(alpha, beta), KNOWN.get((alpha, beta), "–"), smallest))
    return Comparison("Smallest G with fidelity 90 % at p = .5 / .1 / .05", "known as: what it ascends", rows)


def _mass(rates: Array, shares: Array) -> Comparison:
    """Tabulates the share of the gradient from hard, medium and easy prompts, for G = 8 and infinitely large groups."""
    edges = [0, HARDEST, EASIEST, 1]
    rows = []
    for alpha, beta in product(ALPHAS, BETAS):
        masses = [sigma.gradient_mass(rates, shares, edges, alpha, size, mean_exponent=beta) for size in (SIZE, None)]
        texts = [" / ".join(f"{share:.0%}" for share in mass) for mass in masses]
        rows.append(Row(_point(alpha, beta), texts[1], texts[0]))
    title = f"Gradient from prompts with p < {HARDEST} / between / p ≥ {EASIEST}, groups of {SIZE}"
    return Comparison(title, "limit of large groups", rows)


def _point(alpha: float, beta: float) -> str:
    return f"α = {alpha:g}, β = {beta:g}"


def _draw(figure: Figure, rates: Array, shares: Array) -> None:
    """Draws the share of the gradient from hard prompts over the plane, for G = 8 and infinitely large groups."""
    alphas, betas = np.linspace(-0.5, 2.5, 31), np.linspace(-0.5, 1.5, 21)
    for axes, size in zip(figure.subplots(1, 2), (SIZE, None), strict=True):
        share = [
            [sigma.gradient_mass(rates, shares, [0, 0.25, 1], a, size, mean_exponent=b)[0] for a in alphas]
            for b in betas
        ]
        lines = axes.contour(alphas, betas, share, levels=np.arange(0, 1, 0.1), cmap="viridis")
        axes.clabel(lines, fmt=lambda level: f"{level:.0%}", fontsize=7)
        for (alpha, beta), name in KNOWN.items():
            axes.plot(alpha, beta, "ko", markersize=4)
            axes.annotate(name.partition(":")[0], (alpha, beta), (4, 4), textcoords="offset points", fontsize=7)
        axes.set_xlabel("α, exponent of σ")
        axes.set_ylabel("β, exponent of the mean")
        axes.set_title("gradient from prompts with p < 1/4, " + (f"G = {size}" if size else "large groups"), fontsize=9)


if __name__ == "__main__":
    command(sys.argv[1:], reproduce, rates=pass_rates)
