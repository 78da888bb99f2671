"""This module executes one run of a sweep in its own process."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpo.config.folder import CHECKPOINTS, EVALUATIONS_FILE, checkpoints_in
from grpo.host.disk import open_own
from grpo.host.signals import STOPPED_CODES
from grpo.host.tether import end_with_parent
from grpo.host.why_ended import last_word
from grpo.sweep.cells import Cell
from grpo.sweep.ledger import DONE, FAILED, INTERRUPTED, LOG_FILE, RUNNING, Ledger, State, open_ledger
from grpo.telemetry.json_lines import read_metrics


def run_cell(job: Any) -> None:
    """Executes the run of one cell in a child process, and records in the ledger how it ended.

    Hydra's launchers call it, on any machine. `job` names the ledger's folder, the cell's index and the launcher's
    process. The child ends when this process ends. A cell that runs elsewhere is left alone. A failed run raises
    nothing, so that the other cells go on. Raises `KeyboardInterrupt` when the run was interrupted.
    """
    ledger = open_ledger(Path(job.folder))
    cell = ledger.cells[job.cell]
    if os.getppid() == job.launcher:
        end_with_parent(signal.SIGTERM)  # this is a local launcher's worker, which would otherwise outlive the sweep
    try:
        with ledger.lock(cell) as held:
            print(f"{cell.name} runs, and its log is {ledger.path(cell) / LOG_FILE}", flush=True)
            state = _run(ledger, cell, held)
    except BlockingIOError:
        return
    states = [ledger.state(other) for other in ledger.cells]
    num_done = sum(other.state == DONE for other in states)
    ended = f"{cell.name} {state.state} after {state.seconds:.0f} s" + (f": {state.why}" if state.why else "")
    facts = [f"{num_done} of {len(states)} done", ended, pass_rates(ledger.path(cell)), time_to_go(states)]
    print(" · ".join(filter(None, facts)), flush=True)
    if state.state == INTERRUPTED:
        raise KeyboardInterrupt


def pass_rates(folder: Path) -> str:
    """Returns the held-out pass@1 of a run's first and last evaluation in words, "" where there is none."""
    file = folder / EVALUATIONS_FILE
    rows = read_metrics(file) if file.exists() else []
    values = [row["pass@1"]["value"] for row in rows if "pass@1" in row]
    return "pass@1 " + " → ".join(f"{value:.1%}" for value in (values[0], *values[1:][-1:])) if values else ""


def time_to_go(states: Sequence[State]) -> str:
    """Returns in words how long the runs that are left will take: as long on average as those that are done, and as
    many at once as now. "" where that is not known.

    >>> time_to_go([State(DONE, seconds=100.0), State(DONE, seconds=140.0), State(), State(RUNNING)])
    'about 2 min to go'
    """
    done = [state.seconds for state in states if state.state == DONE]
    left = sum(state.state not in (DONE, FAILED) for state in states)
    at_once = 1 + sum(state.state == RUNNING for state in states)
    if not done or not left:
        return ""
    return f"about {max(1, round(left / at_once * sum(done) / len(done) / 60))} min to go"


def _run(ledger: Ledger, cell: Cell, held: int) -> State:
    """Runs the cell to its end, and records and returns its state. The child inherits `held`, the lock's descriptor."""
    folder, before, start = ledger.path(cell), ledger.state(cell).seconds, time.monotonic()
    ledger.record(cell, State(RUNNING, seconds=before))
    resumed = bool(checkpoints_in(folder / CHECKPOINTS))
    arguments = [*cell.overrides, f"output_dir={folder}", *(["checkpoint.resume=true"] if resumed else [])]
    with open_own(folder / LOG_FILE, "a") as log:
        begin = log.tell()
        process = subprocess.Popen(
            # `grpo launch` starts `grpo train` itself, on one machine or several.
            [*ledger.command, *([] if ledger.command[-1] == "launch" else [cell.verb]), *arguments],
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            pass_fds=(held,),
            # SIGTERM makes the run save before it ends. The run holds the cell's lock until its end.
            preexec_fn=lambda: end_with_parent(signal.SIGTERM),
        )
        code = _wait(process)
    seconds = before + time.monotonic() - start
    if code == 0:
        state = State(DONE, seconds=seconds)
    elif code in STOPPED_CODES:
        state = State(INTERRUPTED, seconds=seconds)
    else:
        state = State(FAILED, f"exit code {code}, {last_word(folder / LOG_FILE, begin)}", seconds)
    ledger.record(cell, state)
    return state


def _wait(process: subprocess.Popen) -> int:
    """Waits for the run and returns its exit code.

    Ctrl-C reaches the run too, which then finishes its round and saves, so this function keeps waiting.
    """
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue
