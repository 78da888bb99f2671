"""This module measures the seconds of each phase and round, and ends a process whose phase exceeds its deadline."""

import faulthandler
import functools
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from grpo.types.rounds import ROUND

# This is EX_TEMPFAIL of sysexits.h: a later try may succeed. A launcher can tell it from a crash (1) and a user
# error (2).
HUNG_EXIT_CODE = 75
# The timer thread has this long to end the process before faulthandler does.
GRACE_SECONDS = 10.0
# These phases happen between two rounds. They are reported with the second round but not part of its total. Phases
# within one of them, such as a refresh after a checkpoint, count as that one.
BETWEEN_ROUNDS = ("evaluation", "save", "export", "load")

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@dataclass(slots=True)
class _Running:
    """A running phase has the name under which its seconds are counted, and the seconds of the phases within it."""

    name: str
    within: float = 0.0


class _Guard:
    """A guard ends the process with `complaint` unless it is stopped within `seconds` of its start."""

    def __init__(self, complaint: str, seconds: float, outermost: bool):
        self._complaint, self._seconds, self._outermost = complaint, seconds, outermost

    def start(self) -> None:
        self._timer = threading.Timer(self._seconds, _end_process, [self._complaint])
        self._timer.daemon = True
        self._timer.start()
        if self._outermost:
            # A native call that keeps the interpreter lock also blocks the timer. This watchdog needs no lock.
            # A process has only one, so only the outermost phase sets it. It exits with code 1.
            faulthandler.dump_traceback_later(self._seconds + GRACE_SECONDS, exit=True, file=sys.__stderr__)

    def stop(self) -> None:
        self._timer.cancel()
        if self._outermost:
            faulthandler.cancel_dump_traceback_later()


class _OfThread(threading.local):
    """Each thread has seconds by phase, and the phases that run now with their guards, the innermost last."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.running: list[_Running] = []
        self.guards: list[_Guard] = []


class Phases:
    """This clock accumulates the seconds of named phases and ends the process when one exceeds its deadline.

    Phases may nest. A phase counts only its time outside of nested phases, so that no second counts twice. Phases
    within one of `BETWEEN_ROUNDS` count as that one. Every thread has its own seconds, so those of a thread that
    samples ahead stay apart from the loop's.
    """

    def __init__(
        self,
        rank: int = 0,
        clock: Callable[[], float] = time.perf_counter,
        label: Callable[[str], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """Takes the `clock` in seconds, and `label`, which makes a context in which a profiler names a phase. A clock
        may count something else, such as joules, which are then those of each phase."""
        self._rank, self._label = rank, label
        self._clock = clock
        self._own = _OfThread()
        self._between: dict[str, float] = {}
        self._begun = clock()

    def timed(
        self, name: str, function: Callable[Parameters, Result], deadline_seconds: float, config_key: str
    ) -> Callable[Parameters, Result]:
        """Wraps `function` so that its calls are measured as the phase `name`, with a deadline.

        An example is ``timed("sample", sampler.generate, 1800.0, "rollout.deadline_seconds")``. A call that takes
        longer prints one line naming phase, function, rank and `config_key`, dumps the stacks of all threads to
        stderr and exits the process with `HUNG_EXIT_CODE`. It exits because an exception cannot unwind a rank that
        hangs in a collective.
        """
        complaint = (
            f"grpo: rank {self._rank}: phase '{name}' ({getattr(function, '__qualname__', repr(function))}) "
            f"gave no result for {deadline_seconds:g} s and was ended as hung; "
            f"if it is only slow, raise {config_key}"
        )

        measured = self.measured(name, function)

        @functools.wraps(function)
        def phase(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            with self._guarded(complaint, deadline_seconds):
                return measured(*args, **kwargs)

        return phase

    def measured(self, name: str, function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        """Wraps `function` so that its calls are measured as the phase `name`."""

        @functools.wraps(function)
        def phase(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            with self._measured(name):
                return function(*args, **kwargs)

        return phase

    def extend(self) -> None:
        """Begins the deadline of each phase that runs now in this thread anew, because a part of its work is done."""
        for guard in self._own.guards:
            guard.stop()
            guard.start()

    def take(self) -> dict[str, float]:
        """Returns the calling thread's seconds by phase since that thread's last call, and resets them."""
        seconds, self._own.seconds = self._own.seconds, defaultdict(float)
        return dict(seconds)

    def begin_round(self) -> None:
        """Marks the beginning of a round, so that its total leaves out an evaluation or a checkpoint before it."""
        before = self.take()
        self._between = {name: before[name] for name in BETWEEN_ROUNDS if name in before}
        self._begun = self._clock()

    def end_round(self) -> dict[str, float]:
        """Returns the wall-clock seconds of the round (`ROUND`), of each of its phases, and of the phases just before
        it."""
        return {ROUND: self._clock() - self._begun, **self._between, **self.take()}

    @contextmanager
    def _measured(self, name: str) -> Iterator[None]:
        start, around = self._clock(), self._own.running[-1:]
        phase = _Running(next((outer.name for outer in around if outer.name in BETWEEN_ROUNDS), name))
        self._own.running.append(phase)
        try:
            with self._label(name):
                yield
        finally:
            elapsed = self._clock() - start
            self._own.running.pop()
            self._own.seconds[phase.name] += elapsed - phase.within
            for outer in around:
                outer.within += elapsed

    @contextmanager
    def _guarded(self, complaint: str, deadline_seconds: float) -> Iterator[None]:
        """Ends the process with `complaint` when the context lasts longer than the deadline."""
        outermost = not self._own.running and threading.current_thread() is threading.main_thread()
        guard = _Guard(complaint, deadline_seconds, outermost)
        guard.start()
        self._own.guards.append(guard)
        try:
            yield
        finally:
            self._own.guards.pop().stop()


def _end_process(complaint: str) -> None:
    # A live display may have replaced sys.stderr, and os._exit would lose what is left in its buffer.
    try:
        print(complaint, file=sys.__stderr__, flush=True)
        faulthandler.dump_traceback(file=sys.__stderr__, all_threads=True)
    finally:
        # Perhaps nobody reads stderr any more.
        os._exit(HUNG_EXIT_CODE)
