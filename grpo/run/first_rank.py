"""This module runs an action on the first rank only, or on each rank, and ends all ranks when it fails on one.

Otherwise the other ranks would wait for the failed one until a deadline.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from grpo.config.errors import EndedElsewhere
from grpo.interfaces import Collective

Result = TypeVar("Result")


def on_first(collective: Collective, action: Callable[[], Result]) -> Result | None:
    """Calls `action` on the first rank only. Returns its result there, and None on the other ranks. Collective.

    If `action` raises, the first rank raises that exception and the others raise `EndedElsewhere`.
    """
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
        raise EndedElsewhere("the first rank failed; its own message says why")
    return result


def on_all(collective: Collective, action: Callable[[], object]) -> None:
    """Calls `action` on every rank. Collective.

    If `action` raises on some ranks, each of these raises its exception, and the others raise `EndedElsewhere`.
    """
    failure = None
    try:
        action()
    except Exception as error:
        failure = error
    failures = collective.gather(failure and " ".join(str(failure).split()))
    if failure is not None:
        raise failure
    for rank, reason in enumerate(failures):
        if reason is not None:
            raise EndedElsewhere(f"rank {rank} failed: {reason}")


def from_first(collective: Collective, action: Callable[[], Result]) -> Result:
    """Calls `action` on the first rank only, as `on_first` does, but returns its result on every rank. Collective."""
    return collective.gather(on_first(collective, action))[0]
