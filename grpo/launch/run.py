"""`grpo launch`: starts every machine's part of a run, waits, and ends all of them together."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from grpo.config import TrainConfig, UserError
from grpo.config.folder import CHECKPOINTS, checkpoints_in
from grpo.config.hydra import compose_config
from grpo.config.placement import KEY_VARIABLE, LOG_FOLDER
from grpo.config.validate import validate
from grpo.launch.machines import machines_of
from grpo.launch.ports import with_free_ports
from grpo.launch.seats import LEARNER, seat_table, seats_of
from grpo.launch.shells import Held
from grpo.report.summary import facts_table
from grpo.run_lock import refuse_held
from grpo.telemetry.last_word import last_word

PID_FILE = "launcher.pid"
INTERRUPTED = 128 + signal.SIGTERM
POLL_SECONDS = 0.2


def launch(words: Sequence[str]) -> int:
    """Runs `words`, overrides of `grpo train`, over the machines of `hardware`; the learners' exit code, 143 when it
    was asked to stop and all of them saved, or it was asked twice. Every seat writes into `logs/` in the run's folder,
    the first learner to the terminal too."""
    words = [*words, *_resumed(compose_config([*words]))]
    config = compose_config(words)
    hardware = config.hardware
    validate(config, hardware.learner_nodes * hardware.ranks_per_node)
    if hardware.shell != "here" and shutil.which(hardware.shell) is None:
        raise UserError(f"hardware.shell={hardware.shell}, and there is no {hardware.shell} on this machine")
    machines = machines_of(list(hardware.hosts), hardware.shell, hardware.learner_nodes + hardware.server_nodes)
    config = config if config.dry_run else with_free_ports(config, machines)
    seats = seats_of(config, words, machines)
    Console().print(facts_table("Machines", ("machine", "what it does"), seat_table(config, seats)))
    if config.dry_run:
        return 0
    refuse_held(Path(config.output_dir))
    logs = Path(config.output_dir) / LOG_FOLDER
    logs.mkdir(parents=True, exist_ok=True)
    (logs.parent / PID_FILE).write_text(f"{os.getpid()} {socket.gethostname()}\n")
    environment = {KEY_VARIABLE: os.environ.get(KEY_VARIABLE) or secrets.token_urlsafe(24)}
    stop, held = _StopRequest(), []
    try:
        for seat in seats:
            shown = seat.role == LEARNER and seat.index == 0
            held.append(Held(seat, hardware.shell, environment, logs / f"{seat.name}.log", shown))
        return _wait(held, stop)
    finally:
        for each in held:
            each.close()
        for each in held:
            each.wait()
        (logs.parent / PID_FILE).unlink(missing_ok=True)


def _resumed(config: TrainConfig) -> list[str]:
    """A job that Slurm has put back into the queue goes on from its checkpoint."""
    again = int(os.environ.get("SLURM_RESTART_COUNT", "0")) > 0
    there = checkpoints_in(Path(config.output_dir) / CHECKPOINTS)
    return ["checkpoint.resume=true"] if again and there else []


def _wait(held: Sequence[Held], stop: _StopRequest) -> int:
    """Until all learners have ended. Where one fails, the others, which wait for it, are killed; where no server is
    left, all are asked to stop, for they would wait for one. What ended the run is told again at its end, and so is a
    learner that could not save when it was asked to stop."""
    learners = [each for each in held if each.seat.role == LEARNER]
    servers = [each for each in held if each.seat.role != LEARNER]
    asked, last_server = 0, None
    while True:
        codes = {each: each.process.poll() for each in held}
        if stop.requests > asked:
            asked = stop.requests
            for each in learners:
                each.ask_to_stop() if asked == 1 else each.kill()
        for each in [each for each in servers if codes[each] is not None]:
            servers.remove(each)
            _tell(each)
            if not servers and not asked:
                last_server = each
                for learner in learners:
                    learner.ask_to_stop()
        failed = [each for each in learners if codes[each]]
        if failed and not asked and not last_server:
            _tell(failed[0])
            for each in learners:
                each.kill()
            return codes[failed[0]]
        if all(codes[each] is not None for each in learners):
            if last_server:
                _tell(last_server)
                return codes[last_server] or 1
            unsaved = [each for each in learners if codes[each] not in (0, INTERRUPTED)]
            if asked == 1 and unsaved:
                _tell(unsaved[0])
                return codes[unsaved[0]]
            return INTERRUPTED if asked else 0
        time.sleep(POLL_SECONDS)


def _tell(ended: Held) -> None:
    code, why = ended.wait(), last_word(ended.log)
    print(f"grpo: {ended.seat.name} on {ended.seat.machine.name} ended with {code}: {why}", file=sys.stderr)


class _StopRequest:
    """SIGTERM or Ctrl-C: the learners finish their round and save. A second one ends all at once."""

    def __init__(self) -> None:
        self.requests = 0
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._request)

    def _request(self, number: int, frame: object) -> None:
        self.requests += 1
