"""Several ranks can share one engine. They gather their prompts and ask it for all of them together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from grpo.interfaces import Collective

Item = TypeVar("Item")


def pooled(collective: Collective, together: int, items: Sequence[Item]) -> tuple[list[Item], slice]:
    """Returns the items of all ranks that share an engine, `together` consecutive ones, and where this rank's are.

    All ranks of an engine get the same items in the same order, so that their schedulers take the same steps.
    Collective, where several share one.
    """
    if together == 1:
        return list(items), slice(0, len(items))
    everyone = collective.gather(list(items))
    first = collective.rank - collective.rank % together
    before = sum(map(len, everyone[first : collective.rank]))
    members = everyone[first : first + together]
    return [item for of_one_rank in members for item in of_one_rank], slice(before, before + len(items))
