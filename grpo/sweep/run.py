"""`grpo sweep`: runs the cells that are not done yet, and shows how all of them stand."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from grpo.config import UserError
from grpo.config.folder import CHECKPOINTS, checkpoints_in
from grpo.config.hydra import compose_sweep, launch_all
from grpo.sweep.cells import Cell, cells_of
from grpo.sweep.ledger import DONE, FAILED, INTERRUPTED, LOG_FILE, RUNNING, Ledger, State, begin_ledger, open_ledger
from grpo.telemetry.last_word import last_word
from grpo.terminal import Terminal
from grpo.tether import end_with_parent

USAGE = """usage: grpo sweep sweep=NAME [seeds=N] [budget=steps|samples|tokens|seconds amount=N] [output_dir=DIR]
                  [command="python -m grpo.cli launch"] [hydra/launcher=joblib ...] [trials=N [batch=N]] [key=value ...]

Every variant of configs/sweep/NAME.yaml (or of a file of your own), with seeds 0 to N−1; key=value are overrides of
every run, key=1,2 multiplies the variants. The same command again goes on with what is not done.
  grpo sweep sweep=normalization experiment=tiny seeds=5 output_dir=runs/dial
  grpo sweep sweep=seeds experiment=tiny learner.learning_rate=1e-4,3e-4 hydra/launcher=joblib
With trials=N, Optuna searches the keys that are given a range:
  grpo sweep sweep=seeds experiment=tiny seeds=1 trials=20 'learner.learning_rate=tag(log,interval(1e-5,1e-2))'"""

OWN_KEYS = ("seeds", "budget", "amount", "trials", "batch", "command", "output_dir")
STOPPED = (-signal.SIGTERM, -signal.SIGINT, 128 + signal.SIGTERM, 128 + signal.SIGINT)


def sweep(words: Sequence[str]) -> int:
    """Runs a sweep; 0 when every cell is done, 1 otherwise."""
    if not words or words[0] in ("help", "-h", "--help"):
        print(USAGE)
        return 0
    preset = [word.removeprefix("sweep=") for word in words if word.startswith("sweep=")]
    if len(preset) != 1:
        raise UserError("grpo sweep needs one sweep=NAME (grpo sweep help)")
    own = [word for word in words if word.partition("=")[0] in OWN_KEYS]
    hydra = [word for word in words if word.startswith(("hydra.", "hydra/"))]
    config = compose_sweep(preset[0], own)
    of_runs = [word for word in words if word not in (*own, *hydra, f"sweep={preset[0]}")]
    command = shlex.split(config.command) or [sys.executable, "-m", "grpo.cli"]
    if config.trials:
        from grpo.sweep.search import search

        return search(config, of_runs, hydra, command)
    ledger = begin_ledger(Path(config.output_dir).absolute(), cells_of(config, of_runs), command)
    pending = ledger.pending()
    print(f"{len(ledger.cells)} runs, {len(pending)} of them to be done, in {ledger.folder}", flush=True)
    if pending:
        try:
            launch_all(run_cell, pending, ledger.folder, hydra)
        except KeyboardInterrupt:
            print("stopped; the same command goes on", flush=True)
    Terminal().print(ledger_table(ledger))
    states = [ledger.state(cell) for cell in ledger.cells]
    return 0 if all(state.state == DONE for state in states) else 1


def run_cell(job: Any) -> None:
    """One run, in a process of its own that ends with this one. Whatever becomes of it is written down, not raised:
    the other cells go on. Called by Hydra's launchers, wherever they run."""
    ledger = open_ledger(Path(job.folder))
    cell = ledger.cells[job.cell]
    if os.getppid() == job.launcher:
        end_with_parent(signal.SIGTERM)  # a worker of a launcher on this machine, which would survive the sweep
    try:
        with ledger.lock(cell) as held:
            state = _run(ledger, cell, held)
    except BlockingIOError:
        return
    done = sum(ledger.state(each).state == DONE for each in ledger.cells)
    why = f": {state.why}" if state.why else ""
    print(
        f"{done} of {len(ledger.cells)} done · {cell.name} {state.state} after {state.seconds:.0f} s{why}", flush=True
    )
    if state.state == INTERRUPTED:
        raise KeyboardInterrupt


def _run(ledger: Ledger, cell: Cell, held: int) -> State:
    folder, before, start = ledger.path(cell), ledger.state(cell).seconds, time.monotonic()
    ledger.record(cell, State(RUNNING, seconds=before))
    resumed = bool(checkpoints_in(folder / CHECKPOINTS))
    arguments = [*cell.overrides, f"output_dir={folder}", *(["checkpoint.resume=true"] if resumed else [])]
    with (folder / LOG_FILE).open("a") as log:
        process = subprocess.Popen(
            # `grpo launch` starts `grpo train` itself, on one machine or several.
            [*ledger.command, *([] if ledger.command[-1] == "launch" else ["train"]), *arguments],
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            pass_fds=(held,),
            # A run saves first, and until it has it holds the cell.
            preexec_fn=lambda: end_with_parent(signal.SIGTERM),
        )
        code = _wait(process)
    seconds = before + time.monotonic() - start
    if code == 0:
        state = State(DONE, seconds=seconds)
    elif code in STOPPED:
        state = State(INTERRUPTED, seconds=seconds)
    else:
        state = State(FAILED, f"exit code {code}, {last_word(folder / LOG_FILE)}", seconds)
    ledger.record(cell, state)
    return state


def _wait(process: subprocess.Popen) -> int:
    """The exit code. Ctrl-C reaches the run too, which finishes its round and saves; it is waited for."""
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue


def ledger_table(ledger: Ledger) -> Table:
    """A line a variant, and one for each run that failed."""
    table = Table("variant", "done", "running", "failed", "to do", "minutes", title=str(ledger.folder.name))
    for variant in dict.fromkeys(cell.variant for cell in ledger.cells):
        states = [ledger.state(cell) for cell in ledger.cells if cell.variant == variant]
        count = {name: sum(state.state == name for state in states) for name in (DONE, RUNNING, FAILED)}
        rest = len(states) - sum(count.values())
        minutes = sum(state.seconds for state in states) / 60
        table.add_row(variant, *(str(count[name]) for name in (DONE, RUNNING, FAILED)), str(rest), f"{minutes:.1f}")
    for cell in ledger.cells:
        if (state := ledger.state(cell)).state == FAILED:
            table.add_section()
            table.add_row(cell.name, "", "", state.why, "", "")
    return table
