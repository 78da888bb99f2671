"""Runs a command that does not outlive who started it, here or on another machine.

    python -m grpo.tether GRACE_SECONDS COMMAND...

Standard input is a pipe that the starter holds open. Its first line is a JSON object of further environment variables
(secrets stay off the command line). A line "stop" sends SIGTERM to the command, a line "kill" SIGKILL to it and what it
started. The end of the pipe, which comes however the starter ends, kill -9 and a lost connection included, ends the
command too: SIGTERM, and after GRACE_SECONDS SIGKILL.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from io import RawIOBase

STOP, KILL = b"stop\n", b"kill\n"
PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """The command's exit code."""
    grace, command = float(arguments[0]), arguments[1:]
    # Unbuffered: a thread that waits in a buffered read would be in the way of this process's end.
    orders = open(0, "rb", buffering=0)  # noqa: SIM115
    environment = json.loads(orders.readline() or b"{}")
    child = subprocess.Popen(
        command,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: end_with_parent(signal.SIGKILL),
    )
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    # Ctrl-C is for the starter, which says what is to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_obey, args=(orders, child, grace), daemon=True).start()
    code = child.wait()
    _kill_group(child)
    return code if code >= 0 else 128 - code


def end_with_parent(number: int) -> None:
    """The kernel sends this process a signal when its parent ends, however it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def _obey(orders: RawIOBase, child: subprocess.Popen, grace: float) -> None:
    for order in orders:
        if order == STOP:
            child.terminate()
        elif order == KILL:
            _kill_group(child)
    child.terminate()
    try:
        child.wait(grace)
    except subprocess.TimeoutExpired:
        _kill_group(child)


def _kill_group(child: subprocess.Popen) -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
