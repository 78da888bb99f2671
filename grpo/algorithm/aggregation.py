"""This module computes the weight of each token in the loss of the whole optimizer step.

The loss of a step is Σ weight·loss over every token on every rank. A weight depends on the token's own completion and
group, and on totals of the whole step. It never depends on how the step is cut into ranks, micro-batches or packed
rows, so the gradient does not either.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals are counts over the whole optimizer step, on all ranks.

    `sequences` counts the completions that are learned from, `tokens` their tokens, and `groups` the groups with at
    least one such completion.
    """

    tokens: float
    sequences: float
    groups: float


def token_mean(length: int, group_tokens: int, totals: Totals, constant_length: int) -> float:
    """Weights every token equally (DAPO, arXiv:2503.14476)."""
    return 1 / totals.tokens


def sequence_mean(length: int, group_tokens: int, totals: Totals, constant_length: int) -> float:
    """Weights every completion equally (GRPO, arXiv:2402.03300)."""
    return 1 / (length * totals.sequences)


def constant(length: int, group_tokens: int, totals: Totals, constant_length: int) -> float:
    """Weights every token by 1/constant and averages over completions, which removes GRPO's length bias (Dr. GRPO,
    arXiv:2503.20783)."""
    return 1 / (constant_length * totals.sequences)


def prompt_mean(length: int, group_tokens: int, totals: Totals, constant_length: int) -> float:
    """Weights every prompt equally, and within a prompt every token equally."""
    return 1 / (group_tokens * totals.groups)


AGGREGATIONS = {
    "token_mean": token_mean,
    "sequence_mean": sequence_mean,
    "constant": constant,
    "prompt_mean": prompt_mean,
}
"""These functions return a token's weight, given the length of its completion, the number of tokens of its group that
are learned from, the step's totals and `objective.aggregation.constant_length`."""
