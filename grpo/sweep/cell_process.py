"""One run of a sweep, in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from grpo.config.folder import CHECKPOINTS, checkpoints_in
from grpo.host.tether import end_with_parent
from grpo.sweep.cells import Cell
from grpo.sweep.ledger import DONE, FAILED, INTERRUPTED, LOG_FILE, RUNNING, Ledger, State, open_ledger
from grpo.telemetry.last_word import last_word

STOPPED = (-signal.SIGTERM, -signal.SIGINT, 128 + signal.SIGTERM, 128 + signal.SIGINT)


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
