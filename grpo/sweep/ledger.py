"""This module keeps the state of each run of a sweep in files, the ledger, so that a killed sweep can be continued.

FOLDER/sweep.json               the cells, and the command that runs one
FOLDER/cells/NAME/              the folder of a run
FOLDER/cells/NAME/state.json    the run's state, and why it failed; a run without this file is waiting
FOLDER/cells/NAME/log.txt       the output of the run
"""

import fcntl
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from grpo.config import UserError
from grpo.config.errors import first_line, require
from grpo.config.folder import CELLS, is_run
from grpo.config.plain_json import parse_json
from grpo.host.disk import open_own, write_whole
from grpo.host.terminal import say
from grpo.sweep.cells import Cell

SWEEP_FILE, STATE_FILE, LOG_FILE, LOCK_FILE = "sweep.json", "state.json", "log.txt", ".lock"
TRIES, PAUSE_SECONDS = 5, 0.05
WAITING, RUNNING, DONE, FAILED, INTERRUPTED = "waiting", "running", "done", "failed", "interrupted"


@dataclass(frozen=True, slots=True)
class State:
    """A state says whether a cell is waiting, running, done, failed (and `why`) or interrupted, and how long it ran."""

    state: str = WAITING
    why: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Ledger:
    """A ledger holds the cells of a sweep, and reads and writes their states in `folder`.

    `command` is the command line that starts `grpo` for a cell.
    """

    folder: Path
    cells: tuple[Cell, ...]
    command: tuple[str, ...]

    def path(self, cell: Cell) -> Path:
        """Returns the folder of the cell's run."""
        return self.folder / CELLS / cell.name

    def state(self, cell: Cell) -> State:
        """Reads the cell's state. A cell recorded as running counts as interrupted when its process is gone."""
        file = self.path(cell) / STATE_FILE
        if not file.exists():
            return State()
        try:
            state = State(**parse_json(file.read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise UserError(f"{file} is damaged ({first_line(error)}): remove it, and the run is done again") from error
        return State(INTERRUPTED, seconds=state.seconds) if state.state == RUNNING and self._free(cell) else state

    def record(self, cell: Cell, state: State) -> None:
        """Writes the cell's state."""
        write_whole(self.path(cell) / STATE_FILE, json.dumps(asdict(state)))

    @contextmanager
    def lock(self, cell: Cell) -> Iterator[int]:
        """Locks the cell for the duration of the context, and yields the lock's file descriptor.

        A child process that inherits the descriptor holds the lock too, until both processes have ended.
        Raises `BlockingIOError` when another process holds the lock.
        """
        with ExitStack() as stack:
            for tries_left in reversed(range(TRIES)):
                try:
                    descriptor = stack.enter_context(_locked(self.path(cell), fcntl.LOCK_EX | fcntl.LOCK_NB))
                    break
                except BlockingIOError:
                    # Another process that looks at the sweep holds the lock for a moment.
                    if not tries_left:
                        raise
                    time.sleep(PAUSE_SECONDS)
            yield descriptor

    def pending(self) -> list[int]:
        """Returns the indices of the cells that are neither done nor running elsewhere."""
        return [index for index, cell in enumerate(self.cells) if self.state(cell).state not in (DONE, RUNNING)]

    def _free(self, cell: Cell) -> bool:
        # Several may look at a cell at the same time.
        try:
            with _locked(self.path(cell), fcntl.LOCK_SH | fcntl.LOCK_NB):
                return True
        except BlockingIOError:
            return False


def open_ledger(folder: Path) -> Ledger:
    """Opens the ledger of an existing sweep. Raises `UserError` when `folder` holds none, or a damaged one."""
    file = folder / SWEEP_FILE
    if not file.exists():
        raise UserError(f"{folder} is not the folder of a sweep: it has no {SWEEP_FILE}")
    try:
        saved = parse_json(file.read_text())
        cells = tuple(Cell(**{**row, "overrides": tuple(row["overrides"])}) for row in saved["cells"])
        ledger = Ledger(folder, cells, tuple(saved["command"]))
        strange = [cell.name for cell in cells if cell.name in ("", ".", "..") or Path(cell.name).name != cell.name]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{file} is damaged ({first_line(error)}): restore it from a copy") from error
    # A run's folder is made where its name says, and the sweep may come from a stranger.
    require(not strange, f"{file} is damaged: {strange[:1]} is no name of a run, but a path")
    return ledger


def begin_ledger(folder: Path, cells: Sequence[Cell], command: Sequence[str]) -> Ledger:
    """Begins a sweep in `folder`, or continues the sweep that `folder` already holds.

    A continued sweep may get further cells. Raises `UserError` when a cell's overrides differ from its earlier ones,
    and for the folder of a run, whose report the sweep's would replace. Two sweeps that begin in one folder at once
    wait for each other, so that neither loses the other's cells.
    """
    require(
        (folder / SWEEP_FILE).exists() or not is_run(folder), f"{folder} already holds a run: choose another output_dir"
    )
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder, fcntl.LOCK_EX, report_failure=True):
        return _begun(folder, cells, command)


def _begun(folder: Path, cells: Sequence[Cell], command: Sequence[str]) -> Ledger:
    """Does what `begin_ledger` does, with the folder's lock."""
    if (folder / SWEEP_FILE).exists():
        before = {cell.name: cell for cell in open_ledger(folder).cells}
        for cell in cells:
            old = before.get(cell.name, cell)
            if old.overrides != cell.overrides:
                changed = [f"{word} differs" for word in cell.overrides if word not in old.overrides]
                changed += [f"{word} is missing" for word in old.overrides if word not in cell.overrides]
                changed += ["their order differs"]
                raise UserError(
                    f"{folder} holds a sweep whose run {cell.name} has other settings ({changed[0]}): choose another "
                    "output_dir"
                )
        cells = [*before.values(), *(cell for cell in cells if cell.name not in before)]
    ledger = Ledger(folder, tuple(cells), tuple(command))
    for cell in cells:
        ledger.path(cell).mkdir(parents=True, exist_ok=True)
    rows = {"command": list(command), "cells": [asdict(cell) for cell in cells]}
    write_whole(folder / SWEEP_FILE, json.dumps(rows, indent=1))
    return ledger


@contextmanager
def _locked(folder: Path, operation: int, report_failure: bool = False) -> Iterator[int]:
    """Locks a folder, by `operation` of flock, and yields the lock's descriptor. Raises `BlockingIOError` when it is
    locked and the operation does not wait. On a file system without locks nothing is locked; with `report_failure` a
    line says so."""
    with open_own(folder / LOCK_FILE, "w") as file:
        try:
            fcntl.flock(file, operation)
        except BlockingIOError:
            raise
        except OSError as error:
            if report_failure:
                say(f"grpo: cannot lock {folder} ({error.strerror}), so do not start this sweep twice at once")
        yield file.fileno()
