"""This module runs a function in a fork of the test's process, which stays alive until it is ended."""

import os
import signal
from collections.abc import Callable
from typing import Any


class Forked:
    """A fork calls `function` and keeps what it returns alive until `end`."""

    def __init__(self, function: Callable[[], Any]):
        self._answer, answer = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            try:
                kept = function()
                os.write(answer, str(kept).encode())
                os.close(answer)
                signal.pause()
            finally:
                os._exit(0)
        os.close(answer)

    def answer(self) -> str:
        """Waits for what the function returns, as text; "" if it raised."""
        with open(self._answer) as file:
            return file.read()

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
