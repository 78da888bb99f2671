"""What became of each run of a sweep: files in its folder, so that a killed sweep loses none of it.

FOLDER/sweep.json               the cells, and the command that runs one
FOLDER/cells/NAME/              a run's own folder
FOLDER/cells/NAME/state.json    running, done, or failed and why; waiting where there is none
FOLDER/cells/NAME/log.txt       what it printed
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from grpo.config import UserError
from grpo.sweep.cells import Cell

SWEEP_FILE, STATE_FILE, LOG_FILE, LOCK_FILE = "sweep.json", "state.json", "log.txt", ".lock"
WAITING, RUNNING, DONE, FAILED, INTERRUPTED = "waiting", "running", "done", "failed", "interrupted"


@dataclass(frozen=True, slots=True)
class State:
    """Of one cell: how it stands, why it failed, and the seconds that it has run."""

    state: str = WAITING
    why: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Ledger:
    """The cells of a sweep and how they stand."""

    folder: Path
    cells: tuple[Cell, ...]
    command: tuple[str, ...]

    def path(self, cell: Cell) -> Path:
        return self.folder / "cells" / cell.name

    def state(self, cell: Cell) -> State:
        """A run that says it is running but whose process is gone was interrupted."""
        file = self.path(cell) / STATE_FILE
        if not file.exists():
            return State()
        state = State(**json.loads(file.read_text()))
        return State(INTERRUPTED, seconds=state.seconds) if state.state == RUNNING and self._free(cell) else state

    def record(self, cell: Cell, state: State) -> None:
        file = self.path(cell) / STATE_FILE
        beside = file.with_suffix(".new")
        beside.write_text(json.dumps(asdict(state)))
        beside.replace(file)

    @contextmanager
    def lock(self, cell: Cell) -> Iterator[int]:
        """Holds the cell; yields a file descriptor with which a child process holds it too, until both have ended.
        Raises BlockingIOError where another process holds it."""
        with (self.path(cell) / LOCK_FILE).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield file.fileno()

    def pending(self) -> list[int]:
        """Indices of the cells that are neither done nor running elsewhere."""
        return [index for index, cell in enumerate(self.cells) if self.state(cell).state not in (DONE, RUNNING)]

    def _free(self, cell: Cell) -> bool:
        try:
            with self.lock(cell):
                return True
        except BlockingIOError:
            return False


def open_ledger(folder: Path) -> Ledger:
    """The ledger of an existing sweep. Raises `UserError` where there is none."""
    file = folder / SWEEP_FILE
    if not file.exists():
        raise UserError(f"{folder} is no folder of a sweep: it has no {SWEEP_FILE}")
    saved = json.loads(file.read_text())
    cells = (Cell(**{**row, "overrides": tuple(row["overrides"])}) for row in saved["cells"])
    return Ledger(folder, tuple(cells), tuple(saved["command"]))


def begin_ledger(folder: Path, cells: Sequence[Cell], command: Sequence[str]) -> Ledger:
    """A new sweep, or one to go on with: then further cells may join, and those there must mean the same.

    Raises `UserError` when a cell's overrides are not what they were.
    """
    if (folder / SWEEP_FILE).exists():
        before = {cell.name: cell for cell in open_ledger(folder).cells}
        for cell in cells:
            old = before.get(cell.name, cell)
            if old.overrides != cell.overrides:
                changed = [word for word in cell.overrides if word not in old.overrides] or [*old.overrides]
                raise UserError(
                    f"{folder} holds a sweep whose {cell.name} differs ({changed[0]}): choose another output_dir"
                )
        cells = [*before.values(), *(cell for cell in cells if cell.name not in before)]
    ledger = Ledger(folder, tuple(cells), tuple(command))
    for cell in cells:
        ledger.path(cell).mkdir(parents=True, exist_ok=True)
    rows = {"command": list(command), "cells": [asdict(cell) for cell in cells]}
    (folder / SWEEP_FILE).write_text(json.dumps(rows, indent=1))
    return ledger
