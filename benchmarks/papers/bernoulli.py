"""This module simulates the training run of arXiv:2607.00152 without a language model. A prompt is a coin with a logit.

A group of G tries of a prompt has k successes. The prompt's logit then moves by η·gain, where the method computes the
gain from σ = √(k(G−k))/G. A visit can only raise the logit, so only silent groups hold a prompt back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from grpo.dynamics.sigma import silent_rate

Array = NDArray[np.float64]

REDRAWS = 4


@dataclass(frozen=True, slots=True)
class BernoulliRun:
    """This type holds the results of a simulated run.

    pass_rates   [steps + 1, prompts] pass rates before each step and at the end
    silent       [steps] share of silent groups among the first draws
    predicted    [steps] closed form of the silent share, E[p^G + (1−p)^G] over the prompts
    samples      total number of tries
    """

    pass_rates: Array
    silent: Array
    predicted: Array
    samples: int


Arm = Callable[[Array, int, np.random.Generator], tuple[Array, Array, int]]
"""An arm is one method of the simulation: (pass rates, G, generator) → (gain of each prompt, σ of its first group,
tries taken)."""


def sigma(rates: Array, group_size: int, generator: np.random.Generator) -> Array:
    """Draws one group of each prompt and returns its σ."""
    correct = generator.binomial(group_size, rates)
    return np.sqrt(correct * (group_size - correct)) / group_size


def dial(exponent: float) -> Arm:
    """Returns the method (arm) whose gain is σ^(2−α): GRPO at α = 1, Dr. GRPO at α = 0."""

    def arm(rates: Array, group_size: int, generator: np.random.Generator) -> tuple[Array, Array, int]:
        first = sigma(rates, group_size, generator)
        return np.where(first > 0, first ** (2 - exponent), 0.0), first, len(rates) * group_size

    return arm


def redrawn(rates: Array, group_size: int, generator: np.random.Generator) -> tuple[Array, Array, int]:
    """Implements the paper's DAPO arm: a silent group is drawn again from the *same* prompt, up to four times."""
    first = sigma(rates, group_size, generator)
    gains, tries = first.copy(), len(rates) * group_size
    for _ in range(REDRAWS):
        silent = gains == 0
        gains[silent] = sigma(rates[silent], group_size, generator)
        tries += int(silent.sum()) * group_size
    return gains, first, tries


def refilled(rates: Array, group_size: int, generator: np.random.Generator) -> tuple[Array, Array, int]:
    """Implements DAPO as published (arXiv:2503.14476): silent groups are replaced by groups of *other* prompts.

    A step then moves one group per prompt. A prompt that was drawn twice moves twice.
    """
    first = sigma(rates, group_size, generator)
    gains, num_groups, tries = first.copy(), int((first > 0).sum()), len(rates) * group_size
    while num_groups < len(rates):
        prompts = generator.integers(len(rates), size=len(rates) - num_groups)
        sigmas = sigma(rates[prompts], group_size, generator)
        np.add.at(gains, prompts, sigmas)
        num_groups += int((sigmas > 0).sum())
        tries += len(prompts) * group_size
        # Without a bound this would never end once every prompt is always or never solved.
        if tries > 20 * len(rates) * group_size:
            break
    return gains, first, tries


ARMS: dict[str, Arm] = {"GRPO": dial(1.0), "Dr. GRPO": dial(0.0), "DAPO, same prompt": redrawn, "DAPO": refilled}


def run(
    arm: Arm, start: Array, group_size: int = 8, step_size: float = 0.5, steps: int = 150, seed: int = 0
) -> BernoulliRun:
    """Runs θ ← θ + η·gain for `steps` steps. The pass rates `start` [prompts] are clipped to [.02, .98], as the paper
    prints."""
    generator = np.random.default_rng(seed)
    logits = logit(np.clip(start, 0.02, 0.98))
    rates, silent, predicted, samples = [expit(logits)], [], [], 0
    for _ in range(steps):
        gains, first, tries = arm(rates[-1], group_size, generator)
        silent.append(float((first == 0).mean()))
        predicted.append(float(silent_rate(rates[-1], group_size).mean()))
        logits = logits + step_size * gains
        rates.append(expit(logits))
        samples += tries
    return BernoulliRun(np.array(rates), np.array(silent), np.array(predicted), samples)


def big_math_like(prompts: int, seed: int = 0) -> Array:
    """Draws pass rates k/64 [prompts] that imitate Big-Math's `llama8b_solve_rate` column, without its data.

    4.0 % of prompts are never and 7.2 % always solved, as the paper prints (arXiv:2607.00152). The others are
    Beta-binomial(64; 0.274, 0.274). This distribution was fitted to the printed silent fractions at G = 4 to 64, and
    reproduces them to within a percent.
    """
    generator = np.random.default_rng(seed)
    inner = np.empty(0)
    while len(inner) < prompts:
        counts = generator.binomial(64, generator.beta(0.274, 0.274, 2 * prompts))
        inner = np.concatenate([inner, counts[(counts > 0) & (counts < 64)]])
    kind = generator.random(prompts)
    return np.select([kind < 0.04, kind < 0.112], [0.0, 1.0], inner[:prompts] / 64)


def quartiles(start: Array) -> list[NDArray[np.intp]]:
    """Divides the prompts into quarters by difficulty. Returns their indices, the hardest quarter first."""
    return np.array_split(np.argsort(start, kind="stable"), 4)
