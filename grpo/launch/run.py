"""`grpo launch`: starts every machine's part of a run, waits, and ends all of them together."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from rich.console import Console

from grpo.config import TrainConfig, UserError
from grpo.config.hydra import compose_config
from grpo.config.validate import validate
from grpo.launch.seats import LEARNER, Seat, seat_table, seats_of
from grpo.launch.shells import Held, hosts_of
from grpo.report.summary import facts_table
from grpo.rollout.server_sampler import KEY_VARIABLE, LOG_FOLDER
from grpo.telemetry.last_word import last_word

PID_FILE = "launcher.pid"
INTERRUPTED = 128 + signal.SIGTERM
POLL_SECONDS = 0.2


def launch(words: Sequence[str]) -> int:
    """Runs `words`, overrides of `grpo train`, over the machines of `hardware`; the learners' exit code, 143 when it
    was asked to stop. Every seat writes into `logs/` in the run's folder, the first learner to the terminal too."""
    words = [*words, *_resumed(compose_config([*words]))]
    config = compose_config(words)
    hardware = config.hardware
    validate(config, hardware.learner_nodes * hardware.ranks_per_node)
    hosts = hosts_of(list(hardware.hosts), hardware.shell, hardware.learner_nodes + hardware.server_nodes)
    seats = seats_of(config, words, hosts)
    Console().print(facts_table("Machines", ("machine", "what it does"), seat_table(config, seats)))
    if config.dry_run:
        return 0
    logs = Path(config.output_dir) / LOG_FOLDER
    logs.mkdir(parents=True, exist_ok=True)
    (logs.parent / PID_FILE).write_text(str(os.getpid()))
    environment = {KEY_VARIABLE: os.environ.get(KEY_VARIABLE) or secrets.token_urlsafe(24)}
    stop, held = _StopRequest(), []
    try:
        for seat in seats:
            held.append(_start(seat, hardware.shell, environment, logs))
        return _wait(held, stop, logs)
    finally:
        for each in held:
            each.close()
        for each in held:
            each.process.wait()
        (logs.parent / PID_FILE).unlink(missing_ok=True)


def _resumed(config: TrainConfig) -> list[str]:
    """A job that Slurm has put back into the queue goes on from its checkpoint."""
    again = int(os.environ.get("SLURM_RESTART_COUNT", "0")) > 0
    there = any((Path(config.output_dir) / "checkpoints").glob("step-*"))
    return ["checkpoint.resume=true"] if again and there else []


def _start(seat: Seat, shell: str, environment: dict[str, str], logs: Path) -> Held:
    log = (logs / f"{seat.name}.log").open("ab")
    shown = seat.role == LEARNER and seat.index == 0
    if shutil.which(shell) is None and shell != "here":
        raise UserError(f"hardware.shell={shell}, and there is no {shell} on this machine")
    held = Held(seat, shell, environment, subprocess.PIPE if shown else log)
    if shown:
        threading.Thread(target=_show, args=(held.process.stdout, log), daemon=True).start()
    return held


def _show(source: IO[bytes], log: IO[bytes]) -> None:
    for line in source:
        for sink in (log, sys.stdout.buffer):
            sink.write(line)
            sink.flush()


def _wait(held: Sequence[Held], stop: _StopRequest, logs: Path) -> int:
    """Until all learners have ended, or one has failed."""
    learners = [each for each in held if each.seat.role == LEARNER]
    lost: set[str] = set()
    asked = False
    while True:
        codes = {each: each.process.poll() for each in held}
        if stop.requested and not asked:
            asked = True
            for each in learners:
                each.ask_to_stop()
        for each, code in codes.items():
            if code is not None and each not in learners and each.seat.name not in lost:
                lost.add(each.seat.name)
                why = last_word(logs / f"{each.seat.name}.log")
                print(f"grpo: {each.seat.name} on {each.seat.host} ended with {code}: {why}", file=sys.stderr)
        failed = [each for each in learners if codes[each]]
        if failed and not asked:
            first = failed[0]
            why = last_word(logs / f"{first.seat.name}.log")
            print(f"grpo: {first.seat.name} on {first.seat.host} failed: {why}", file=sys.stderr)
            return codes[first]
        if all(codes[each] is not None for each in learners):
            return INTERRUPTED if asked else 0
        time.sleep(POLL_SECONDS)


class _StopRequest:
    """SIGTERM or Ctrl-C: the learners finish their round and save. A second one ends all at once."""

    def __init__(self) -> None:
        self.requested = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._request)

    def _request(self, number: int, frame: object) -> None:
        if self.requested:
            raise SystemExit(INTERRUPTED)
        self.requested = True
