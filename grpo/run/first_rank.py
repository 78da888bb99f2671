"""What the first rank does alone must not fail there alone: the others would wait for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from grpo.config.errors import EndedElsewhere
from grpo.interfaces import Collective

Result = TypeVar("Result")


def on_first(collective: Collective, action: Callable[[], Result]) -> Result | None:
    """What `action` returns on the first rank, and None on the others, which do not call it. What it raises ends all
    ranks: the first raises it, the others raise `EndedElsewhere`. Collective."""
    result, failure = None, None
    if collective.rank == 0:
        try:
            result = action()
        except Exception as error:
            failure = error
    failed = collective.maximum(failure is not None)
    if failure is not None:
        raise failure
    if failed:
        raise EndedElsewhere("the first rank has failed and tells why")
    return result


def from_first(collective: Collective, action: Callable[[], Result]) -> Result:
    """As `on_first`; the first rank's result on every rank."""
    return collective.gather(on_first(collective, action))[0]
