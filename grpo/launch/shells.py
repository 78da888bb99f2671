"""This module starts a seat's command on its machine, with a pipe to the tether that ends it.

It also holds the run's ports: from `hardware.first_port` on, or other ones if some of these are taken.
"""

import json
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from grpo.config import TrainConfig, UserError
from grpo.host.disk import open_own
from grpo.host.imports import safe_path
from grpo.host.ports import ReservedPort, reserve_ports
from grpo.host.signals import as_shown
from grpo.host.terminal import say
from grpo.host.tether import HURRY, KILL, STOP
from grpo.launch.machines import Machine
from grpo.launch.seats import SERVER_PORTS, Seat

SHOW_SECONDS = 0.1
# A seat ends when it hears nothing for this long, since this process, its machine or the connection is then gone.
SILENT_SECONDS = 60.0
BEAT_SECONDS = SILENT_SECONDS / 6
LAST_PORT = 32_000
"""Ports above this are given to outgoing connections (see /proc/sys/net/ipv4/ip_local_port_range)."""


class RunningSeat:
    """This is a seat's running process. It ends on `close`, and also when this process ends.

    Its output goes to `log`, from byte `begin` on, and also to the terminal if it is `shown`.
    """

    num_asked = 0

    def __init__(self, seat: Seat, shell: str, environment: Mapping[str, str], log: Path, shown: bool):
        """Starts the process. `environment` is sent through the pipe, so that its keys appear in no command line."""
        self.seat, self.log = seat, log
        # A seat on this machine is started without ssh, so that it needs no login.
        without_ssh = shell == "ssh" and seat.machine.is_here
        tethered = [
            # The working folder may hold a json.py (see `grpo.host.imports.look_here_last`).
            *(sys.executable, *(["-P"] if safe_path() else []), "-m"),
            "grpo.host.tether",
            str(seat.grace_seconds),
            str(SILENT_SECONDS),
            *seat.command,
        ]
        # Output goes to a file and not to a pipe: a learner that ends because this process was killed can still write.
        with open_own(log, "ab") as file:
            self.begin = file.tell()
            self.process = subprocess.Popen(
                (_here if without_ssh else SHELLS[shell])(seat.machine.name, tethered),
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                # Ctrl-C must reach this process alone, which then asks the seats to stop.
                start_new_session=True,
            )
        self._order(json.dumps(environment).encode() + b"\n")
        self._closed = threading.Event()
        threading.Thread(target=self._beat, daemon=True).start()
        self._output_thread = threading.Thread(target=self._show, args=(self.begin,), daemon=True) if shown else None
        if self._output_thread:
            self._output_thread.start()

    def poll(self) -> int | None:
        """Returns the seat's exit code, or None while it runs."""
        code = self.process.poll()
        return None if code is None else as_shown(code)

    def ask_to_stop(self) -> None:
        """Asks the seat to save and end."""
        self._order(STOP)

    def hurry(self) -> None:
        """Asks the seat to save without the rest of its round."""
        self._order(HURRY)

    def kill(self) -> None:
        """Ends the seat at once."""
        self._order(KILL)

    def close(self) -> None:
        """Closes the pipe to the tether, which then ends the seat. Returns at once."""
        self._closed.set()
        with suppress(BrokenPipeError):
            self.process.stdin.close()

    def wait(self) -> int:
        """Waits for the process and until all its output is shown. Returns its exit code."""
        code = self.process.wait()
        if self._output_thread:
            self._output_thread.join()
        return as_shown(code)

    def _beat(self) -> None:
        """Sends an empty line now and then, which tells the tether that this process is alive."""
        while not self._closed.wait(BEAT_SECONDS):
            self._order(b"\n")

    def _order(self, order: bytes) -> None:
        """Sends an order to the tether. A process that has ended, or whose pipe is closed, is ignored."""
        with suppress(BrokenPipeError, ValueError):
            self.process.stdin.write(order)
            self.process.stdin.flush()

    def _show(self, place: int) -> None:
        """Copies the log, from byte `place` on, to the terminal until the process has ended."""
        with self.log.open("rb") as file:
            file.seek(place)
            ended = False
            while not ended:
                # The end is checked before reading, so that everything written before the end is shown.
                ended = self.process.poll() is not None
                sys.stdout.buffer.write(file.read())
                sys.stdout.buffer.flush()
                time.sleep(SHOW_SECONDS)


def _here(host: str, command: list[str]) -> list[str]:
    """Returns the command unchanged, which runs it on this machine."""
    return command


def _ssh(host: str, command: list[str]) -> list[str]:
    """Returns the ssh command that runs `command` on `host`, in this process's working directory."""
    remote_command = f"cd {shlex.quote(os.getcwd())} && exec {shlex.join(command)}"
    # ssh gives up after 6 beats without an answer, which is as long as a tether waits for this process.
    alive = ["-o", f"ServerAliveInterval={BEAT_SECONDS:.0f}", "-o", "ServerAliveCountMax=6"]
    return ["ssh", "-o", "BatchMode=yes", *alive, host, remote_command]


def _srun(host: str, command: list[str]) -> list[str]:
    """Returns the srun command that runs `command` on `host` as a step of the Slurm job."""
    # A step gets only one core unless srun knows how many the job has on the machine.
    cores = os.environ.get("SLURM_CPUS_ON_NODE", "1")
    step = ["--nodes=1", "--ntasks=1", f"--cpus-per-task={cores}", f"--nodelist={host}", "--overlap", "--cpu-bind=none"]
    return ["srun", "--quiet", *step, *command]


SHELLS: dict[str, Callable[[str, list[str]], list[str]]] = {"here": _here, "ssh": _ssh, "srun": _srun, "each": _here}


def with_reserved_ports(config: TrainConfig, machines: Sequence[Machine]) -> tuple[TrainConfig, list[ReservedPort]]:
    """Holds the run's ports on this machine. Returns them with the config, which has another `hardware.first_port` if
    one of the ports is taken.

    Only a run on this machine alone gets other ports, since the ports of other machines cannot be held from here.
    Raises UserError when a port is taken here and the run uses other machines too, and when no free ports are left.
    """
    first, width = config.hardware.first_port, 2 * SERVER_PORTS
    taken = ""
    higher = first + width if first + width < LAST_PORT else LAST_PORT // 2
    for start in (first, *range(higher, LAST_PORT, width)):
        try:
            reserved = reserve_ports(_ports_here(config, machines, start))
        except OSError as error:
            if not all(machine.is_here for machine in machines):
                raise UserError(
                    f"port {error.filename} of this machine is taken, perhaps by another run: change "
                    "hardware.first_port"
                ) from error
            taken = taken or error.filename
            continue
        if start != first:
            say(f"grpo: port {taken} is taken, perhaps by another run: this run uses the ports from {start} on")
        return replace(config, hardware=replace(config.hardware, first_port=start)), reserved
    raise UserError(f"port {taken} and those from {higher} to {LAST_PORT} are taken: change hardware.first_port")


def _ports_here(config: TrainConfig, machines: Sequence[Machine], first: int) -> Iterator[tuple[str, int]]:
    """Yields address and number of each port that the run uses on this machine."""
    if config.hardware.learner_nodes > 1 and machines and machines[0].is_here:
        yield machines[0].address, first
    num_servers = config.rollout.servers.replicas
    for index, machine in enumerate(machines[config.hardware.learner_nodes :]):
        if machine.is_here:
            for replica in range(num_servers):
                yield machine.address, first + SERVER_PORTS + index * num_servers + replica
