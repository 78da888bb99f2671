"""This script measures the cost to reach a pass rate with the adaptive batch, over that with the best fixed batch.

    python benchmarks/regret.py [SEEDS] [prompts|samples|batch] [FIXED]      (2, prompts and 0 by default; a minute)

A policy has 32 parameters that all prompts share. A prompt's logit is its own constant plus its direction times the
parameters; directions have a common part. A completion's score is its answer's score plus noise, which stands for the
rest of its words. Adam learns from 16 prompts a step, or with `samples` from 64 completions, whatever G; advantages are
GRPO's. With `batch` the number of prompts is chosen too, from 4 to 64, at one learning rate. All arms begin with the
same policy. The adaptive arm begins with 16 prompts of G = 16, and chooses by `grpo.dynamics.group_size` after each of
the first 5 steps and then after every fifth. A prompt costs a tenth of a completion, and a step costs FIXED completions
whatever it samples.
"""

import sys
from collections import Counter
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.special import expit

from grpo.dynamics.adaptive import agreed
from grpo.dynamics.difficulty import fit_difficulty
from grpo.dynamics.group_size import BatchRule, choose_batch
from grpo.dynamics.identify import FEWEST_POINTS
from grpo.dynamics.step import BatchSetting, StepCost

DIMENSIONS, PROBLEMS, MOST_STEPS = 32, 200, 3000
RATE, PROMPT, COMPLETION = 0.02, 0.1, 1.0
SIZES, NUMBERS, FIRST, SAMPLES = (2, 4, 8, 16, 32), (4, 8, 16, 32, 64), BatchSetting(16, 16), 64
HELD = BatchRule(smallest=4, largest=32, fewest=16, most=16, fluctuation=0.5)
# Mean of the prompts' logits → roughly the first pass rate; and their spread.
HARDNESS, SPREADS, NUISANCES = {".45": -0.2, ".15": -2.2, ".05": -4.0}, (0.5, 2.0), (1.0, 5.0)


@dataclass(frozen=True)
class Arm:
    """An arm is a batch and the rule that changes it. The rule is None where the batch stays fixed."""

    batch: BatchSetting
    rule: BatchRule | None = None

    @property
    def words(self):
        return "adaptive" if self.rule else f"{self.batch.prompts_per_step} × {self.batch.group_size}"


# What is held → the fixed arms and the adaptive rule.
ARMS = {
    "prompts": ([BatchSetting(size, 16) for size in SIZES], HELD),
    "samples": ([BatchSetting(size, SAMPLES // size) for size in SIZES], replace(HELD, samples=SAMPLES)),
    "batch": (
        [BatchSetting(size, number) for number in NUMBERS for size in SIZES],
        replace(HELD, fewest=min(NUMBERS), most=max(NUMBERS)),
    ),
}


class Chooser:
    """A chooser picks the next batch as `dynamics=adaptive` does, but without a forecast."""

    def __init__(self, arm, cost):
        self._rule, self._cost, self._counts = arm.rule, cost, Counter()
        self._wishes = None, None

    def next(self, batch, right, step):
        self._counts = Counter({pair: 0.8 * number for pair, number in self._counts.items() if number > 1e-3})
        self._counts.update(Counter((int(k), batch.group_size) for k in right.sum(axis=1)))
        if step >= FEWEST_POINTS and step % 5:
            return batch
        wanted = choose_batch(fit_difficulty(self._counts), self._rule, batch, self._cost).chosen
        early = step < FEWEST_POINTS
        size, wish = agreed(batch.group_size, wanted.group_size, self._wishes[0], early)
        prompts, wish_prompts = agreed(batch.prompts_per_step, wanted.prompts_per_step, self._wishes[1], early)
        self._wishes = wish, wish_prompts
        if self._rule.samples:
            [prompts] = self._rule.prompts(batch.prompts_per_step, size)
        return replace(batch, group_size=size, prompts_per_step=prompts)


def cost_of_level(arm, cost, hardness, spread, nuisance, seed):
    """Returns the cost, in completions, until the mean pass rate is half way from its start to 1, or ∞ if it never
    gets there."""
    generator = np.random.default_rng(seed)
    own = hardness + spread * generator.standard_normal(PROBLEMS)
    directions = 0.5 * generator.standard_normal((PROBLEMS, DIMENSIONS)) / np.sqrt(DIMENSIONS)
    directions[:, 0] += 1.0
    theta, first, second = np.zeros((3, DIMENSIONS))
    level = 0.5 * (1 + expit(own).mean())
    batch, spent, chooser = arm.batch, 0.0, Chooser(arm, cost)
    for step in range(1, MOST_STEPS + 1):
        rates = expit(own + directions @ theta)
        if rates.mean() >= level:
            return spent
        prompts, size = batch.prompts_per_step, batch.group_size
        asked = generator.choice(PROBLEMS, prompts, replace=False)
        right = generator.random((prompts, size)) < rates[asked][:, None]
        spent += cost.fixed + prompts * (cost.prompt + size * cost.completion)
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
        batch = chooser.next(batch, right, step) if arm.rule else batch
    return float("inf")


def main(seeds="2", hold="prompts", fixed="0"):
    batches, rule = ARMS[hold]
    arms, adaptive = [Arm(batch) for batch in batches], Arm(FIRST, rule)
    cost = StepCost(PROMPT, COMPLETION, float(fixed))
    shown = arms if len(arms) <= len(SIZES) else [Arm(FIRST)]
    names = [*(arm.words for arm in shown), "best", "", "adaptive", "÷ best", "÷ 16 × 16"]
    table = Table("first pass rate", "spread", "noise", *names)
    ratios = []
    for (name, hardness), spread, nuisance in product(HARDNESS.items(), SPREADS, NUISANCES):
        task = hardness, spread, nuisance
        spent = {
            arm: np.mean([cost_of_level(arm, cost, *task, seed) for seed in range(int(seeds))])
            for arm in {*arms, Arm(FIRST), adaptive}
        }
        # G = 2 is below the smallest size that the adaptive arm may take.
        best = min((arm for arm in arms if arm.batch.group_size >= rule.smallest), key=lambda arm: spent[arm])
        ratios.append((spent[adaptive] / spent[best], spent[adaptive] / spent[Arm(FIRST)]))
        cells = [f"{spent[arm]:,.0f}" for arm in shown]
        cells += [
            best.words,
            f"{spent[best]:,.0f}",
            f"{spent[adaptive]:,.0f}",
            *(f"{ratio:.2f}" for ratio in ratios[-1]),
        ]
        table.add_row(name, f"{spread:g}", f"{nuisance:g}", *cells)
    Console(width=160).print(table)
    for name, column in zip(("the best fixed batch", "16 × 16"), np.array(ratios).T, strict=True):
        Console().print(f"adaptive over {name}: median {np.median(column):.2f}, at worst {max(column):.2f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
