"""This module pools the prompts of ranks that share one engine, so that the engine gets them all together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from grpo.interfaces import Collective

Item = TypeVar("Item")


def pooled(collective: Collective, together: int, items: Sequence[Item]) -> tuple[list[Item], list[int]]:
    """Gathers the items of the `together` consecutive ranks that share an engine. Returns them and the places of this
    rank's items among them.

    All ranks of an engine get the same items in the same order, so that their schedulers take the same steps. Ranks
    take turns in this order, so that the groups of each rank are completed over the whole time that the engine writes.
    Collective when several ranks share an engine.
    """
    if together == 1:
        return list(items), [*range(len(items))]
    first = collective.rank - collective.rank % together
    members = collective.gather(list(items))[first : first + together]
    places = sorted((number, rank) for rank, of_rank in enumerate(members, first) for number in range(len(of_rank)))
    own_places = [place for place, (_, rank) in enumerate(places) if rank == collective.rank]
    return [members[rank - first][number] for number, rank in places], own_places
