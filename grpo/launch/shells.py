"""How a command is started on a machine, with a pipe to its tether."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from grpo.host.tether import KILL, STOP
from grpo.launch.seats import Seat

SHOW_SECONDS = 0.1
# A seat that hears nothing for so long ends: this process, its machine or the way to it is gone.
SILENT_SECONDS = 60.0
BEAT_SECONDS = SILENT_SECONDS / 6


class Held:
    """A seat's process; what it writes goes to `log`, and to the terminal too where it is `shown`. `close` ends it, and
    so does the end of this process."""

    def __init__(self, seat: Seat, shell: str, environment: Mapping[str, str], log: Path, shown: bool):
        self.seat, self.log = seat, log
        # Nobody needs to log in where they are.
        own = shell == "ssh" and seat.machine.is_here
        tethered = [
            sys.executable,
            "-m",
            "grpo.host.tether",
            str(seat.grace_seconds),
            str(SILENT_SECONDS),
            *seat.command,
        ]
        # A file, not a pipe to this process: a learner that ends because this one was killed can still say so.
        with log.open("ab") as file:
            before = file.tell()
            self.process = subprocess.Popen(
                (_here if own else SHELLS[shell])(seat.machine.name, tethered),
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for this process alone, which asks the seats to stop.
                start_new_session=True,
            )
        self._order(json.dumps(environment).encode() + b"\n")
        self._closed = threading.Event()
        threading.Thread(target=self._beat, daemon=True).start()
        self._shown = threading.Thread(target=self._show, args=(before,), daemon=True) if shown else None
        if self._shown:
            self._shown.start()

    def ask_to_stop(self) -> None:
        self._order(STOP)

    def kill(self) -> None:
        self._order(KILL)

    def close(self) -> None:
        self._closed.set()
        with suppress(BrokenPipeError):
            self.process.stdin.close()

    def wait(self) -> int:
        """Its exit code, once all that it wrote is shown."""
        code = self.process.wait()
        if self._shown:
            self._shown.join()
        return code

    def _beat(self) -> None:
        while not self._closed.wait(BEAT_SECONDS):
            self._order(b"\n")

    def _order(self, order: bytes) -> None:
        # A process that has ended, or was closed, takes no orders.
        with suppress(BrokenPipeError, ValueError):
            self.process.stdin.write(order)
            self.process.stdin.flush()

    def _show(self, place: int) -> None:
        with self.log.open("rb") as file:
            file.seek(place)
            ended = False
            while not ended:
                # In this order: what it wrote before its end is read.
                ended = self.process.poll() is not None
                sys.stdout.buffer.write(file.read())
                sys.stdout.buffer.flush()
                time.sleep(SHOW_SECONDS)


def _here(host: str, command: list[str]) -> list[str]:
    return command


def _ssh(host: str, command: list[str]) -> list[str]:
    there = f"cd {shlex.quote(os.getcwd())} && exec {shlex.join(command)}"
    # A machine that is gone without a word is noticed here as soon as this one would be there.
    alive = ["-o", f"ServerAliveInterval={BEAT_SECONDS:.0f}", "-o", "ServerAliveCountMax=6"]
    return ["ssh", "-o", "BatchMode=yes", *alive, host, there]


def _srun(host: str, command: list[str]) -> list[str]:
    # A step takes one core of its machine unless it is told how many the job has there.
    cores = os.environ.get("SLURM_CPUS_ON_NODE", "1")
    step = ["--nodes=1", "--ntasks=1", f"--cpus-per-task={cores}", f"--nodelist={host}", "--overlap", "--cpu-bind=none"]
    return ["srun", "--quiet", *step, *command]


SHELLS: dict[str, Callable[[str, list[str]], list[str]]] = {"here": _here, "ssh": _ssh, "srun": _srun}
