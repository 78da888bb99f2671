"""This module writes and reads a run's metrics: files of one JSON object per line.

They can be read while the run goes on, and after it was killed at any time.
"""

import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise, takewhile
from pathlib import Path
from typing import IO, Any, NamedTuple

from grpo.config import UserError
from grpo.config.errors import require
from grpo.config.folder import EVALUATIONS_FILE, METRICS_FILE, SAMPLES_FILE
from grpo.config.plain_json import parse_json
from grpo.host.disk import open_own
from grpo.telemetry.row_kinds import wrong_in

logger = logging.getLogger(__name__)

LARGEST_STEP = 2.0**63
"""No log counts this far."""

Row = Mapping[str, Any]
"""A row is one line of a log: values by their names."""


class JsonLines:
    """This file holds one JSON object per line, ``{"step": 12, ...}``.

    The file is begun anew, or with a `resume_step` cut back to the lines up to that step.

    Each line reaches the operating system at once, so a killed process loses at most the line it was writing. If
    somebody removes the file, a warning says so, and the next lines go into a new one.
    """

    def __init__(self, path: Path, resume_step: float | None = None) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        if resume_step is None or not path.exists():
            self._file = open_own(path, "w", encoding="utf-8")
            return
        lines = list(takewhile(lambda line: line.row["step"] <= resume_step, _rows(path)))
        self._file = open_own(path, "a", encoding="utf-8")
        # The file is truncated, not rewritten, so that neither a full disk nor a kill loses the lines that are kept.
        self._file.truncate(sum(line.size for line in lines))
        if lines and not lines[-1].whole:
            self._file.write("\n")

    def write(self, row: Mapping[str, Any], step: int) -> None:
        if not os.fstat(self._file.fileno()).st_nlink:
            logger.warning(
                "%s was removed while the run wrote into it: lines from step %s on go into a new one", self._path, step
            )
            self._file.close()
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open_own(self._path, "w", encoding="utf-8")
        self._file.write(_line({"step": step, **row}))
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class JsonlTracker:
    """This tracker writes `metrics.jsonl`, `evaluations.jsonl` and `samples.jsonl` in `directory`.

    With `resume_step` None, new files replace old ones. A number keeps the lines up to that step and
    drops the later ones, which the resumed run will write again.
    """

    def __init__(self, directory: str | Path, resume_step: int | None = None) -> None:
        self._metrics = JsonLines(Path(directory) / METRICS_FILE, resume_step)
        self._evaluations = JsonLines(Path(directory) / EVALUATIONS_FILE, resume_step)
        self._samples = JsonLines(Path(directory) / SAMPLES_FILE, resume_step)

    def log(self, values: Mapping[str, Any], step: int) -> None:
        self._metrics.write(values, step)

    def evaluation(self, result: Mapping[str, Any], step: int) -> None:
        self._evaluations.write(result, step)

    def samples(self, rows: Iterable[Mapping[str, Any]], step: int) -> None:
        for row in rows:
            self._samples.write(row, step)

    def close(self, failed: bool = False) -> None:
        self._metrics.close()
        self._evaluations.close()
        self._samples.close()


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """Reads the rows of a run's file in order, without a last line that a killed process left unfinished.

    Raises `UserError` when there is no such file, when any other line is damaged, when a row has no step, and when
    another program has changed what a run writes (`row_kinds`).
    """
    # A pipe or a device in its place would be read for ever.
    require(Path(path).is_file() or not Path(path).exists(), f"{path} is no plain file: put the file itself there")
    rows = [line.row for line in _rows(Path(path))]
    for number, row in enumerate(rows, start=1):
        wrong = wrong_in(Path(path).name, row)
        require(not wrong, f"line {number} of {path}: {wrong}: delete that line")
    if Path(path).name in (METRICS_FILE, EVALUATIONS_FILE):
        for number, (before, row) in enumerate(pairwise(rows), start=2):
            require(
                before["step"] < row["step"],
                f"line {number} of {path} has step {row['step']:g} behind step {before['step']:g}, and a run writes "
                "each step once, in order: delete what another run or a copy has added",
            )
    return rows


def read_json_lines(path: Path) -> Iterator[Any]:
    """Yields the values of any file of JSON lines, which it reads as `read_metrics` does, but for their check."""
    return (line.row for line in _each_line(path))


class _Line(NamedTuple):
    """A line has a row and a size in bytes; `whole` tells whether it ends in a line feed."""

    row: Any
    size: int
    whole: bool


def _rows(path: Path) -> list[_Line]:
    lines = list(_each_line(path))
    for number, line in enumerate(lines, start=1):
        step = line.row.get("step") if isinstance(line.row, dict) else None
        has_step = isinstance(step, int | float) and abs(step) <= LARGEST_STEP
        require(has_step, f"line {number} of {path} is no JSON object with a step: delete that line")
    return lines


def _each_line(path: Path) -> Iterator[_Line]:
    """Yields the lines of a file. Only the last line may be no JSON, and is left out then."""
    unfinished, names = 0, {}
    try:
        with path.open("rb") as file:
            for number, line in enumerate(_texts(file), start=1):
                require(not unfinished, f"line {unfinished} of {path} is not JSON: delete that line")
                try:
                    row = parse_json(line)
                except ValueError:
                    unfinished = number
                else:
                    if isinstance(row, dict):
                        # A row has a hundred names, which every row has again. Rows share them, which halves memory.
                        row = {names.setdefault(name, name): value for name, value in row.items()}
                    yield _Line(row, len(line), line.endswith(b"\n"))
    except FileNotFoundError:
        raise UserError(f"there is no file {path}: give the output_dir of a run") from None


def _texts(file: IO[bytes]) -> Iterator[bytes]:
    """Yields lines up to one without an end: if a run is writing the file, the rest of that line may follow."""
    for text in file:
        yield from text.splitlines(keepends=True)
        if not text.endswith(b"\n"):
            return


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row) + "\n"
