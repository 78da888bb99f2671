"""This module implements `grpo launch`, which starts each machine's part of a run and ends all of them together."""

import os
import re
import secrets
import shutil
import socket
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from rich.console import Console

from grpo.config import TrainConfig, UserError
from grpo.config.errors import require
from grpo.config.folder import LOG_FOLDER
from grpo.config.hydra import compose_config
from grpo.config.placement import KEY_VARIABLE
from grpo.config.start import START_VARIABLE, of_a_moment, start
from grpo.config.validate import validate
from grpo.host import ranks
from grpo.host.folder_lock import launching, refuse_locked
from grpo.host.imports import safe_path
from grpo.host.output import outlasting
from grpo.host.ports import RESERVED_VARIABLE
from grpo.host.signals import StopRequest
from grpo.host.terminal import facts_table, say
from grpo.launch.machines import machines_of
from grpo.launch.meeting import FarSeat, follow, join, lead
from grpo.launch.membership import place_of
from grpo.launch.seats import LEARNER, Seat, seat_table, seats_of
from grpo.launch.shells import RunningSeat, with_reserved_ports
from grpo.launch.supervise import Part, wait


def run(words: Sequence[str]) -> int:
    """Runs `grpo train` with the overrides `words` on the machines of `hardware`.

    Every machine's part writes a log into `logs/` in the run's folder; the output of the first learner is shown on the
    terminal too. Returns 0 when all learners finished, and 143 when the run was asked to stop and all learners saved,
    or when it was asked twice; otherwise the exit code of the learner or server that failed.
    """
    given, words = words, [at_this_moment(word) for word in words]
    config = compose_config(words)
    hardware = config.hardware
    validate(config, hardware.ranks)
    require(
        not of_a_moment(config.output_dir),
        f"output_dir={config.output_dir} holds ${{now:…}}, which is another moment in each process of the run: write "
        "${start:} in its place, or give output_dir as a word",
    )
    if hardware.shell == "each" and not config.dry_run:
        return _run_with_others(config, given, words)
    if hardware.shell not in ("here", "each") and shutil.which(hardware.shell) is None:
        raise UserError(
            f"hardware.shell={hardware.shell} needs the program {hardware.shell}, which this machine lacks: install it "
            "or choose another hardware.shell"
        )
    machines = machines_of(list(hardware.hosts), hardware.shell, hardware.learner_nodes + hardware.server_nodes)
    # `reserved` holds the ports as long as it lives, which is until the run's end.
    config, reserved = (config, []) if config.dry_run else with_reserved_ports(config, machines)
    seats = seats_of(config, words, machines)
    _show(config, seats)
    if hardware.shell == "here" and len(machines) > 1:
        say(
            f"grpo: all {len(machines)} machines are this one, and share its devices, since hardware.shell=here: "
            "hardware.shell=ssh 'hardware.hosts=[A,B]' reaches others"
        )
    if config.dry_run:
        return 0
    refuse_locked(Path(config.output_dir))
    key = os.environ.get(KEY_VARIABLE) or secrets.token_urlsafe(24)
    environment = safe_path() | {KEY_VARIABLE: key, START_VARIABLE: start()}
    here = {RESERVED_VARIABLE: " ".join(str(port.port) for port in reserved)}

    def begin(seat: Seat, log: Path, is_shown: bool) -> Part:
        variables = environment | here if seat.machine.is_here else environment
        return RunningSeat(seat, hardware.shell, variables, log, is_shown)

    return _supervised(config, seats, begin)


def _run_with_others(config: TrainConfig, given: Sequence[str], words: list[str]) -> int:
    """Runs this machine's part of a run whose other machines start the same command (`hardware.shell=each`)."""
    require(
        [*given] == words,
        "${now:…} is another moment on each machine: write ${start:} in output_dir, or a name that stays the same",
    )
    hardware = config.hardware
    require(
        not hardware.server_nodes or bool(os.environ.get(KEY_VARIABLE)),
        f"hardware.shell=each with hardware.server_nodes needs the servers' key: set the environment variable "
        f"{KEY_VARIABLE} to the same secret on all machines",
    )
    place = place_of(os.environ, socket.getfqdn(), hardware)
    ranks.forget_launcher()
    if place.index:
        met, line = join(place, words)
    else:
        refuse_locked(Path(config.output_dir))
        met, lines = lead(place, hardware.learner_nodes + hardware.server_nodes, words, start())
    os.environ[START_VARIABLE] = met.start
    # The folder's name may hold the start.
    config = compose_config(words)
    config.hardware.first_port = place.port
    seats = seats_of(config, words, met.machines)
    by_machine = sorted(seats, key=lambda seat: (seat.role != LEARNER, seat.index))
    environment = safe_path() | {START_VARIABLE: start()}
    if place.index:
        log = _log(config, own := by_machine[place.index])
        with outlasting():
            stop, seat = StopRequest(), RunningSeat(own, hardware.shell, environment, log, True)
            try:
                return follow(seat, line, stop)
            finally:
                seat.close()
                seat.wait()
    _show(config, seats)

    def begin(seat: Seat, log: Path, is_shown: bool) -> Part:
        index = by_machine.index(seat)
        return FarSeat(seat, lines[index - 1], log) if index else RunningSeat(seat, "each", environment, log, is_shown)

    return _supervised(config, seats, begin)


def _show(config: TrainConfig, seats: Sequence[Seat]) -> None:
    """Prints which machine does what."""
    Console().print(facts_table("Machines", ("machine", "what it does"), seat_table(config, seats)))


def _log(config: TrainConfig, seat: Seat) -> Path:
    """Returns the file into which a seat prints. Its folder is made."""
    logs = Path(config.output_dir) / LOG_FOLDER
    logs.mkdir(parents=True, exist_ok=True)
    return logs / f"{seat.name}.log"


def _supervised(config: TrainConfig, seats: Sequence[Seat], begin: Callable[[Seat, Path, bool], Part]) -> int:
    """Begins all seats, and waits for them. `begin` takes a seat, its log and whether it is shown on the terminal.
    Returns the run's exit code."""
    print(f"{config.output_dir} will hold what the run writes", flush=True)
    stop, parts = StopRequest(), []
    with launching(_log(config, seats[0]).parent.parent), outlasting():
        try:
            for seat in seats:
                parts.append(begin(seat, _log(config, seat), seat.role == LEARNER and seat.index == 0))
            code = wait(parts, stop)
            for part in parts:
                if isinstance(part, FarSeat):
                    part.tell(code)
            return code
        finally:
            for part in parts:
                part.close()
            for part in parts:
                part.wait()


def at_this_moment(word: str) -> str:
    """Puts the time into each `${now:FORMAT}` of a word, since every rank that composes it would take another moment.

    >>> at_this_moment("output_dir=runs/${now:x%%}")
    'output_dir=runs/x%'
    """
    return re.sub(r"\$\{now:([^}]*)\}", lambda form: datetime.now().strftime(form[1]), word)
