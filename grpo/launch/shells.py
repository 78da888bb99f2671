"""How a command is started on a machine, with a pipe to its tether."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from grpo.config import UserError
from grpo.launch.seats import Seat
from grpo.tether import KILL, STOP

LOOPBACK = "127.0.0.1"
LAST_LINES_SECONDS = 10.0


class Held:
    """A seat's process; what it writes goes to `log`, and to the terminal too where it is `shown`. `close` ends it, and
    so does the end of this process."""

    def __init__(self, seat: Seat, shell: str, environment: Mapping[str, str], log: Path, shown: bool):
        self.seat, self.log = seat, log
        # Nobody needs to log in where they are.
        own = shell == "ssh" and seat.host in (LOOPBACK, "localhost", socket.gethostname())
        tethered = [sys.executable, "-m", "grpo.tether", str(seat.grace_seconds), *seat.command]
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                (_here if own else SHELLS[shell])(seat.host, tethered),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if shown else file,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for this process alone, which asks the seats to stop.
                start_new_session=True,
            )
        self._order(json.dumps(environment).encode() + b"\n")
        self._shown = threading.Thread(target=self._show, daemon=True) if shown else None
        if self._shown:
            self._shown.start()

    def ask_to_stop(self) -> None:
        self._order(STOP)

    def kill(self) -> None:
        self._order(KILL)

    def close(self) -> None:
        with suppress(BrokenPipeError):
            self.process.stdin.close()

    def wait(self) -> int:
        """Its exit code, once all that it wrote is in the log."""
        code = self.process.wait()
        if self._shown:
            self._shown.join(LAST_LINES_SECONDS)
        return code

    def _order(self, order: bytes) -> None:
        # A process that has ended, or was closed, takes no orders.
        with suppress(BrokenPipeError, ValueError):
            self.process.stdin.write(order)
            self.process.stdin.flush()

    def _show(self) -> None:
        with self.log.open("ab") as file:
            for line in self.process.stdout:
                for sink in (file, sys.stdout.buffer):
                    sink.write(line)
                    sink.flush()


def _here(host: str, command: list[str]) -> list[str]:
    return command


def _ssh(host: str, command: list[str]) -> list[str]:
    there = f"cd {shlex.quote(os.getcwd())} && exec {shlex.join(command)}"
    return ["ssh", "-o", "BatchMode=yes", host, there]


def _srun(host: str, command: list[str]) -> list[str]:
    # A step takes one core of its machine unless it is told how many the job has there.
    cores = os.environ.get("SLURM_CPUS_ON_NODE", "1")
    step = ["--nodes=1", "--ntasks=1", f"--cpus-per-task={cores}", f"--nodelist={host}", "--overlap", "--cpu-bind=none"]
    return ["srun", "--quiet", *step, *command]


SHELLS: dict[str, Callable[[str, list[str]], list[str]]] = {"here": _here, "ssh": _ssh, "srun": _srun}


def hosts_of(hosts: list[str], shell: str, count: int) -> list[str]:
    """The machines: as configured, those of the Slurm allocation, or this one `count` times. Raises `UserError` outside
    of an allocation, and for machines elsewhere that only this one's shell is given for."""
    if shell == "srun" and not hosts:
        allocation = os.environ.get("SLURM_JOB_NODELIST")
        if not allocation:
            raise UserError("hardware.shell=srun needs a Slurm allocation: start it with sbatch launch/slurm.sh")
        shown = subprocess.run(
            ["scontrol", "show", "hostnames", allocation], capture_output=True, text=True, check=True
        )
        return shown.stdout.split()
    if shell == "here":
        if set(hosts) - {LOOPBACK, "localhost"}:
            raise UserError("hardware.hosts are other machines: set hardware.shell=ssh")
        return hosts or [LOOPBACK] * count
    return hosts
