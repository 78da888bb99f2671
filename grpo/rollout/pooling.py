"""This module pools the prompts of ranks that share one engine, so that the engine gets them all together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from grpo.interfaces import Collective

Item = TypeVar("Item")


def pooled(collective: Collective, together: int, items: Sequence[Item]) -> tuple[list[Item], slice]:
    """Gathers the items of the `together` consecutive ranks that share an engine. Returns them and this rank's slice.

    All ranks of an engine get the same items in the same order, so that their schedulers take the same steps.
    Collective when several ranks share an engine.
    """
    if together == 1:
        return list(items), slice(0, len(items))
    items_of_ranks = collective.gather(list(items))
    first = collective.rank - collective.rank % together
    num_before = sum(map(len, items_of_ranks[first : collective.rank]))
    members = items_of_ranks[first : first + together]
    return [item for of_one_rank in members for item in of_one_rank], slice(num_before, num_before + len(items))
