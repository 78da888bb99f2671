"""This module says what a command is doing while it takes long, so that nobody believes it hangs. It also finds in a
process's log why the process ended, and ends one that the user's own threads hold."""

import functools
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, count, pairwise
from pathlib import Path
from typing import ParamSpec, TypeVar

from grpo.host import ranks
from grpo.host.terminal import clean, say

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

FIRST_MOMENTS = (2.0, *range(10, 60, 10))
"""A sign of life comes after each of these seconds, and from one minute on every `LATER` seconds."""
LATER = 30.0
THREADS_SECONDS = 10.0
A_MINUTE = 60.0
# Room for a message that says how to mend something.
LONGEST = 600
# These lines say what a process was doing, and not why it ended.
SIGN_OF_LIFE = re.compile(r"grpo: .* …( \d+ s)?")


@contextmanager
def working(
    what: str, tell: Callable[[str], None] = say, seldom: bool = False, everywhere: bool = False
) -> Iterator[None]:
    """Prints now and then that `what`, for example "starting vLLM", goes on, until the context ends.

    The first line comes after two seconds, and only on the first rank, or `everywhere`. With `seldom` a line comes
    once a minute, for what a run does again and again. `tell` prints a line, by default on stderr.
    """
    over = threading.Event()
    if ranks.rank() and not everywhere:
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


def end_in_time(code: int) -> None:
    """Makes this process end with `code` if threads of a user's code, that are no daemons, still keep it from ending
    after `THREADS_SECONDS`."""

    def end() -> None:
        time.sleep(THREADS_SECONDS)
        others = (thread for thread in threading.enumerate() if thread is not threading.main_thread())
        if names := sorted(thread.name for thread in others if not thread.daemon):
            which = " and ".join(map(repr, names[:2])) + (" and others" if names[2:] else "")
            say(f"grpo: all is done, but for threads of your own ({which}), which end now: start them with daemon=True")
            os._exit(code)

    threading.Thread(target=end, daemon=True).start()


def _speak(what: str, tell: Callable[[str], None], over: threading.Event, moments: Iterable[float]) -> None:
    for before, now in pairwise(chain([0.0], moments)):
        if over.wait(now - before):
            return
        tell(f"grpo: {what} …" + (f" {now:.0f} s" if now >= 10 else ""))


def last_word(log: Path, begin: int = 0) -> str:
    """Returns the last line of a log that begins with "grpo: ", or simply the last line if there is none. Signs of life
    do not count, nor what earlier processes wrote before byte `begin`."""
    try:
        with log.open("rb") as file:
            file.seek(begin)
            text = file.read().decode(errors="replace")
    except OSError:
        return f"its log {log} is gone"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    messages = [line for line in lines if line.startswith("grpo: ") and not SIGN_OF_LIFE.fullmatch(line)]
    return clean(re.sub(r"^grpo: ", "", (messages or lines or ["it printed nothing"])[-1]))[:LONGEST]
