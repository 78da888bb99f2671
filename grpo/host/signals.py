"""This module handles requests to stop: Ctrl-C, SIGTERM, SIGUSR1 or SIGUSR2 from a scheduler, a launcher or a person,
and SIGHUP from a terminal that is closed."""

import ctypes
import math
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from grpo.config.errors import Interrupted

# A process that was asked to stop, and that saved so that it can be resumed, has the first of these exit codes. A shell
# gives the second to a program that Ctrl-C ended, and the third to one whose output nobody reads any more.
EXIT_STOPPED, EXIT_BROKEN_OFF, EXIT_UNREAD = 128 + signal.SIGTERM, 128 + signal.SIGINT, 128 + signal.SIGPIPE
# A process that was asked to stop has one of these codes, as `subprocess` shows them, whether it saved or not.
STOPPED_CODES = (-signal.SIGTERM, -signal.SIGINT, EXIT_STOPPED, EXIT_BROKEN_OFF)
LOOK_SECONDS = 0.2
# One request may come as several signals: systemd, Slurm and `kill` on a group signal every process of a run, and the
# launcher and torchrun pass theirs on. Signals within this many seconds after the first count as one request.
TOGETHER_SECONDS = 3.0
# Slurm's --signal=USR1@90 and submitit ask by SIGUSR1 or SIGUSR2, which others may handle in their own way.
OF_SCHEDULERS = (signal.SIGUSR1, signal.SIGUSR2)
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, *OF_SCHEDULERS)
END = 0
"""No signal has this number. It ends the thread that reads numbers of signals."""
HURRY = signal.SIGURG
"""A launcher sends this signal to all processes below it when no time is left to finish a round. It does not disturb
those that do not know it, since the kernel ignores it by default."""


class StopRequest:
    """A stop request counts how often this process is asked to stop from now on, by Ctrl-C or another of `SIGNALS`.

    Signals within `TOGETHER_SECONDS` count as one request. They no longer end the process. A SIGHUP that is ignored, as
    under nohup, stays ignored, and a SIGUSR1 or SIGUSR2 that the user's code handles stays with it. With `messages`,
    each request prints the next of them, and one after the last ends the process at once. The last message answers a
    request that is `urgent`, and the signal `HURRY` leads there directly.
    """

    def __init__(self, messages: Sequence[str] = ()):
        self.count, self._answered = 0, -math.inf
        self._messages = messages
        self._ended = False
        self._handle(self._request)
        if messages:
            signal.signal(HURRY, self._request)
            # The C library writes a signal's number here, also while the main thread hangs in native code.
            self._numbers, self._number_end = os.pipe()
            os.set_blocking(self._number_end, False)
            self._wakeup_before = signal.set_wakeup_fd(self._number_end, warn_on_full_buffer=False)
            self._thread = threading.Thread(target=self._end_after_the_last, daemon=True)
            self._thread.start()

    def __call__(self) -> bool:
        """Tells whether there was a signal."""
        return self.count > 0

    @property
    def urgent(self) -> bool:
        """Tells whether there is no time left to finish a round."""
        return 0 < len(self._messages) <= self.count

    def wait(self, seconds: float) -> bool:
        """Waits at most `seconds` for a request. Returns whether there was one."""
        end = time.monotonic() + seconds
        while not self() and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, LOOK_SECONDS))
        return self()

    def end(self) -> None:
        """Ends the thread that waits for a request after the last. Called in the main thread."""
        self._ended = True
        if self._messages:
            signal.set_wakeup_fd(self._wakeup_before)
            os.write(self._number_end, bytes([END]))
            # The thread ends at once, unless a request has just come.
            self._thread.join(1.0)

    def _request(self, number: int, frame: object) -> None:
        now = time.monotonic()
        count = self._counted(self.count, number, now, self._answered)
        if count == self.count:
            return
        if self._messages and count > len(self._messages):
            # The thread that leaves this to the C library is late, or frozen because the process is ending.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self._answered, self.count = now, count
        if number == signal.SIGHUP:
            _leave_terminal()
        if self._messages:
            # The reader of stderr may have got the signal too and be gone, and the run may be printing right now.
            with suppress(OSError, RuntimeError):
                print(self._messages[count - 1], file=sys.stderr)

    def _counted(self, count: int, number: int, now: float, answered: float) -> int:
        """Returns the number of requests after a signal that comes `now`, where there were `count` before it and the
        last of them was `answered`."""
        if number == HURRY:
            return max(count, len(self._messages))
        return count + (now >= answered + TOGETHER_SECONDS)

    def _end_after_the_last(self) -> None:
        """Makes the next signal after the last message end the process.

        The C library does this, because Python's handlers never run while the main thread hangs in native code, and
        only the main thread may ask Python for it.
        """
        count, answered = 0, -math.inf
        while END not in (numbers := os.read(self._numbers, 64)):
            for number in numbers:
                now = time.monotonic()
                if number in (*SIGNALS, HURRY) and (more := self._counted(count, number, now, answered)) > count:
                    count, answered = more, now
            if count < len(self._messages):
                continue
            time.sleep(TOGETHER_SECONDS)
            for number in SIGNALS:
                if not self._ended and signal.getsignal(number) == self._request:
                    ctypes.CDLL(None).signal(int(number), int(signal.SIG_DFL))
        os.close(self._numbers)
        os.close(self._number_end)

    @staticmethod
    def _handle(handler) -> None:
        for number in SIGNALS:
            before = signal.getsignal(number)
            ours = before is signal.SIG_DFL or isinstance(getattr(before, "__self__", None), StopRequest)
            if (number != signal.SIGHUP or before is not signal.SIG_IGN) and (number not in OF_SCHEDULERS or ours):
                signal.signal(number, handler)


_of_thread = threading.local()


@contextmanager
def interruptible() -> Iterator[None]:
    """Lets `leave_if_urgent` raise in this thread. Elsewhere sampling ends by itself: between a round's last step and
    its end a few tokens are sampled to compare sampler and learner, and leaving would lose the steps."""
    before, _of_thread.interruptible = getattr(_of_thread, "interruptible", False), True
    try:
        yield
    finally:
        _of_thread.interruptible = before


def leave_if_urgent() -> None:
    """Raises `Interrupted` where this process is to save at once and may. Sampling and grading call it now and then."""
    handler = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    if getattr(_of_thread, "interruptible", False) and isinstance(handler, StopRequest) and handler.urgent:
        raise Interrupted


def as_shown(code: int) -> int:
    """Returns a process's exit code as a shell shows it: 128 + n for a process that was ended by signal n.

    >>> as_shown(2), as_shown(-9)
    (2, 137)
    """
    return code if code >= 0 else 128 - code


def _leave_terminal() -> None:
    """Sends further output nowhere where it went to a terminal, since writing to a closed one is an error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream and stat.S_ISCHR(os.fstat(stream.fileno()).st_mode):
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


@contextmanager
def handled_as_before() -> Iterator[None]:
    """Restores the earlier handlers of SIGTERM and Ctrl-C, for example a notebook's, when the context ends. The stop
    request that has taken their place ends."""
    before = {number: signal.getsignal(number) for number in (*SIGNALS, HURRY)}
    try:
        yield
    finally:
        owners = {getattr(signal.getsignal(number), "__self__", None) for number in before}
        for number, handler in before.items():
            signal.signal(number, handler)
        for owner in owners:
            if isinstance(owner, StopRequest):
                owner.end()
