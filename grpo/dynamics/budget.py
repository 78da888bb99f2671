"""This module spreads a round's completions over its prompts, so that groups differ in size.

Each prompt first gets a few completions. Their count, with the difficulty of all prompts of the round as the prior,
gives a posterior of the prompt's pass rate. A group with k of n correct has the expected gradient σ^(2−α)·Δs, however n
was decided (the identity of `grpo.dynamics.sigma` holds count by count). So the further completions go where they
are expected to raise the sum of σ^(2−α) most.

Most further completions go to prompts that are silent so far (all right or all wrong) but may not stay so. Those with
the best odds come first. A prompt that almost surely stays silent gets none. A prompt that already has a gradient gets
few or none, since more completions make its gradient less noisy but hardly larger. benchmarks/budget.py measures gain
and noise.
"""

from collections import Counter
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from grpo.dynamics.difficulty import Difficulty, fit_difficulty

Array = NDArray[np.float64]

# A completion that is expected to add less than this to its group's σ^(2−α) is not drawn.
LEAST_RISE = 1e-5


def further_tries(
    counts: Sequence[tuple[int, int]], budget: int, largest: int, exponent: float, mean_exponent: float = 0.0
) -> list[int]:
    """Returns the number of further completions of each prompt: `budget` in total, or fewer if more would gain nothing.

    counts     (correct, tried) of each prompt of the round; the prior is fitted to all of them
    largest    largest number of completions of one prompt, the first tries included
    exponent, mean_exponent   the dials' α and β
    """
    prior = fit_difficulty(Counter(counts))
    worth = {count: expected_gradient(prior, *count, largest, exponent, mean_exponent) for count in set(counts)}
    more = [0] * len(counts)
    tries_left = budget

    def steepest(index: int) -> tuple[float, int, int] | None:
        """Returns (−rise per completion, prompt, completions) of a prompt's best chunk within the budget left.

        Chunks may have several completions, since a single one may be expected to add nothing.
        """
        curve = worth[counts[index]][more[index] :]
        rises = (curve[1 : tries_left + 1] - curve[0]) / np.arange(1, len(curve[: tries_left + 1]))
        if not len(rises) or rises.max() < LEAST_RISE:
            return None
        best = int(np.argmax(rises))
        return -float(rises[best]), index, best + 1

    chunks = [chunk for index in range(len(counts)) if (chunk := steepest(index))]
    heapify(chunks)
    while chunks and tries_left:
        _, index, count = heappop(chunks)
        if count <= tries_left:
            more[index] += count
            tries_left -= count
        # A chunk that no longer fits is looked for again, since a smaller one may fit.
        if chunk := steepest(index):
            heappush(chunks, chunk)
    return more


def expected_gradient(
    prior: Difficulty, correct: int, tried: int, largest: int, exponent: float, mean_exponent: float = 0.0
) -> Array:
    """Returns E[σ^(2−α)·(k/G)^(−β)] of a prompt's group, in units of Δs, after 0, 1, … (largest − tried) further
    completions."""
    belief = prior.posterior(correct, tried)
    gradients = []
    for more in range(max(largest - tried, 0) + 1):
        further_correct = np.arange(more + 1)
        chance = belief.weights @ stats.binom.pmf(further_correct, more, belief.pass_rates[:, None])
        rate = (correct + further_correct) / (tried + more)
        variance = rate * (1 - rate)
        has_gradient = variance > 0
        lengths = variance[has_gradient] ** (1 - exponent / 2) * rate[has_gradient] ** -mean_exponent
        gradients.append(float(chance[has_gradient] @ lengths))
    return np.array(gradients)
