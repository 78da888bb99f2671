"""This module handles requests to stop: Ctrl-C, SIGTERM from a scheduler, a launcher or a person, and SIGHUP from a
terminal that is closed."""

from __future__ import annotations

import ctypes
import math
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

# A process that was asked to stop, and that saved so that it can be resumed, has the first of these exit codes. A shell
# gives the second to a program that Ctrl-C ended, and the third to one whose output nobody reads any more.
EXIT_STOPPED, EXIT_BROKEN_OFF, EXIT_UNREAD = 128 + signal.SIGTERM, 128 + signal.SIGINT, 128 + signal.SIGPIPE
# A process that was asked to stop has one of these codes, as `subprocess` shows them, whether it saved or not.
STOPPED_CODES = (-signal.SIGTERM, -signal.SIGINT, EXIT_STOPPED, EXIT_BROKEN_OFF)
LOOK_SECONDS = 0.2
# One request may come as several signals: systemd, Slurm and `kill` on a group signal every process of a run, and the
# launcher and torchrun pass theirs on. Signals within this many seconds after the first count as one request.
TOGETHER_SECONDS = 3.0
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class StopRequest:
    """A stop request counts how often this process is asked to stop from now on, by SIGTERM, SIGHUP or Ctrl-C.

    Signals within `TOGETHER_SECONDS` count as one request. They no longer end the process. A SIGHUP that is ignored, as
    under nohup, stays ignored. With a `message`, the first request prints it and a second one ends the process at once.
    """

    def __init__(self, message: str = ""):
        self.count, self._answered = 0, -math.inf
        self._message = message
        self._first_request, self._ended = threading.Event(), False
        self._handle(self._request)
        if message:
            threading.Thread(target=self._end_at_the_next, daemon=True).start()

    def __call__(self) -> bool:
        """Tells whether there was a signal."""
        return self.count > 0

    def wait(self, seconds: float) -> bool:
        """Waits at most `seconds` for a request. Returns whether there was one."""
        end = time.monotonic() + seconds
        while not self() and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, LOOK_SECONDS))
        return self()

    def end(self) -> None:
        """Ends the thread that waits for a second request."""
        self._ended = True
        self._first_request.set()

    def _request(self, number: int, frame: object) -> None:
        now = time.monotonic()
        if now < self._answered + TOGETHER_SECONDS:
            return
        if self.count and self._message:
            # The thread that leaves this to the C library is late, or frozen because the process is ending.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self._answered = now
        self.count += 1
        if number == signal.SIGHUP:
            _leave_terminal()
        if self._message:
            # The reader of stderr may have got the signal too and be gone, and the run may be printing right now.
            with suppress(OSError, RuntimeError):
                print(self._message, file=sys.stderr)
            self._first_request.set()

    def _end_at_the_next(self) -> None:
        """Makes the next signal after the first request end the process.

        The C library does this, because Python's handlers never run while the main thread hangs in native code, and
        only the main thread may ask Python for it.
        """
        self._first_request.wait()
        if not self._ended:
            time.sleep(TOGETHER_SECONDS)
        for number in SIGNALS:
            if not self._ended and signal.getsignal(number) == self._request:
                ctypes.CDLL(None).signal(int(number), int(signal.SIG_DFL))

    @staticmethod
    def _handle(handler) -> None:
        for number in SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, handler)


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
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            owner = getattr(signal.getsignal(number), "__self__", None)
            signal.signal(number, handler)
            if isinstance(owner, StopRequest):
                owner.end()
