"""This module executes one run of a sweep in its own process."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from grpo.config.folder import CHECKPOINTS, checkpoints_in
from grpo.host.disk import open_own
from grpo.host.signals import STOPPED_CODES
from grpo.host.tether import end_with_parent
from grpo.host.why_ended import last_word
from grpo.sweep.cells import Cell
from grpo.sweep.ledger import DONE, FAILED, INTERRUPTED, LOG_FILE, RUNNING, Ledger, State, open_ledger


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
            state = _run(ledger, cell, held)
    except BlockingIOError:
        return
    num_done = sum(ledger.state(other).state == DONE for other in ledger.cells)
    why = f": {state.why}" if state.why else ""
    print(
        f"{num_done} of {len(ledger.cells)} done · {cell.name} {state.state} after {state.seconds:.0f} s{why}",
        flush=True,
    )
    if state.state == INTERRUPTED:
        raise KeyboardInterrupt


def _run(ledger: Ledger, cell: Cell, held: int) -> State:
    """Runs the cell to its end, and records and returns its state. The child inherits `held`, the lock's descriptor."""
    folder, before, start = ledger.path(cell), ledger.state(cell).seconds, time.monotonic()
    ledger.record(cell, State(RUNNING, seconds=before))
    resumed = bool(checkpoints_in(folder / CHECKPOINTS))
    arguments = [*cell.overrides, f"output_dir={folder}", *(["checkpoint.resume=true"] if resumed else [])]
    with open_own(folder / LOG_FILE, "a") as log:
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
        state = State(FAILED, f"exit code {code}, {last_word(folder / LOG_FILE)}", seconds)
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
