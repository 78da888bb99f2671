"""This module chooses tokens among all tokens of an optimizer step before the step, see `objective.selection`."""

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
    """Returns the micro-batches with the tokens marked that the configured selection chose. Collective.

    Without a selection the micro-batches are unchanged. `tokens_of` computes a micro-batch's tokens under the current
    weights. `together` is the number of ranks that compute each row together: all have its tokens, which count once.
    """
    if objective.selection.name == "none":
        return micro_batches

    def total(counts: Sequence[float]) -> list[float]:
        return [count / together for count in collective.sum(counts)]

    weights = select([tokens_of(micro) for micro in micro_batches], total, objective)
    return [replace(micro, selected=selected) for micro, selected in zip(micro_batches, weights, strict=True)]
