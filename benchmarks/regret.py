"""What the choice of the group size costs: sampled tokens until a pass rate, over those of the best fixed size.

    python benchmarks/regret.py [SEEDS] [prompts|samples]      (2 and prompts by default; a minute)

A policy has 32 parameters that all prompts share. A prompt's logit is its own constant plus its direction times the
parameters; directions have a common part. A completion's score is that of its answer, and noise of all that its words
say besides. Adam learns from 16 prompts a step, or with `samples` from 64 completions, whatever G; advantages are
GRPO's. The arms begin alike; the adaptive one chooses G every 5 steps by `grpo.dynamics.group_size`, from G = 16. A
prompt costs a tenth of a completion.
"""

import sys
from collections import Counter
from dataclasses import replace
from itertools import product

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.special import expit

from grpo.dynamics.difficulty import fit_difficulty
from grpo.dynamics.group_size import GroupSizeRule, choose_group_size

DIMENSIONS, PROBLEMS, PROMPTS, SAMPLES, MOST_STEPS = 32, 200, 16, 64, 3000
RATE, PROMPT, COMPLETION = 0.02, 0.1, 1.0
SIZES = (2, 4, 8, 16, 32)
RULE = GroupSizeRule(smallest=4, largest=32, fluctuation=0.5)
# Mean of the prompts' logits → roughly the first pass rate; and their spread.
HARDNESS, SPREADS, NUISANCES = {".45": -0.2, ".15": -2.2, ".05": -4.0}, (0.5, 2.0), (1.0, 5.0)
ADAPTIVE = "adaptive"


def choose(counts, size, hold):
    difficulty = fit_difficulty(counts)
    rule = replace(RULE, hold_samples=hold == "samples")
    return choose_group_size(difficulty, rule, size, 0.0, None, PROMPT, COMPLETION).size


def tokens_to_level(arm, hold, hardness, spread, nuisance, seed):
    """Tokens (in completions) until the mean pass rate is half way to 1 in what is missing, or ∞."""
    generator = np.random.default_rng(seed)
    own = hardness + spread * generator.standard_normal(PROBLEMS)
    directions = 0.5 * generator.standard_normal((PROBLEMS, DIMENSIONS)) / np.sqrt(DIMENSIONS)
    directions[:, 0] += 1.0
    theta, first, second = np.zeros((3, DIMENSIONS))
    level = 0.5 * (1 + expit(own).mean())
    size, spent, counts = 16 if arm == ADAPTIVE else arm, 0.0, Counter()
    for step in range(1, MOST_STEPS + 1):
        rates = expit(own + directions @ theta)
        if rates.mean() >= level:
            return spent
        prompts = PROMPTS if hold == "prompts" else SAMPLES // size
        asked = generator.choice(PROBLEMS, prompts, replace=False)
        right = generator.random((prompts, size)) < rates[asked][:, None]
        spent += prompts * (PROMPT + size * COMPLETION)
        sigma = right.std(axis=1, keepdims=True)
        advantage = np.where(sigma > 0, (right - right.mean(axis=1, keepdims=True)) / np.maximum(sigma, 1e-9), 0.0)
        # The sum of a group's noises, weighted by its advantages, is normal with their sum of squares as its variance.
        answers = (advantage * (right - rates[asked][:, None])).mean(axis=1)
        noise = nuisance * np.sqrt((advantage**2).sum(axis=1)) / size
        words = noise[:, None] * generator.standard_normal((prompts, DIMENSIONS))
        scores = answers[:, None] * directions[asked] + words
        gradient = scores.mean(axis=0)
        first, second = 0.9 * first + 0.1 * gradient, 0.99 * second + 0.01 * gradient**2
        theta = theta + RATE * first / (1 - 0.9**step) / (np.sqrt(second / (1 - 0.99**step)) + 1e-8)
        if arm == ADAPTIVE:
            counts = Counter({pair: 0.8 * number for pair, number in counts.items() if number > 1e-3})
            counts.update(Counter((int(k), size) for k in right.sum(axis=1)))
            size = choose(counts, size, hold) if step % 5 == 0 or step < 3 else size
    return float("inf")


def main(seeds="2", hold="prompts"):
    sizes = [f"G = {size}" for size in SIZES]
    table = Table("first pass rate", "spread", "noise", *sizes, ADAPTIVE, "÷ best", "÷ G = 16")
    ratios = []
    for (name, hardness), spread, nuisance in product(HARDNESS.items(), SPREADS, NUISANCES):
        task = hardness, spread, nuisance
        spent = {}
        for arm in (*SIZES, ADAPTIVE):
            spent[arm] = np.mean([tokens_to_level(arm, hold, *task, seed) for seed in range(int(seeds))])
        # G = 2 is below the smallest size that the adaptive arm may take.
        ratios.append(spent[ADAPTIVE] / min(spent[size] for size in SIZES if size >= RULE.smallest))
        cells = [f"{spent[arm]:,.0f}" for arm in (*SIZES, ADAPTIVE)]
        last = f"{ratios[-1]:.2f}", f"{spent[ADAPTIVE] / spent[16]:.2f}"
        table.add_row(name, f"{spread:g}", f"{nuisance:g}", *cells, *last)
    Console().print(table)
    Console().print(f"adaptive over the best fixed size: median {np.median(ratios):.2f}, at worst {max(ratios):.2f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
