"""How a command is started on a machine, with a pipe to its tether."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import IO

from grpo.config import UserError
from grpo.launch.seats import Seat
from grpo.tether import STOP

LOOPBACK = "127.0.0.1"


class Held:
    """A seat's process. `close` ends it, and so does the end of this process."""

    def __init__(self, seat: Seat, shell: str, environment: Mapping[str, str], output: IO[bytes] | int):
        self.seat = seat
        tethered = [sys.executable, "-m", "grpo.tether", str(seat.grace_seconds), *seat.command]
        self.process = subprocess.Popen(
            SHELLS[shell](seat.host, tethered),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Ctrl-C is for this process alone, which asks the seats to stop.
            start_new_session=True,
        )
        self._order(json.dumps(environment).encode() + b"\n")

    def ask_to_stop(self) -> None:
        self._order(STOP)

    def close(self) -> None:
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            return

    def _order(self, order: bytes) -> None:
        try:
            self.process.stdin.write(order)
            self.process.stdin.flush()
        except (BrokenPipeError, ValueError):
            return  # it has ended, or was closed


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
