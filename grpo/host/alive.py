"""This module says what a command is doing when it takes long, so that nobody takes it for hung."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, count, pairwise
from typing import ParamSpec, TypeVar

from grpo.host import ranks
from grpo.host.terminal import say

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

TOLD_AFTER = (2.0, *range(10, 60, 10))
"""A sign of life comes after so many seconds, and then every `LATER` seconds."""
LATER = 30.0
A_MINUTE = 60.0


@contextmanager
def working(what: str, tell: Callable[[str], None] = say, seldom: bool = False) -> Iterator[None]:
    """Says on stderr that `what` goes on, for example "starting vLLM", whenever it takes long.

    What takes less than two seconds is not told of, and only the first rank speaks. With `seldom` it speaks once a
    minute, for what a run does again and again.
    """
    over = threading.Event()
    if ranks.rank():
        yield
        return
    moments = count(A_MINUTE, A_MINUTE) if seldom else chain(TOLD_AFTER, count(60.0, LATER))
    speaker = threading.Thread(target=_speak, args=(what, tell, over, moments), daemon=True)
    speaker.start()
    try:
        yield
    finally:
        over.set()
        speaker.join()


def slow(what: str, function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Wraps a function that a run calls again and again, so that a call of more than a minute is told of."""

    @functools.wraps(function)
    def wrapped(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        with working(what, seldom=True):
            return function(*args, **kwargs)

    return wrapped


def _speak(what: str, tell: Callable[[str], None], over: threading.Event, moments: Iterable[float]) -> None:
    for before, now in pairwise(chain([0.0], moments)):
        if over.wait(now - before):
            return
        tell(f"grpo: {what} …" + (f" {now:.0f} s" if now >= 10 else ""))
