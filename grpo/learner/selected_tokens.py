"""Tokens are chosen among all of an optimizer step before it is taken, where `objective.selection` asks for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from grpo.algorithm.token_losses import Tokens
from grpo.algorithm.token_selection import select
from grpo.config import ObjectiveConfig
from grpo.interfaces import Collective
from grpo.types import MicroBatch


def with_selection(
    micro_batches: Sequence[MicroBatch],
    tokens_of: Callable[[MicroBatch], Tokens],
    objective: ObjectiveConfig,
    collective: Collective,
    together: int,
) -> Sequence[MicroBatch]:
    """Returns the micro-batches with what the configured selection chose, or as they are without one. Collective.

    `tokens_of` computes the tokens of a micro-batch under the current weights. `together` is the number of ranks that
    compute each row together: all of them have its tokens, which count once.
    """
    if objective.selection.name == "none":
        return micro_batches

    def total(counts: Sequence[float]) -> list[float]:
        return [count / together for count in collective.sum(counts)]

    chosen = select([tokens_of(micro) for micro in micro_batches], total, objective)
    return [replace(micro, selected=own) for micro, own in zip(micro_batches, chosen, strict=True)]
