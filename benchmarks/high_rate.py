"""This script asks how soon the schedule calls a learning rate high, and how often it does so of one that is not.

    python benchmarks/high_rate.py [RUNS]   (40 runs: two minutes on one core)

It draws products of steps as `grpo.dynamics.gain` models them, at rates that are so many times as high as the one that
the schedule would take, and at three levels of noise: a run is asked every fourth of its 300 steps. Prints how many
runs hear that their rate is high, and the median step at which they do.
"""

import sys

import numpy as np
from rich.console import Console
from rich.table import Table

from grpo.dynamics.difficulty import Difficulty
from grpo.dynamics.gain import PAID, Gain, Products, weight_of_heat
from grpo.dynamics.group_size import CALM, BatchRule, choose_batch
from grpo.dynamics.step import BatchSetting, StepCost
from grpo.types import Mean, RoundPlan, RoundStatistics

STEPS, EVERY = 300, 4
# The signal of a step over the standard deviation of its product.
CLARITIES = (0.15, 0.5, 1.5)
RATES = (0.5, 1.0, 1.5, 2.0, 4.0, 8.0)
BATCH = BatchSetting(group_size=8, prompts_per_step=16)
HALF_RIGHT = Difficulty(np.array([0.5]), np.array([1.0]))


def product_means(signal, heat, generator, aim=1.0, noise=0.01, length=0.05, interval=1, momentum=0.9):
    """Returns a round's means of products, where steps have this signal at an aim of 1 and pay this heat.

    All heat is 1/PAID times as much. Cosines of single steps have the standard deviation `noise`.
    """
    means = {"step/length": Mean(length, 1), "path/steps": Mean(15, 1)}
    for kind, steps in (("step", 1), ("path", 15)):
        weight = 0.5 + (weight_of_heat(momentum, steps) - 0.5) / PAID
        scale = 0.3 * length
        product = aim * signal - weight * heat + noise * scale * generator.standard_normal() / interval**0.5
        means |= {f"{kind}/gain": Mean(product, 1), f"{kind}/cosine": Mean(product / scale, 1)}
    return means


def products_of(signal, heat, rounds=400, seed=0, products=None, aim=1.0, **how):
    """Returns the products of a run of `rounds` rounds, after those before in `products`."""
    generator, products = np.random.default_rng(seed), products or Products()
    for index in range(rounds):
        means = product_means(signal, heat, generator, aim, **how)
        plan = RoundPlan(8, how.get("interval", 1), 8)
        products = products.after(RoundStatistics(index, index, plan, means, {}, {}, ()), aim, 0.9)
    return products


def named_at(rate: float, clarity: float, seed: int) -> int | None:
    """Returns the step at which a run hears that its rate is high, or None."""
    signal, length = 1e-3, 0.05
    how = {"noise": signal / clarity / (0.3 * length), "length": length}
    rule, products = BatchRule(smallest=8, largest=8, fewest=16, most=16), Products()
    for step in range(EVERY, STEPS + 1, EVERY):
        # A step gains most at signal/heat times its rate.
        products = products_of(signal, CALM * rate * signal, EVERY, seed * STEPS + step, products, **how)
        if choose_batch(HALF_RIGHT, rule, BATCH, BATCH, StepCost(0.0, 1.0), Gain(products)).is_high:
            return step
    return None


def main(runs: int) -> None:
    table = Table("times the rate that it would take", *(f"clarity {clarity}" for clarity in CLARITIES))
    for rate in RATES:
        cells = []
        for clarity in CLARITIES:
            steps = [step for seed in range(runs) if (step := named_at(rate, clarity, seed))]
            cells.append(f"{len(steps)} of {runs}" + (f", step {np.median(steps):.0f}" if steps else ""))
        table.add_row(f"{rate:g}", *cells)
    Console().print(table)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 40)
