"""A round's completions spread over its prompts: ragged groups.

Asked a few times first, a prompt has a posterior pass rate: its own count, with the difficulty of all prompts of the
round as the prior. Given its counts, k of n, a group's expected gradient is σ^(2−α)·Δs whatever decided on n (the
identity of `grpo.dynamics.identity` holds count by count), so the further completions go where they are expected to
raise the sum of σ^(2−α) most. That is to prompts which are silent so far and need not stay so, those with odds
worth the tries first; a prompt that is silent for sure gets none, and one that speaks already few or none: more
completions make its gradient less noisy, hardly larger. What is gained, and what noise it costs, is measured by
benchmarks/budget.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from grpo.dynamics.difficulty import Counts, Difficulty, fit_difficulty

Array = NDArray[np.float64]

# A completion that is expected to add less than this to its group's σ^(2−α) is not drawn.
LEAST_RISE = 1e-5


def further_tries(
    everyone: Counts, mine: Sequence[tuple[int, int]], budget: int, largest: int, exponent: float
) -> list[int]:
    """How many more completions each prompt gets: `budget` in all, or fewer where no more is to be gained.

    everyone   (correct, tried) → prompts of the whole round: the prior
    mine       (correct, tried) of the prompts that the budget is for
    largest    completions of one prompt at most, the first tries included
    exponent   the dial's α
    """
    prior = fit_difficulty(everyone)
    worth = {counts: expected_gradient(prior, *counts, largest, exponent) for counts in set(mine)}
    more = [0] * len(mine)
    left = budget

    def steepest(index: int) -> tuple[float, int, int] | None:
        """(−rise per completion, prompt, completions) of its best affordable chunk: one alone may add nothing."""
        curve = worth[mine[index]][more[index] :]
        rises = (curve[1 : left + 1] - curve[0]) / np.arange(1, len(curve[: left + 1]))
        if not len(rises) or rises.max() < LEAST_RISE:
            return None
        best = int(np.argmax(rises))
        return -float(rises[best]), index, best + 1

    chunks = [chunk for index in range(len(mine)) if (chunk := steepest(index))]
    heapify(chunks)
    while chunks and left:
        _, index, count = heappop(chunks)
        if count <= left:
            more[index] += count
            left -= count
        # Also where the chunk had become too dear: a smaller one may do.
        if chunk := steepest(index):
            heappush(chunks, chunk)
    return more


def expected_gradient(prior: Difficulty, correct: int, tried: int, largest: int, exponent: float) -> Array:
    """E[σ^(2−α)] of a prompt's group, in units of Δs, after 0, 1, … (largest − tried) further completions."""
    belief = prior.posterior(correct, tried)
    found = []
    for more in range(max(largest - tried, 0) + 1):
        added = np.arange(more + 1)
        chance = belief.weights @ stats.binom.pmf(added, more, belief.pass_rates[:, None])
        rate = (correct + added) / (tried + more)
        variance = rate * (1 - rate)
        speaks = variance > 0
        found.append(float(chance[speaks] @ variance[speaks] ** (1 - exponent / 2)))
    return np.array(found)
