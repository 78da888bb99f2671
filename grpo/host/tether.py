"""Runs a command that does not outlive who started it, here or on another machine.

    python -m grpo.host.tether GRACE_SECONDS SILENT_SECONDS COMMAND...

Standard input is a pipe that the starter holds open. Its first line is a JSON object of further environment variables
(secrets stay off the command line). A line "stop" sends SIGTERM to the command, a line "kill" SIGKILL to it and what it
started. The end of the pipe, which comes however the starter ends, kill -9 included, ends the command too: SIGTERM, and
after GRACE_SECONDS SIGKILL. So do SILENT_SECONDS (0: any number) without a line, an empty one at least: a machine that
loses its power or its network ends no pipe.

What the command has started, in sessions of its own too, has GRACE_SECONDS to end after it, and less after a success.
A variable whose value is `PRIVATE` becomes the path of a folder that only this user can open, and that is removed then.

A process below that is stopped (SIGSTOP) is told: nothing else would say so, and whoever waits for it waits in silence.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from io import RawIOBase

import psutil

STOP, KILL = b"stop\n", b"kill\n"
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
IDLE_SECONDS = 10.0
# What is stopped at two looks in succession is told.
LOOK_SECONDS = 10.0
PRIVATE = "a private folder"


def main(arguments: list[str]) -> int:
    """The command's exit code."""
    grace, silent, command = float(arguments[0]), float(arguments[1]), arguments[2:]
    # Unbuffered: a thread that waits in a buffered read would be in the way of this process's end.
    orders = open(0, "rb", buffering=0)  # noqa: SIM115
    environment = json.loads(orders.readline() or b"{}")
    folders = {name: tempfile.mkdtemp(prefix="grpo-") for name, value in environment.items() if value == PRIVATE}
    # What is left behind becomes this process's child, whoever started it.
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    child = subprocess.Popen(
        command,
        env=os.environ | environment | folders,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: end_with_parent(signal.SIGKILL),
    )
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    # Ctrl-C is for the starter, which says what is to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_obey, args=(orders, child, grace, silent), daemon=True).start()
    threading.Thread(target=_look, daemon=True).start()
    code = child.wait()
    # Ranks whose torchrun was killed may be saving; after a success nobody has anything left to do.
    _kill(psutil.wait_procs(_started(), timeout=grace if code else min(grace, IDLE_SECONDS))[1])
    for folder in folders.values():
        shutil.rmtree(folder, ignore_errors=True)
    return code if code >= 0 else 128 - code


def end_with_parent(number: int) -> None:
    """The kernel sends this process a signal when its parent ends, however it ends."""
    _prctl(PR_SET_PDEATHSIG, number)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value)


def _obey(orders: RawIOBase, child: subprocess.Popen, grace: float, silent: float) -> None:
    while select.select([orders], [], [], silent or None)[0] and (order := orders.readline()):
        if order == STOP:
            child.terminate()
        elif order == KILL:
            _kill(_started())
    child.terminate()
    try:
        child.wait(grace)
    except subprocess.TimeoutExpired:
        _kill(_started())


def _look() -> None:
    before: set[psutil.Process] = set()
    told: set[psutil.Process] = set()
    while True:
        time.sleep(LOOK_SECONDS)
        stopped = {process for process in _started() if _is_stopped(process)}
        told &= stopped
        for process in (stopped & before) - told:
            pid = process.pid
            print(f"grpo: process {pid} is stopped, and what waits for it hangs: kill -CONT {pid}", flush=True)
            told.add(process)
        before = stopped


def _is_stopped(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False


def _started() -> list[psutil.Process]:
    """The command, and everything that it has started and that lives."""
    return psutil.Process().children(recursive=True)


def _kill(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
