"""This script measures what ragged groups gain over equal groups, and what noise they cost.

    python benchmarks/budget.py [ROUNDS]      (40 by default; a minute)

Each round has 64 prompts whose pass rates are the stand-in for Big-Math (`papers.bernoulli.big_math_like`), and equal
groups have the same number of completions in all as ragged ones. Gradient: the mean of σ^(2−α), which is the length of
the expected gradient in units of Δs. Noise: the mean of σ^(2−2α)/n, the variance of each prompt's estimate. Both are
printed for ragged groups, relative to equal ones.
"""

import sys

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.papers.bernoulli import big_math_like
from grpo.dynamics.budget import further_tries

PROMPTS, LARGEST = 64, 64
SIZES = [(8, 2), (8, 4), (16, 4), (16, 8)]


def compare(rounds, size, pilot, exponent):
    """Returns sums of (gradient, noise, silent groups) over all rounds, [2, 3]: first for equal groups, then for ragged
    ones."""
    sums = np.zeros((2, 3))
    generator = np.random.default_rng(0)
    for seed in range(rounds):
        rates = big_math_like(PROMPTS, seed)
        first = generator.binomial(pilot, rates)
        counts = [(int(correct), pilot) for correct in first]
        spread = further_tries(counts, (size - pilot) * PROMPTS, LARGEST, exponent)
        for arm, more in enumerate((np.full(PROMPTS, size - pilot), np.array(spread))):
            tried = pilot + more
            share = (first + generator.binomial(more, rates)) / tried
            variance, true = share * (1 - share), rates * (1 - rates)
            mixed, possible = variance > 0, true > 0
            gradient = (variance[mixed] ** (1 - exponent / 2)).sum()
            noise = (true[possible] ** (1 - exponent) / tried[possible]).sum()
            sums[arm] += gradient, noise, (~mixed).sum()
    return sums


def main(rounds=40):
    table = Table("α", "G", "asked first", "gradient", "noise", "silent, equal", "silent, spread")
    for exponent in (0.0, 1.0):
        for size, pilot in track(SIZES, f"α = {exponent:g}"):
            equal, spread = compare(rounds, size, pilot, exponent)
            ratio = spread / equal
            silent = [f"{arm[2] / rounds / PROMPTS:.1%}" for arm in (equal, spread)]
            table.add_row(f"{exponent:g}", str(size), str(pilot), f"{ratio[0]:.2f}", f"{ratio[1]:.2f}", *silent)
    Console().print(table)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
