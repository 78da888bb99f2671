"""This script reproduces the laws of σ and the simulated run with 6,000 prompts of arXiv:2607.00152.

python benchmarks/papers/identity.py FOLDER [rates=FILE]
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from benchmarks.papers import bernoulli, sigma_laws
from benchmarks.papers.comparison import Comparison, Reproduction, Row, command, pass_rates
from grpo.dynamics import sigma

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

PROMPTS, TRIES = 6000, 64
PRINTED_FIDELITY = ((8, 0.5, 0.9278), (8, 0.05, 0.5390))
SMALLEST = {0.5: (7, 11, 51), 0.3: (9, 14, 61), 0.1: (22, 36, 144), 0.05: (42, 69, 273)}
SILENT = {4: 0.59, 8: 0.44, 16: 0.32, 32: 0.23, 64: 0.17}
SUBSAMPLED = {4: 0.59, 8: 0.43, 16: 0.30}
# "Extreme" prompts have pass rates outside the range `EXTREME`, and "medium" prompts within the range `MEDIUM`.
EXTREME, MEDIUM = (0.1, 0.9), (0.4, 0.6)
HARDEST_QUARTER = {"GRPO": 0.99, "Dr. GRPO": 0.88}


def reproduce(rates: Array | None = None) -> Reproduction:
    """Compares the paper's printed numbers with ours.

    `rates` are pass rates k/64 from a column of solve rates. None stands for `bernoulli.big_math_like`'s rates.
    """
    stand_in = rates is None
    rates = bernoulli.big_math_like(200_000) if rates is None else rates
    start = np.random.default_rng(0).choice(rates, PROMPTS)
    runs = {name: bernoulli.run(arm, start) for name, arm in bernoulli.ARMS.items()}
    source = (
        "The pass rates are a stand-in whose shape was fitted to the printed silent fractions. These therefore agree "
        "by construction, but gradient mass and the runs do not."
        if stand_in
        else f"The pass rates are the {len(rates):,} given ones."
    )
    return Reproduction(
        name="identity",
        comparisons=(_formulas(), _distribution(rates), _runs(runs, start)),
        remarks=(source, _cost(runs)),
        draw=lambda figure: _draw(figure, runs, start),
    )


def _formulas() -> Comparison:
    rows = [
        Row(f"fidelity φ({size}, {rate})", f"{figure:.4f}", f"{sigma_laws.fidelity(rate, size):.4f}")
        for size, rate, figure in PRINTED_FIDELITY
    ]
    for rate, printed_sizes in SMALLEST.items():
        our_sizes = [sigma_laws.smallest_group_size([rate], [1.0], shortfall) for shortfall in (0.1, 0.05, 0.01)]
        rows.append(
            Row(
                f"smallest G for 90/95/99 %, p = {rate}",
                "/".join(map(str, printed_sizes)),
                "/".join(map(str, our_sizes)),
            )
        )
    return Comparison("Finite groups", "printed", rows)


def _distribution(rates: Array) -> Comparison:
    weights = np.full(len(rates), 1 / len(rates))
    correct = np.round(rates * TRIES)
    rows = [
        Row(f"silent groups at G = {size}", f"{printed_rate:.0%}", f"{weights @ sigma.silent_rate(rates, size):.1%}")
        for size, printed_rate in SILENT.items()
    ]
    for size, printed_rate in SUBSAMPLED.items():
        our_rate = weights @ sigma_laws.subsampled_silent_rate(correct, np.full(len(rates), TRIES), size)
        rows.append(Row(f"the same, subsampling the 64 tries, G = {size}", f"{printed_rate:.0%}", f"{our_rate:.1%}"))
    for exponent, name, extreme, medium in ((0.0, "Dr. GRPO", 0.139, 0.228), (1.0, "GRPO", 0.247, 0.175)):
        mass = sigma.asymptotic_drift(rates, exponent)
        mass = mass / mass.sum()
        extreme_mass = mass[(rates < EXTREME[0]) | (rates > EXTREME[1])].sum()
        medium_mass = mass[(rates >= MEDIUM[0]) & (rates <= MEDIUM[1])].sum()
        rows.append(Row(f"gradient mass on extreme prompts, {name}", f"{extreme:.1%}", f"{extreme_mass:.1%}"))
        rows.append(Row(f"gradient mass on medium prompts, {name}", f"{medium:.1%}", f"{medium_mass:.1%}"))
    return Comparison("Big-Math", "printed", rows)


def _runs(runs: dict[str, bernoulli.BernoulliRun], start: Array) -> Comparison:
    hardest = bernoulli.quartiles(start)[0]
    rows = []
    for name, run in runs.items():
        final = run.pass_rates[-1][hardest].mean()
        printed_end = f"{HARDEST_QUARTER[name]:.2f}" if name in HARDEST_QUARTER else "–"
        rows.append(Row(f"hardest quarter ends at, {name}", printed_end, f"{final:.2f}"))
    silent, law = runs["GRPO"].silent, runs["GRPO"].predicted
    r_squared = 1 - np.sum((silent - law) ** 2) / np.sum((silent - silent.mean()) ** 2)
    rows.append(Row("silent rate against its closed form, R²", "0.999", f"{r_squared:.4f}"))
    return Comparison("6,000 prompts, G = 8, 150 steps", "printed", rows)


def _cost(runs: dict[str, bernoulli.BernoulliRun]) -> str:
    base = runs["GRPO"].samples
    shares = ", ".join(f"{name} {run.samples / base:.2f}" for name, run in runs.items())
    return (
        f"Samples drawn, relative to GRPO: {shares}. DAPO in the paper redraws the same prompt; the published DAPO "
        "fills up with other prompts."
    )


def _draw(figure: Figure, runs: dict[str, bernoulli.BernoulliRun], start: Array) -> None:
    left, right = figure.subplots(1, 2)
    hardest = bernoulli.quartiles(start)[0]
    for name, run in runs.items():
        left.plot(run.pass_rates[:, hardest].mean(axis=1), label=name)
        right.plot(run.silent, ".", markersize=3)
        right.plot(run.predicted, color=right.lines[-1].get_color(), linewidth=1)
    left.set_title("pass rate of the hardest quarter")
    right.set_title("silent groups (dots) and their law (lines)")
    for axes in (left, right):
        axes.set_xlabel("step")
        axes.set_ylim(0, 1)
    left.legend()


if __name__ == "__main__":
    command(sys.argv[1:], reproduce, rates=pass_rates)
