"""Requests to stop: SIGTERM from a scheduler, a launcher or a person, and Ctrl-C."""

from __future__ import annotations

import signal
import sys
import time

# The exit code of a process that was asked to stop, has saved, and can go on.
INTERRUPTED = 128 + signal.SIGTERM
LOOK_SECONDS = 0.2


class StopRequest:
    """Counts the requests to stop that this process gets, from when it is made. They no longer end the process.

    With `message`, the first one prints it, and a second one ends the process as it would without this class.
    """

    def __init__(self, message: str = ""):
        self.count = 0
        self._message = message
        self._handle(self._request)

    def __call__(self) -> bool:
        """Whether there was a request."""
        return self.count > 0

    def wait(self, seconds: float) -> bool:
        """Waits for a request, for so many seconds at most. Returns whether there was one."""
        end = time.monotonic() + seconds
        while not self() and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, LOOK_SECONDS))
        return self()

    def _request(self, number: int, frame: object) -> None:
        self.count += 1
        if self._message:
            print(self._message, file=sys.stderr)
            self._handle(signal.SIG_DFL)

    @staticmethod
    def _handle(handler) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, handler)
