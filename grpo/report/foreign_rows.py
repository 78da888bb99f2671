"""This module reads the rows of other frameworks' logs, from any of these kinds of file:

trainer_state.json, or a folder with one    TRL and Unsloth, by the Trainer of transformers
lines of {"step": …, "data": {…}}           verl's file logger
event files, or a folder with them          TensorBoard
steps.parquet, or a folder with it          rlprobe; any other Parquet file with a row for each step
other JSON Lines, JSON or CSV               a row for each step; also what Weights & Biases exports: a run's history
                                            (rows, or columns), and a chart as CSV, whose columns are "run - metric"
"""

from __future__ import annotations

import csv
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo.config import UserError
from grpo.config.errors import first_line, require
from grpo.config.folder import METRICS_FILE
from grpo.config.plain_json import parse_json
from grpo.report.foreign_names import Row, is_number, numbers_of, step_of
from grpo.telemetry import read_json_lines
from grpo.telemetry.foreign_files import EVENT_FILES, read_event_files, read_parquet

CONFIGURATIONS = (".yaml", ".yml")
TRL_STATE = "trainer_state.json"
PROBE_STEPS = "steps.parquet"
# In a chart exported from Weights & Biases, this stands between a run's name and a metric's name.
OF_RUN = " - "
BOUNDS = ("__MIN", "__MAX")
# A log that plans more steps has a mistake there.
MOST_PLANNED = 1e12
# What may stand between the values of a CSV file.
SEPARATORS = ",;\t|"
# A log is looked for in this many folders below the given one. No run has so many.
MOST_FOLDERS = 2_000


@dataclass(frozen=True, slots=True)
class ForeignRows:
    """This type holds the rows of one run, each with a "step".

    `max_steps` is the number of steps that the run was to take, 0 if the log does not say. `notes` say what was left
    out, in sentences.
    """

    rows: list[Row]
    max_steps: int = 0
    notes: tuple[str, ...] = ()


def read_rows(path: Path, column: str | None = None) -> ForeignRows:
    """Reads the rows of a file or folder. `column`, as "run - metric", chooses one of the runs in an exported chart.

    Raises `UserError` when there is nothing to read.
    """
    if not path.exists():
        raise UserError(f"there is no file or folder {path}")
    if path.is_char_device() or path.is_block_device():
        raise UserError(f"{path} is a device, which has no end: give a log, or send it to /dev/stdin by a pipe")
    file = _file_in(path) if path.is_dir() else path
    if file.is_dir() or "tfevents" in file.name:
        return _stepped(read_event_files(file))
    if file.suffix == ".parquet":
        return _stepped(read_parquet(file))
    if file.suffix in (".csv", ".tsv"):
        return _stepped(_csv_rows(file, column))
    if file.suffix == ".json":
        return _json_rows(file)
    require(
        file.suffix not in CONFIGURATIONS,
        f"{file} is a configuration by its name, and a log is needed: give the output_dir of a run, or another "
        "framework's log",
    )
    if file.is_file():  # a pipe can be read once only
        _require_json_lines(file)
    lines = [row for row in read_json_lines(file) if isinstance(row, dict)]
    return _stepped({"step": row.get("step"), **row["data"]} if isinstance(row.get("data"), dict) else row
                    for row in lines)  # fmt: skip


def _require_json_lines(file: Path) -> None:
    """Raises UserError for a file whose first line is no JSON, and for one that is a single JSON document."""
    with file.open("rb") as opened:
        first, second = opened.readline(), opened.readline()
    kinds = "a log is .jsonl with one JSON object per line, .json, .csv, .tsv, .parquet or TensorBoard's"
    try:
        row = parse_json(first) if first.strip() else None
    except ValueError:
        # The only line of a log may be one that a killed process has left unfinished.
        require(not second, f"line 1 of {file} is not JSON, and {kinds}: give one of these, named accordingly")
        return
    is_document = isinstance(row, dict) and "log_history" in row
    require(not is_document, f"{file} is one JSON document: give it a name that ends in .json")


def _file_in(folder: Path) -> Path:
    """Returns the log in a folder: a file, or the folder itself if it holds TensorBoard's event files."""
    files = list(_files_below(folder))
    states = [file for file in files if file.name == TRL_STATE]
    if states:
        return max(states, key=lambda file: file.stat().st_mtime)
    if (folder / PROBE_STEPS).exists():
        return folder / PROBE_STEPS
    if any(file.match(EVENT_FILES) for file in files):
        return folder
    raise UserError(f"{folder} has neither {METRICS_FILE}, {TRL_STATE}, {PROBE_STEPS} nor TensorBoard's event files")


def _files_below(folder: Path) -> Iterator[Path]:
    """Yields all files in a folder and in those below it. Raises `UserError` when they are more than one run's."""
    for count, (place, _, names) in enumerate(os.walk(folder)):
        require(
            count < MOST_FOLDERS,
            f"{folder} has more than {MOST_FOLDERS:,} folders below it: give the folder of one run",
        )
        yield from (Path(place, name) for name in names)


def _stepped(rows: Iterable[Any], max_steps: int = 0) -> ForeignRows:
    """Puts each row's step under "step" and keeps the last run. Leaves out rows without a step, and values that are no
    rows."""
    of_names = (row for row in rows if isinstance(row, Mapping))
    stepped_rows = [{**row, "step": step} for row in of_names if (step := step_of(row)) is not None]
    last_rows, notes = last_run(stepped_rows)
    return ForeignRows(last_rows, max_steps, notes)


def last_run(rows: Iterable[Row]) -> tuple[list[Row], tuple[str, ...]]:
    """Returns the rows of the last run in a log that may hold several, and sentences on what was left out.

    A row marks a restart if most of its metrics were already logged at its step, and since then at a later step. If no
    kept row precedes that step, another run begins. Otherwise the run was resumed, and its earlier rows from that step
    on are dropped. Rows that are merely out of order repeat no step.
    """
    kept_rows: list[Row] = []
    runs, resumed_steps = 1, []
    seen_steps: dict[str, set[float]] = defaultdict(set)
    newest_step: dict[str, float] = {}
    for row in rows:
        step, metrics = row["step"], numbers_of(row)
        repeated_metrics = [name for name in metrics if step in seen_steps[name] and step < newest_step[name]]
        if 2 * len(repeated_metrics) > len(metrics):
            earlier_rows = [before for before in kept_rows if before["step"] < step]
            runs, resumed_steps = (runs, [*resumed_steps, step]) if earlier_rows else (runs + 1, [])
            kept_rows = earlier_rows
            seen_steps = defaultdict(
                set, {name: {at for at in steps if at < step} for name, steps in seen_steps.items()}
            )
        for name in metrics:
            seen_steps[name].add(step)
            newest_step[name] = step
        kept_rows.append(row)
    notes = []
    if runs > 1:
        notes.append(
            f"the log holds {runs} runs one after another, since its steps begin again: the last one is read; to read "
            "another one, put its rows into a file of their own"
        )
    if resumed_steps:
        steps = ", ".join(f"{step:g}" for step in resumed_steps)
        notes.append(f"the run was resumed at step {steps}: what it had logged from there on before is left out")
    return kept_rows, tuple(notes)


def _json_rows(path: Path) -> ForeignRows:
    try:
        content = parse_json(path.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise UserError(
            f"{path} is not JSON ({first_line(error)}): give JSON Lines a name that ends in .jsonl"
        ) from None
    if isinstance(content, list):
        return _stepped(content)
    if isinstance(content, dict) and isinstance(content.get("log_history"), list):
        planned_steps = content.get("max_steps")
        is_planned = is_number(planned_steps) and abs(planned_steps) <= MOST_PLANNED
        return _stepped(content["log_history"], int(planned_steps) if is_planned else 0)
    if isinstance(content, dict) and content and all(isinstance(values, dict | list) for values in content.values()):
        return _stepped(_pivoted(content))
    raise UserError(
        f"{path} holds no log: it is neither a {TRL_STATE} with a log_history, nor rows, nor columns of values"
    )


def _pivoted(content: Mapping[str, Any]) -> Iterable[Row]:
    """Turns columns into rows. A column is a list, or a mapping from a row's index to a value."""
    rows: dict[Any, dict[str, Any]] = {}
    for name, values in content.items():
        for index, value in values.items() if isinstance(values, dict) else enumerate(values):
            rows.setdefault(index, {})[name] = value
    return rows.values()


def _csv_rows(path: Path, column: str | None) -> Iterable[Row]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            header = file.readline()
            file.seek(0)
            separator = max(SEPARATORS, key=header.count)
            reader = csv.DictReader(file, delimiter=separator, skipinitialspace=True, strict=True)
            rows = list(reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} is no CSV file in UTF-8 ({error}): save it as one") from None
    names = [name for name in reader.fieldnames or () if name]
    twice = next((name for name in names if names.count(name) > 1), "")
    require(not twice, f"{path} has two columns {twice}: give each another name")
    of_runs = {name: tuple(name.rsplit(OF_RUN, 1)) for name in names if OF_RUN in name}
    runs = list(dict.fromkeys(run for run, _ in of_runs.values()))
    if len(runs) > 1:
        run_chosen = column.rsplit(OF_RUN, 1)[0] if column else ""
        if run_chosen not in runs:
            raise UserError(
                f"{path} holds {len(runs)} runs ({', '.join(runs)}): choose one by column='RUN{OF_RUN}METRIC', where "
                "METRIC holds its pass rates"
            )
        runs = [run_chosen]
    for row in rows:
        numbers: dict[str, Any] = {}
        for name in names:
            run, metric = of_runs.get(name, ("", name))
            if (not run or run in runs) and not metric.endswith(BOUNDS):
                numbers[metric] = _number(row[name])
        yield {name: value for name, value in numbers.items() if value is not None}


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None
