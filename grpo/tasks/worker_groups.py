"""This module ends what a reward has started, such as a program to test, once the worker that started it has ended."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from multiprocessing.context import BaseContext
from pathlib import Path

MARK = "GRPO_GRADING_WORKER"
"""This environment variable holds the process id of the worker that has started a program."""


def lead_group() -> int:
    """Makes this worker the leader of a process group, in which what it starts stays. Returns the group's number.

    A program that leaves the group, as by setsid, is known by an environment variable.
    """
    os.setpgid(0, 0)
    os.environ[MARK] = str(os.getpid())
    return os.getpid()


class WorkerGroups:
    """Remembers the process groups of a pool's workers. Each worker puts the number of its own into `born`."""

    def __init__(self, context: BaseContext):
        self.born = context.SimpleQueue()
        self._groups: set[int] = set()

    def end_left_behind(self) -> None:
        """Kills the processes that ended workers have left behind."""
        while not self.born.empty():
            self._groups.add(self.born.get())
        for group in [group for group in self._groups if _ended(group)]:
            self._groups.discard(group)
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
            for process in _marked(group):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(process, signal.SIGKILL)


def _marked(worker: int) -> list[int]:
    """Returns the processes that carry the mark of a worker in their environment."""
    mark, marked = f"{MARK}={worker}".encode(), []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        # Processes end meanwhile, and those of other users cannot be read.
        with suppress(OSError):
            if mark in environment.read_bytes().split(b"\0"):
                marked.append(int(environment.parent.name))
    return marked


def _ended(worker: int) -> bool:
    """Tells whether a child process has ended. Returns False when its number has been given to another process."""
    try:
        return os.waitid(os.P_PID, worker, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        # The pool has taken its exit code.
        return not Path(f"/proc/{worker}").exists()
