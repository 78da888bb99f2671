"""This program compares the share of silent groups that a fitted difficulty expects with the true one.

    python benchmarks/silent_share.py

Pass rates are drawn from a beta distribution, and groups of 8 completions from them, 20 times each. It prints the true
share, the mean share that was drawn, and the mean share that `fit_difficulty` expects from the counts.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from scipy import stats

from grpo.dynamics.difficulty import fit_difficulty

SIZE, DRAWS = 8, 20


def silent(pass_rates: np.ndarray) -> np.ndarray:
    return pass_rates**SIZE + (1 - pass_rates) ** SIZE


def main() -> None:
    print("pass rates    prompts   true  drawn  expected")
    for first, second in ((8, 8), (4, 2), (2, 2), (0.5, 0.5)):
        true = stats.beta(first, second).expect(silent)
        for prompts in (128, 768, 3840):
            generator, drawn, expected = np.random.default_rng(0), [], []
            for _ in range(DRAWS):
                correct = generator.binomial(SIZE, generator.beta(first, second, prompts))
                difficulty = fit_difficulty(Counter((int(count), SIZE) for count in correct))
                drawn.append(np.mean((correct == 0) | (correct == SIZE)))
                expected.append(difficulty.weights @ silent(difficulty.pass_rates))
            shares = f"{true:6.2%} {np.mean(drawn):6.2%} {np.mean(expected):6.2%}"
            print(f"Beta({first}, {second})".ljust(14) + f"{prompts:6}  {shares}")


if __name__ == "__main__":
    main()
