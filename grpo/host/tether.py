"""This program runs a command that ends when its starter ends, on this machine or another one.

    python -m grpo.host.tether GRACE_SECONDS SILENT_SECONDS COMMAND...

The starter holds this program's standard input open as a pipe. The pipe's first line is a JSON object of further
environment variables, which keeps secrets off the command line. A later line "stop" sends SIGTERM to the command. A
line "hurry" sends SIGURG to it and to all processes below it: no time is left to finish a round. A line "kill" sends
SIGKILL to all of them.

The pipe ends when the starter ends, even by kill -9. This program then sends the command SIGTERM and, after
GRACE_SECONDS, SIGKILL. It does the same after SILENT_SECONDS without a line (0 means never), because a machine that
loses its power or its network ends no pipe. A starter that is alive therefore sends empty lines.

After the command has ended, processes that it started have GRACE_SECONDS to end too, even those in sessions of their
own, and less time if the command succeeded. A variable whose value is `PRIVATE` becomes the path of a folder that only
this user can open; the folder is removed at the end.

A tether is two processes, since one alone could be killed, and vLLM's engine would then outlive its server. The outer
process, which the starter knows, starts the inner one, and the inner one the command. If one of the two is killed, the
other ends what is below it. If both are, the kernel ends the command, and what that has started ends itself where it
has called `end_with_tether`.

This program prints a line when a process below it is suspended (SIGSTOP), because the processes that wait for it would
hang without any message.
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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import RawIOBase

import psutil

STOP, HURRY, KILL = b"stop\n", b"hurry\n", b"kill\n"
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
IDLE_SECONDS = 10.0
# The command and all that it starts find the inner process's id in this variable.
TETHER_VARIABLE = "GRPO_TETHER"
WATCH_SECONDS = 1.0
# A process that is suspended at two checks in succession is reported; the checks are this far apart.
LOOK_SECONDS = 10.0
PRIVATE = "a private folder"
# The path of a socket has at most 107 bytes. The folder's own name takes 14 of them, and a socket's name in it 37.
LONGEST_PLACE = 107 - 14 - 37


def main(arguments: list[str]) -> int:
    """Runs the command until it ends and returns its exit code."""
    grace, silent, command = float(arguments[0]), float(arguments[1]), arguments[2:]
    # The pipe is unbuffered, because a thread that waits in a buffered read would keep this process from ending.
    orders = open(0, "rb", buffering=0)  # noqa: SIM115
    environment = json.loads(orders.readline() or b"{}")
    folders = {name: _private_folder() for name, value in environment.items() if value == PRIVATE}
    # The outer process holds the writing end, and nobody else does, so the pipe ends when that process ends.
    outer_lives, write_end = os.pipe()
    if inner := os.fork():
        code = _guard(inner)
    else:
        os.close(write_end)
        code = _run(command, environment | folders, grace, Starter(orders, silent, outer_lives))
    # Ranks whose torchrun was killed may still be saving. After a success no process has anything left to do.
    _kill(psutil.wait_procs(_started(), timeout=grace if code else min(grace, IDLE_SECONDS))[1])
    for folder in folders.values():
        shutil.rmtree(folder, ignore_errors=True)
    return code if code >= 0 else 128 - code


def _guard(inner: int) -> int:
    """Waits for the inner process and returns its exit code. Passes requests to stop on to it."""
    _adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: os.kill(inner, signal.SIGTERM))
    # Only the starter reacts to Ctrl-C; it then says by the pipe what should end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1])


def _run(command: list[str], variables: Mapping[str, str], grace: float, starter: Starter) -> int:
    """Runs the command as the inner process and returns its exit code."""
    # A signal to the process group of the outer process does not reach this one.
    os.setsid()
    _adopt_orphans()
    child = subprocess.Popen(
        command,
        env=os.environ | variables | {TETHER_VARIABLE: str(os.getpid())},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: end_with_parent(signal.SIGKILL),
    )
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    threading.Thread(target=_obey, args=(starter, child, grace), daemon=True).start()
    threading.Thread(target=_report_suspended, daemon=True).start()
    return child.wait()


@dataclass(frozen=True, slots=True)
class Starter:
    """The starter gives `orders` by a pipe, at least every `silent` seconds unless that is 0. `outer_lives` is a pipe
    that ends with the tether's outer process."""

    orders: RawIOBase
    silent: float
    outer_lives: int

    def order(self) -> bytes:
        """Waits for the next order. Returns b"" when the starter or the outer process has ended, or is silent."""
        ready, _, _ = select.select([self.orders, self.outer_lives], [], [], self.silent or None)
        return self.orders.readline() if ready == [self.orders] else b""


def _private_folder() -> str:
    """Makes a folder that only this user can open, and returns its path. It lies in /tmp where the usual place would
    make paths of sockets too long, as below a batch job's TMPDIR."""
    usual = tempfile.gettempdir()
    return tempfile.mkdtemp(prefix="grpo-", dir=usual if len(os.fsencode(usual)) <= LONGEST_PLACE else "/tmp")


def end_with_parent(number: int) -> None:
    """Makes the kernel send signal `number` to this process when its parent ends, even if that is killed."""
    _prctl(PR_SET_PDEATHSIG, number)


def end_with_tether() -> None:
    """Makes a thread kill this process's group once the tether above it is gone. Without a tether it does nothing."""
    if tether := os.environ.get(TETHER_VARIABLE):
        threading.Thread(target=_outlive, args=(int(tether),), daemon=True).start()


def _outlive(tether: int) -> None:
    """Waits until a process has ended, and then kills the group of this one."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(tether)
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            time.sleep(WATCH_SECONDS)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _adopt_orphans() -> None:
    """Makes orphaned processes below this one its children, so that it can find and end them."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value)


def _obey(starter: Starter, child: subprocess.Popen, grace: float) -> None:
    """Follows the orders of the starter, and ends the command when no more orders come."""
    while order := starter.order():
        if order == STOP:
            child.terminate()
        elif order == HURRY:
            _signal(_started(), signal.SIGURG)
        elif order == KILL:
            _kill(_started())
    child.terminate()
    try:
        child.wait(grace)
    except subprocess.TimeoutExpired:
        _kill(_started())


def _report_suspended() -> None:
    """Watches the processes below this one for ever, and reports each one that is suspended, once until it resumes."""
    before: set[psutil.Process] = set()
    reported: set[psutil.Process] = set()
    while True:
        time.sleep(LOOK_SECONDS)
        suspended = {process for process in _started() if _is_stopped(process)}
        reported &= suspended
        for process in (suspended & before) - reported:
            pid = process.pid
            print(
                f"grpo: process {pid} is suspended, and the processes that wait for it hang: resume it by "
                f"kill -CONT {pid}",
                flush=True,
            )
            reported.add(process)
        before = suspended


def _is_stopped(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False


def _started() -> list[psutil.Process]:
    """Returns all living processes below this one: the command and everything that it has started."""
    return psutil.Process().children(recursive=True)


def _kill(processes: Sequence[psutil.Process]) -> None:
    _signal(processes, signal.SIGKILL)


def _signal(processes: Sequence[psutil.Process], number: int) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
