"""This module ends all ranks when one of them fails. Otherwise the others would wait for it until a deadline."""

from collections.abc import Callable
from typing import TypeVar

from grpo.config.errors import EndedElsewhere
from grpo.interfaces import Collective

Result = TypeVar("Result")


def fail_together(
    collective: Collective, failure: Exception | None, elsewhere: type[EndedElsewhere] = EndedElsewhere
) -> None:
    """Raises `failure`, this rank's error or None. Where only other ranks have one, raises `elsewhere`, which names the
    first of these ranks and its reason. Collective."""
    if not collective.maximum(failure is not None):
        return
    reasons = collective.gather(failure and (" ".join(str(failure).split()) or type(failure).__name__))
    if failure is not None:
        raise failure
    raise elsewhere(next(f"rank {rank} failed: {reason}" for rank, reason in enumerate(reasons) if reason is not None))


def on_all(collective: Collective, action: Callable[[], Result]) -> Result:
    """Calls `action` on every rank and returns this rank's result. Collective.

    If `action` raises on some ranks, each of these raises its exception, and the others raise `EndedElsewhere`.
    """
    result, failure = None, None
    try:
        result = action()
    except Exception as error:
        failure = error
    fail_together(collective, failure)
    return result


def on_first(collective: Collective, action: Callable[[], Result]) -> Result | None:
    """Calls `action` on the first rank only. Returns its result there, and None on the other ranks. Collective.

    If `action` raises, the first rank raises that exception and the others raise `EndedElsewhere`.
    """
    return on_all(collective, lambda: action() if collective.rank == 0 else None)


def from_first(collective: Collective, action: Callable[[], Result]) -> Result:
    """Calls `action` on the first rank only, as `on_first` does, but returns its result on every rank. Collective."""
    return collective.gather(on_first(collective, action))[0]
