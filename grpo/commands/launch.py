"""This module implements `grpo launch`, which starts each machine's part of a run and ends all of them together."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from rich.console import Console

from grpo.config import UserError
from grpo.config.folder import LAUNCHER_FILE, LOG_FOLDER
from grpo.config.hydra import compose_config
from grpo.config.placement import KEY_VARIABLE
from grpo.config.start import START_VARIABLE, start
from grpo.config.validate import validate
from grpo.host.disk import write_whole
from grpo.host.folder_lock import refuse_locked
from grpo.host.imports import safe_path
from grpo.host.output import outlasting
from grpo.host.ports import RESERVED_VARIABLE
from grpo.host.signals import StopRequest
from grpo.host.terminal import facts_table
from grpo.launch.machines import machines_of
from grpo.launch.seats import LEARNER, seat_table, seats_of
from grpo.launch.shells import RunningSeat, with_reserved_ports
from grpo.launch.supervise import wait


def run(words: Sequence[str]) -> int:
    """Runs `grpo train` with the overrides `words` on the machines of `hardware`.

    Every machine's part writes a log into `logs/` in the run's folder; the output of the first learner is shown on the
    terminal too. Returns 0 when all learners finished, and 143 when the run was asked to stop and all learners saved,
    or when it was asked twice; otherwise the exit code of the learner or server that failed.
    """
    words = [at_this_moment(word) for word in words]
    config = compose_config(words)
    hardware = config.hardware
    validate(config, hardware.ranks)
    if hardware.shell != "here" and shutil.which(hardware.shell) is None:
        raise UserError(
            f"hardware.shell={hardware.shell} needs the program {hardware.shell}, which this machine lacks: install it "
            "or choose another hardware.shell"
        )
    machines = machines_of(list(hardware.hosts), hardware.shell, hardware.learner_nodes + hardware.server_nodes)
    # `reserved` holds the ports as long as it lives, which is until the run's end.
    config, reserved = (config, []) if config.dry_run else with_reserved_ports(config, machines)
    seats = seats_of(config, words, machines)
    Console().print(facts_table("Machines", ("machine", "what it does"), seat_table(config, seats)))
    if config.dry_run:
        return 0
    print(f"{config.output_dir} will hold what the run writes", flush=True)
    refuse_locked(Path(config.output_dir))
    logs = Path(config.output_dir) / LOG_FOLDER
    logs.mkdir(parents=True, exist_ok=True)
    write_whole(logs.parent / LAUNCHER_FILE, f"{os.getpid()} {socket.gethostname()}\n")
    key = os.environ.get(KEY_VARIABLE) or secrets.token_urlsafe(24)
    environment = safe_path() | {KEY_VARIABLE: key, START_VARIABLE: start()}
    here = {RESERVED_VARIABLE: " ".join(str(port.port) for port in reserved)}
    stop, processes = StopRequest(), []
    with outlasting():
        try:
            for seat in seats:
                is_shown = seat.role == LEARNER and seat.index == 0
                variables = environment | here if seat.machine.is_here else environment
                processes.append(RunningSeat(seat, hardware.shell, variables, logs / f"{seat.name}.log", is_shown))
            return wait(processes, stop)
        finally:
            for process in processes:
                process.close()
            for process in processes:
                process.wait()
            (logs.parent / LAUNCHER_FILE).unlink(missing_ok=True)


def at_this_moment(word: str) -> str:
    """Puts the time into each `${now:FORMAT}` of a word, since every rank that composes it would take another moment.

    >>> at_this_moment("output_dir=runs/${now:x%%}")
    'output_dir=runs/x%'
    """
    return re.sub(r"\$\{now:([^}]*)\}", lambda form: datetime.now().strftime(form[1]), word)
