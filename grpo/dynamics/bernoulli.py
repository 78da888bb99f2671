"""The training run of arXiv:2607.00152 without a language model: prompts that are coins with a logit each.

A group of G tries of prompt i gives k successes; its logit moves by η·gain, the gain being what the operation makes
of σ = √(k(G−k))/G. Every visit can only raise the logit, so the silent groups are what holds a prompt back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from grpo.dynamics.identity import silent_rate

Array = NDArray[np.float64]

REDRAWS = 4


@dataclass(frozen=True, slots=True)
class BernoulliRun:
    """What a run left.

    pass_rates   [steps + 1, prompts] before each step and at the end
    silent       [steps] share of silent groups among the first draws
    predicted    [steps] E[p^G + (1−p)^G] over the prompts, the closed form
    samples      tries in all
    """

    pass_rates: Array
    silent: Array
    predicted: Array
    samples: int


Arm = Callable[[Array, int, np.random.Generator], tuple[Array, Array, int]]
"""(pass rates, G, generator) → (gain of each prompt, σ of its first group, tries taken)."""


def sigma(rates: Array, group_size: int, generator: np.random.Generator) -> Array:
    """σ of one group of each prompt."""
    correct = generator.binomial(group_size, rates)
    return np.sqrt(correct * (group_size - correct)) / group_size


def dial(exponent: float) -> Arm:
    """Gain σ^(2−α): GRPO at α = 1, Dr. GRPO at 0."""

    def arm(rates: Array, group_size: int, generator: np.random.Generator) -> tuple[Array, Array, int]:
        first = sigma(rates, group_size, generator)
        return np.where(first > 0, first ** (2 - exponent), 0.0), first, len(rates) * group_size

    return arm


def redrawn(rates: Array, group_size: int, generator: np.random.Generator) -> tuple[Array, Array, int]:
    """The paper's DAPO arm: a silent group of a prompt is drawn again from the *same* prompt, up to four times."""
    first = sigma(rates, group_size, generator)
    found, tries = first.copy(), len(rates) * group_size
    for _ in range(REDRAWS):
        silent = found == 0
        found[silent] = sigma(rates[silent], group_size, generator)
        tries += int(silent.sum()) * group_size
    return found, first, tries


def refilled(rates: Array, group_size: int, generator: np.random.Generator) -> tuple[Array, Array, int]:
    """DAPO as published (arXiv:2503.14476): silent groups are dropped and the batch is filled with *other* prompts,
    so that a step moves as many groups as there are prompts; a prompt asked twice moves twice."""
    first = sigma(rates, group_size, generator)
    gains, kept, tries = first.copy(), int((first > 0).sum()), len(rates) * group_size
    while kept < len(rates):
        # As many as are missing; bounded, for when nothing is mixed any more.
        asked = generator.integers(len(rates), size=len(rates) - kept)
        found = sigma(rates[asked], group_size, generator)
        np.add.at(gains, asked, found)
        kept += int((found > 0).sum())
        tries += len(asked) * group_size
        if tries > 20 * len(rates) * group_size:
            break
    return gains, first, tries


ARMS: dict[str, Arm] = {"GRPO": dial(1.0), "Dr. GRPO": dial(0.0), "DAPO, same prompt": redrawn, "DAPO": refilled}


def run(
    arm: Arm, start: Array, group_size: int = 8, step_size: float = 0.5, steps: int = 150, seed: int = 0
) -> BernoulliRun:
    """θ ← θ + η·gain for `steps` steps from the pass rates `start` [prompts], clipped to [.02, .98] as printed."""
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
    """Pass rates [prompts] as k/64 from a stated stand-in for Big-Math's `llama8b_solve_rate` column.

    4.0 % never and 7.2 % always solved as printed; the others Beta-binomial(64; 0.274, 0.274), fitted to the printed
    silent fractions at G = 4 to 64, which it gives to a percent (theory: arXiv:2607.00152). Not the data set.
    """
    generator = np.random.default_rng(seed)
    inner = np.empty(0)
    while len(inner) < prompts:
        drawn = generator.binomial(64, generator.beta(0.274, 0.274, 2 * prompts))
        inner = np.concatenate([inner, drawn[(drawn > 0) & (drawn < 64)]])
    kind = generator.random(prompts)
    return np.select([kind < 0.04, kind < 0.112], [0.0, 1.0], inner[:prompts] / 64)


def quartiles(start: Array) -> list[NDArray[np.intp]]:
    """Prompts by difficulty, the hardest quarter first."""
    return np.array_split(np.argsort(start, kind="stable"), 4)
