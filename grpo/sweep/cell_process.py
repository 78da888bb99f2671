# Light: imported before torch, or without it.
"""This module runs the cells of a sweep, each in a process of its own, several of them side by side."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from grpo.config.errors import UserError, require
from grpo.config.folder import CHECKPOINTS, EVALUATIONS_FILE, checkpoints_in
from grpo.config.rewording import path_word
from grpo.host import kernels
from grpo.host.alive import last_word
from grpo.host.disk import open_own
from grpo.host.signals import LOOK_SECONDS, STOPPED_CODES
from grpo.host.tether import end_with_parent
from grpo.sweep.cells import Cell
from grpo.sweep.ledger import DONE, FAILED, INTERRUPTED, LOG_FILE, RUNNING, Ledger, State
from grpo.telemetry.json_lines import read_metrics

VISIBLE = "CUDA_VISIBLE_DEVICES"


def gpus_here() -> list[str]:
    """Returns the names or numbers of the GPUs that this process may use, without importing torch. [] on a CPU."""
    if VISIBLE in os.environ:
        names = map(str.strip, os.environ[VISIBLE].split(","))
        # CUDA shows the GPUs before the first name that is none, such as -1.
        return [*takewhile(re.compile(r"\d+$|(GPU|MIG)-").match, names)]
    return kernels.listed_gpus()


def side_by_side(cells: Sequence[Cell], num_gpus: int) -> int:
    """Returns how many runs the GPUs of this machine have room for: at least one, and one where runs use others."""
    most = max(cell.gpus for cell in cells)
    return max(1, min(len(cells), num_gpus // most)) if all(cell.gpus for cell in cells) else 1


def run_cells(ledger: Ledger, cells: Sequence[Cell], jobs: int, gpus: Sequence[str]) -> None:
    """Runs cells to their ends, `jobs` at a time, and records in the ledger how each ended.

    Each run is shown some of the `gpus` that no other one uses. Where `gpus` is empty, runs see what this process sees.
    A failed run stops no other one. A cell that another sweep runs, or has run meanwhile, is left alone: the same sweep
    may be started on several machines that share a folder. Raises UserError for cells that cannot run side by side, and
    `KeyboardInterrupt` after a run was interrupted, once the others have saved and ended.
    """
    if gpus and jobs > 1:
        _require_room(cells, jobs, len(gpus))
    before = {cell.name: ledger.state(cell) for cell in cells}
    waiting, free, interrupted = list(cells), [*gpus], False
    running: list[_Running] = []
    while waiting or running:
        try:
            while waiting and not interrupted and len(running) < jobs:
                cell = waiting.pop(0)
                own = [free.pop(0) for _ in range(cell.gpus)] if gpus else []
                started = _start(ledger, cell, own) if ledger.state(cell) == before[cell.name] else None
                if started is None:
                    free += own
                else:
                    running.append(started)
            time.sleep(LOOK_SECONDS)
        except KeyboardInterrupt:
            # Ctrl-C reaches the runs too. They finish their rounds and save.
            interrupted = True
        for ended in [run for run in running if run.process.poll() is not None]:
            running.remove(ended)
            free += ended.gpus
            interrupted |= _record(ledger, ended) == INTERRUPTED
        if interrupted and not running:
            raise KeyboardInterrupt


def _require_room(cells: Sequence[Cell], jobs: int, num_gpus: int) -> None:
    """Raises UserError where `jobs` of the cells at once would use more GPUs than there are, or other machines."""
    elsewhere = [cell.name for cell in cells if cell.elsewhere]
    require(not elsewhere, f"jobs={jobs}: {elsewhere[:1]} uses other machines, so runs go one after another: jobs=1")
    most = max(cell.gpus for cell in cells)
    if jobs * most > num_gpus:
        raise UserError(
            f"jobs={jobs} runs of {most} GPUs each need {jobs * most}, and this machine shows {num_gpus}: "
            f"set jobs={max(1, num_gpus // most)}"
        )


@dataclass
class _Running:
    """A running cell holds its lock until its process has ended."""

    cell: Cell
    process: subprocess.Popen
    gpus: list[str]
    lock: ExitStack
    # Where this start's output begins in the log; the seconds of earlier starts.
    begin: int
    seconds_before: float
    start: float = field(default_factory=time.monotonic)


def _start(ledger: Ledger, cell: Cell, gpus: list[str]) -> _Running | None:
    """Starts the run of a cell. Returns None if another sweep is at it."""
    with ExitStack() as stack:
        try:
            lock = stack.enter_context(ledger.lock(cell))
        except BlockingIOError:
            return None
        folder, before = ledger.path(cell), ledger.state(cell).seconds
        print(f"{cell.name} runs, and its log is {folder / LOG_FILE}", flush=True)
        ledger.record(cell, State(RUNNING, seconds=before))
        resumed = bool(checkpoints_in(folder / CHECKPOINTS))
        arguments = [*cell.overrides, path_word("output_dir", folder), *(["checkpoint.resume=true"] if resumed else [])]
        with open_own(folder / LOG_FILE, "a") as log:
            begin = log.tell()
            process = subprocess.Popen(
                # `grpo launch` starts `grpo train` itself, on one machine or several.
                [*ledger.command, *([] if ledger.command[-1] == "launch" else [cell.verb]), *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=os.environ | ({VISIBLE: ",".join(gpus)} if gpus else {}),
                pass_fds=(lock,),
                # SIGTERM makes the run save before it ends. The run holds the cell's lock until its end.
                preexec_fn=lambda: end_with_parent(signal.SIGTERM),
            )
        return _Running(cell, process, gpus, stack.pop_all(), begin, before)


def _record(ledger: Ledger, ended: _Running) -> str:
    """Records and prints how a run ended. Returns its state."""
    cell, folder, code = ended.cell, ledger.path(ended.cell), ended.process.returncode
    seconds = ended.seconds_before + time.monotonic() - ended.start
    if code == 0:
        state = State(DONE, seconds=seconds)
    elif code in STOPPED_CODES:
        state = State(INTERRUPTED, seconds=seconds)
    else:
        state = State(FAILED, f"exit code {code}, {last_word(folder / LOG_FILE, ended.begin)}", seconds)
    ledger.record(cell, state)
    ended.lock.close()
    states = [ledger.state(other) for other in ledger.cells]
    num_done = sum(other.state == DONE for other in states)
    ending = f"{cell.name} {state.state} after {state.seconds:.0f} s" + (f": {state.why}" if state.why else "")
    facts = [f"{num_done} of {len(states)} done", ending, pass_rates(folder), time_to_go(states)]
    print(" · ".join(filter(None, facts)), flush=True)
    return state.state


def pass_rates(folder: Path) -> str:
    """Returns the held-out pass@1 of a run's first and last evaluation in words, "" where there is none."""
    file = folder / EVALUATIONS_FILE
    rows = read_metrics(file) if file.exists() else []
    values = [row["pass@1"]["value"] for row in rows if "pass@1" in row]
    return "pass@1 " + " → ".join(f"{value:.1%}" for value in (values[0], *values[1:][-1:])) if values else ""


def time_to_go(states: Sequence[State]) -> str:
    """Returns in words how long the runs that are left will take: as long on average as those that are done, with as
    many at once. "" where that is not known.

    >>> time_to_go([State(DONE, seconds=100.0), State(DONE, seconds=140.0), State(), State(RUNNING)])
    'about 2 min to go'
    """
    done = [state.seconds for state in states if state.state == DONE]
    left = sum(state.state not in (DONE, FAILED) for state in states)
    at_once = 1 + sum(state.state == RUNNING for state in states)
    if not done or not left:
        return ""
    return f"about {max(1, round(left / at_once * sum(done) / len(done) / 60))} min to go"
