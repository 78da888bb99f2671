"""This module says what a command is doing when it takes long, so that nobody takes it for hung."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, count, pairwise

from grpo.host import ranks
from grpo.host.terminal import say

TOLD_AFTER = (2.0, *range(10, 60, 10))
"""A sign of life comes after so many seconds, and then every `LATER` seconds."""
LATER = 30.0


@contextmanager
def working(what: str, tell: Callable[[str], None] = say) -> Iterator[None]:
    """Says on stderr that `what` goes on, for example "starting vLLM", whenever it takes long.

    What takes less than two seconds is not told of, and only the first rank speaks.
    """
    over = threading.Event()
    if ranks.rank():
        yield
        return
    speaker = threading.Thread(target=_speak, args=(what, tell, over), daemon=True)
    speaker.start()
    try:
        yield
    finally:
        over.set()
        speaker.join()


def _speak(what: str, tell: Callable[[str], None], over: threading.Event) -> None:
    moments = chain(TOLD_AFTER, count(60.0, LATER))
    for before, now in pairwise(chain([0.0], moments)):
        if over.wait(now - before):
            return
        tell(f"grpo: {what} …" + (f" {now:.0f} s" if before else ""))
