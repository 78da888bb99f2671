"""How often paired tests find a change of pass rates where there is none, and how often their intervals hold the truth.

    python benchmarks/paired_change.py [EVALUATIONS]

Problems have pass rates from a beta distribution. Training either changes none, or takes half of the problems a part of
the way to 1. Each is asked once or four times before and after. The methods are the randomization test of
`grpo.evaluation.pass_rates.paired_change`, Student's t, the bootstrap (BCa), and the sign test, which has no interval.
"""

from __future__ import annotations

import sys
import warnings
from itertools import product

import numpy as np
from scipy import stats

from grpo.evaluation.pass_rates import paired_change

Answer = tuple[float, float, bool]
# (mean, sum of the two parameters) of the pass rates' beta distribution, and the part of the way that half of them go.
PASS_RATES = ((0.05, 1.0), (0.3, 1.0), (0.5, 4.0))
GAINS = (0.0, 0.2, 0.6)
PROBLEMS, TRIES = (8, 23, 100), (1, 4)


def randomization(before: np.ndarray, after: np.ndarray) -> Answer:
    interval, *_, p = paired_change(before, after)
    return interval.low, interval.high, p < 0.05


def student(before: np.ndarray, after: np.ndarray) -> Answer:
    differences = after - before
    half = stats.t.ppf(0.975, len(differences) - 1) * stats.sem(differences)
    low, high = differences.mean() - half, differences.mean() + half
    return low, high, low > 0 or high < 0


def bootstrap(before: np.ndarray, after: np.ndarray) -> Answer:
    differences = after - before
    if np.ptp(differences) == 0:
        return differences[0], differences[0], bool(differences[0])
    low, high = stats.bootstrap((differences,), np.mean, n_resamples=999, method="BCa", rng=0).confidence_interval
    return low, high, low > 0 or high < 0


def sign(before: np.ndarray, after: np.ndarray) -> Answer:
    better, worse = int(np.sum(after > before)), int(np.sum(after < before))
    return np.nan, np.nan, better + worse > 0 and stats.binomtest(better, better + worse).pvalue < 0.05


METHODS = {"randomization": randomization, "Student's t": student, "bootstrap": bootstrap, "sign test": sign}


def rates(generator: np.random.Generator, count: int, mean: float, size: float, gain: float) -> tuple[np.ndarray, ...]:
    """Draws the true pass rates of problems before and after training."""
    before = generator.beta(mean * size, (1 - mean) * size, count)
    return before, before + gain * (1 - before) * (generator.random(count) < 0.5)


def main(evaluations: int) -> None:
    """Prints a table: found, the share of evaluations in which a change was found; held, the share of intervals that
    hold the true change, among evaluations in which any problem changed."""
    warnings.filterwarnings("ignore")
    print("mean  gain  problems  tries " + "".join(f"{name:>16}" for name in METHODS) + "   (found, held)")
    for (mean, size), gain, count, tries in product(PASS_RATES, GAINS, PROBLEMS, TRIES):
        generator = np.random.default_rng(0)
        true = gain / 2 * (1 - mean)
        found, covered, moved = dict.fromkeys(METHODS, 0), dict.fromkeys(METHODS, 0), 0
        for _ in range(evaluations):
            before, after = (
                generator.binomial(tries, side) / tries for side in rates(generator, count, mean, size, gain)
            )
            has_moved = bool(np.any(before != after))
            moved += has_moved
            for name, method in METHODS.items():
                low, high, is_found = method(before, after)
                found[name] += is_found
                covered[name] += has_moved and low <= true <= high
        cells = "".join(f"{found[name] / evaluations:9.1%} {covered[name] / max(moved, 1):6.1%}" for name in METHODS)
        print(f"{mean:4.2f}  {gain:4.1f}  {count:8}  {tries:5} {cells}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
