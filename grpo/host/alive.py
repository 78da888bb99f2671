"""This module says what a command is doing while it takes long, so that nobody believes it hangs."""

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

FIRST_MOMENTS = (2.0, *range(10, 60, 10))
"""A sign of life comes after each of these seconds, and from one minute on every `LATER` seconds."""
LATER = 30.0
A_MINUTE = 60.0


@contextmanager
def working(what: str, tell: Callable[[str], None] = say, seldom: bool = False) -> Iterator[None]:
    """Prints now and then that `what`, for example "starting vLLM", goes on, until the context ends.

    The first line comes after two seconds, and only on the first rank. With `seldom` a line comes once a minute, for
    what a run does again and again. `tell` prints a line, by default on stderr.
    """
    over = threading.Event()
    if ranks.rank():
        yield
        return
    moments = count(A_MINUTE, A_MINUTE) if seldom else chain(FIRST_MOMENTS, count(60.0, LATER))
    speaker = threading.Thread(target=_speak, args=(what, tell, over, moments), daemon=True)
    speaker.start()
    try:
        yield
    finally:
        over.set()
        speaker.join()


def slow(what: str, function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Wraps a function that a run calls again and again, so that a call prints a line for each minute it takes."""

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
