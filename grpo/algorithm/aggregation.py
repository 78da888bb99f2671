"""From token losses to one number: the weight of each token in the loss of the whole optimizer step.

The loss of a step is Σ weight·loss over every token on every rank. A weight depends on the token's own
completion and on totals of the whole step, never on how the step is cut into ranks, micro-batches or
packed rows; so neither does the gradient.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts over the whole optimizer step, all ranks: of completions that are learned from, their
    tokens, and the groups that have at least one of them."""

    tokens: float
    sequences: float
    groups: float


def token_mean(length: int, group_tokens: int, totals: Totals, constant_length: int) -> float:
    """Every token counts the same (DAPO, arXiv:2503.14476)."""
    return 1 / totals.tokens


def sequence_mean(length: int, group_tokens: int, totals: Totals, constant_length: int) -> float:
    """Every completion counts the same (GRPO, arXiv:2402.03300)."""
    return 1 / (length * totals.sequences)


def constant(length: int, group_tokens: int, totals: Totals, constant_length: int) -> float:
    """Token sums over a constant, which removes GRPO's length bias (Dr. GRPO, arXiv:2503.20783)."""
    return 1 / (constant_length * totals.sequences)


def prompt_mean(length: int, group_tokens: int, totals: Totals, constant_length: int) -> float:
    """Every prompt counts the same; within it, every token."""
    return 1 / (group_tokens * totals.groups)


AGGREGATIONS = {
    "token_mean": token_mean,
    "sequence_mean": sequence_mean,
    "constant": constant,
    "prompt_mean": prompt_mean,
}
"""Weight of a token by the length of its completion, the tokens of its group, and the step's totals."""
