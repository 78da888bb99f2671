"""This module reads the rows of other frameworks' logs, from any of these kinds of file:

trainer_state.json, or a folder with one    TRL and Unsloth, by the Trainer of transformers
lines of {"step": …, "data": {…}}           verl's file logger
event files, or a folder with them          TensorBoard
steps.parquet, or a folder with it          rlprobe; any other Parquet file with a row for each step
other JSON Lines, JSON or CSV               a row for each step; also what Weights & Biases exports: a run's history
                                            (rows, or columns), and a chart as CSV, whose columns are "run - metric"
what TRL, Unsloth and verl print            the console's output, in a file of any other name (`console_logs`)
"""

import csv
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo.config import UserError
from grpo.config.errors import first_line, require
from grpo.config.folder import EVALUATIONS_FILE, METRICS_FILE, PROMPTS_FILE, SAMPLES_FILE, is_pointer, is_run
from grpo.config.plain_json import parse_json
from grpo.insight.logs.console_logs import console_rows
from grpo.insight.logs.foreign_columns import Columns, LastRun
from grpo.insight.logs.foreign_files import EVENT_FILES, read_event_files, read_parquet
from grpo.insight.logs.foreign_names import STEP_NAMES, STEPS, Row, is_number, numbers_of
from grpo.telemetry.json_lines import read_json_lines

_AS_CSV = "is no log that is read here: export its table as CSV"
_PACKED = "is packed: unpack it first"
_CONFIGURATION = (
    "is a configuration by its name, and a log is needed: give the output_dir of a run, or another framework's log"
)
REFUSED = {
    **dict.fromkeys((".yaml", ".yml"), _CONFIGURATION),
    **dict.fromkeys((".gz", ".xz", ".bz2", ".zst", ".zip", ".tar", ".tgz"), _PACKED),
    **dict.fromkeys((".xlsx", ".xls", ".ods", ".html", ".htm", ".ipynb", ".pkl", ".feather", ".db"), _AS_CSV),
    ".wandb": "is a log of Weights & Biases: send its folder by `wandb sync`, then export the run's history as CSV",
}
"""This table says why files with these endings of their names are not read."""
BEGINNINGS = {
    b"\x1f\x8b": _PACKED,
    b"PK\x03\x04": _PACKED,
    **dict.fromkeys((b"\xff\xfe", b"\xfe\xff"), "is text in UTF-16: save it as UTF-8"),
    **dict.fromkeys((b"<!DO", b"<!do", b"<htm", b"<HTM"), "is a web page: download the raw file instead"),
}
"""This table says why files that begin with these bytes are not read."""
_EXPORTED = {
    ".wandb": f"; of its .wandb file, {REFUSED['.wandb'].removeprefix('is a log of Weights & Biases: ')}",
    "meta.yaml": "; of MLflow's folder, export the run's metrics as CSV with a column for each",
}
# A message names at most this many of several runs.
NAMED = 5
# These records of a run of grpo are read with its folder alone.
RECORDS = (EVALUATIONS_FILE, PROMPTS_FILE, SAMPLES_FILE)
TRL_STATE, TRL_HISTORY = "trainer_state.json", "log_history"
PROBE_STEPS = "steps.parquet"
# In a chart exported from Weights & Biases, this stands between a run's name and a metric's name.
OF_RUN = " - "
BOUNDS = ("__MIN", "__MAX")
# A table of MLflow or pandas with a line for each value holds the metric's name in one of these columns.
METRIC_NAMES = ("key", "metric", "tag", "variable")
# These columns of such a table hold times, and no values.
OF_TIME = ("timestamp", "wall_time", "time", "_timestamp")
# A larger number of planned steps is a mistake in the log.
MOST_PLANNED = 1e12
# One of these stands between the values of a CSV file.
SEPARATORS = ",;\t|"
_QUOTED = re.compile('"[^"]*"')
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
_PERCENT = re.compile(r"\s*-?\d+(\.\d+)?\s*%\s*")
_COMMAS = re.compile(r"\s*-?\d+(,\d+)+(\.\d*)?\s*")
_THOUSANDS = re.compile(r"\s*-?[1-9]\d{0,2}(,\d{3})+(\.\d*)?\s*")
_WRITTEN = re.compile(r"\W{0,2}\d[\d\s.,·'/±%eE+-]*\W?")
_DATE = re.compile(r"\s*\d{1,4}[-/.]\d\d?[-/.]\d")
# Columns of texts are looked for in this many first rows.
LOOKED_AT = 1_000
# A log is looked for in this many folders below the given one. No run has so many.
MOST_FOLDERS = 2_000


@dataclass(frozen=True, slots=True)
class ForeignRows:
    """This type holds the rows of one run as columns.

    `max_steps` is the number of steps that the run was to take, 0 if the log does not say. `notes` say what was left
    out, in sentences. `texts` name the columns whose numbers are written as texts.
    """

    columns: Columns
    max_steps: int = 0
    notes: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()


def read_rows(path: Path, column: str | None = None) -> ForeignRows:
    """Reads the rows of a file or folder. `column`, as "run - metric", chooses one of the runs in an exported chart.

    Raises `UserError` when there is nothing to read.
    """
    if not path.exists():
        raise UserError(f"there is no file or folder {path}")
    of_run = path.name in RECORDS and is_run(path.parent)
    require(not of_run, f"{path} is one record of a run of grpo: give the run's folder, {path.parent}")
    if path.is_char_device() or path.is_block_device():
        raise UserError(f"{path} is a device, which has no end: give a log, or send it to /dev/stdin by a pipe")
    file = _file_in(path) if path.is_dir() else path
    suffix = file.suffix.lower()
    if file.is_dir() or "tfevents" in file.name:
        return _gathered(read_event_files(file))
    require(suffix not in REFUSED, f"{file} {REFUSED.get(suffix)}")
    _refuse_bytes(file)
    if suffix == ".parquet":
        return _gathered(read_parquet(file))
    if suffix in (".csv", ".tsv"):
        return _gathered(_csv_rows(file, column))
    if suffix == ".json":
        return _json_rows(file)
    if not file.is_file():  # a pipe can be read once only
        return _piped(file)
    if _is_json_lines(file):
        return _gathered(_flat(row) for row in read_json_lines(file))
    rows, notes = console_rows(file)
    require(
        len(rows) > 1,
        f"line 1 of {file} is not JSON, and a log is .jsonl with one JSON object per line, .json, .csv, .tsv, "
        ".parquet, TensorBoard's, or what TRL, verl, OpenRLHF or slime print, or lines as Step 3 | loss: 0.1 | reward: "
        "0.5: the file has no such lines",
    )
    return _gathered(rows, notes=notes)


def _refuse_bytes(file: Path) -> None:
    """Raises UserError for a file whose first bytes say that it is packed or no UTF-8, whatever its name says."""
    if file.is_file():
        with file.open("rb") as opened:
            beginning = opened.read(4)
        kind = next((words for start, words in BEGINNINGS.items() if beginning.startswith(start)), "")
        require(not kind, f"{file} {kind}")
        require(
            not is_pointer(file), f"{file} is a pointer of Git LFS and not the file itself: fetch it by `git lfs pull`"
        )
        require(bool(beginning), f"{file} is empty: give a log that a run has written")


def _piped(pipe: Path) -> ForeignRows:
    """Reads what comes through a pipe: one JSON document, or JSON Lines."""
    rows = list(read_json_lines(pipe))
    is_document = len(rows) == 1 and (
        isinstance(rows[0], list) or (isinstance(rows[0], dict) and TRL_HISTORY in rows[0])
    )
    return _rows_of(rows[0], pipe) if is_document else _gathered(map(_flat, rows))


def _flat(row: Any) -> Any:
    """Returns a row without its inner mapping "data", in which verl's file logger puts the metrics."""
    is_nested = isinstance(row, dict) and isinstance(row.get("data"), dict)
    return {"step": row.get("step"), **row["data"]} if is_nested else row


def _is_json_lines(file: Path) -> bool:
    """Tells whether a file's first line that is not blank is JSON, or is the only one. Raises UserError for one JSON
    document."""
    with file.open("rb") as opened:
        lines = filter(bytes.strip, opened)
        first, second = next(lines, b""), next(lines, b"")
    try:
        row = parse_json(first)
    except ValueError:
        # The only line of a log may be one that a killed process has left unfinished.
        return not second
    is_document = (isinstance(row, list) and any(isinstance(value, dict) for value in row)) or (
        isinstance(row, dict) and TRL_HISTORY in row
    )
    require(not is_document, f"{file} is one JSON document: give it a name that ends in .json")
    return True


def _file_in(folder: Path) -> Path:
    """Returns the log in a folder: a file, or the folder itself if it holds TensorBoard's event files."""
    files = list(_files_below(folder))
    states = [file for file in files if file.name == TRL_STATE]
    runs = sorted({state.parent.parent if _CHECKPOINT.fullmatch(state.parent.name) else state.parent
                   for state in states})  # fmt: skip
    require(len(runs) < 2, f"{folder} holds {len(runs)} runs: give one of {', '.join(map(str, runs[:NAMED]))}")
    if states:
        return max(states, key=lambda file: (_last_step(file.parent), file.stat().st_mtime))
    if (folder / PROBE_STEPS).exists():
        return folder / PROBE_STEPS
    if any(file.match(EVENT_FILES) for file in files):
        return folder
    inner = sorted(str(file.parent) for file in files if file.name == METRICS_FILE)
    require(not inner, f"{folder} holds runs in folders below it: give one of {', '.join(inner[:NAMED])}")
    known = (_EXPORTED.get(name) for file in files for name in (file.name, file.suffix))
    exported = next(filter(None, known), "")
    raise UserError(
        f"{folder} has neither {METRICS_FILE}, {TRL_STATE}, {PROBE_STEPS} nor TensorBoard's event files{exported}"
    )


def _last_step(checkpoint: Path) -> float:
    """Returns the step in a checkpoint's name. The folder of the run itself, which is written last, has none."""
    return int(found[1]) if (found := _CHECKPOINT.fullmatch(checkpoint.name)) else math.inf


def _files_below(folder: Path) -> Iterator[Path]:
    """Yields all files in a folder and in those below it. Raises `UserError` when they are more than one run's."""
    for count, (place, _, names) in enumerate(os.walk(folder)):
        require(
            count < MOST_FOLDERS,
            f"{folder} has more than {MOST_FOLDERS:,} folders below it: give the folder of one run",
        )
        yield from (Path(place, name) for name in names)


def _gathered(rows: Iterable[Any], max_steps: int = 0, notes: tuple[str, ...] = ()) -> ForeignRows:
    """Gathers the last run of these rows. Leaves out rows without a step, and values that are no rows."""
    run, written, spelled, counted = LastRun(), dict[str, Any](), dict[str, str](), Counter[str]()
    for count, row in enumerate(rows):
        if isinstance(row, Mapping):
            row = _unfolded(row) if "value" in row else row
            is_text = any(isinstance(row.get(name), str) for name in STEPS)
            row = {name: _as_number(value) for name, value in row.items()} if is_text else row
            run.add(row)
            for name in (name for name, value in row.items() if type(value) is str):
                spelled.setdefault(name, row[name])
                counted[name] += 1
            if count < LOOKED_AT:
                known = written.keys() | STEP_NAMES
                written |= {name: value for name, value in row.items() if name not in known and _is_written(value)}
    numbers = run.columns.named()
    texts = [
        f"{name} holds {value!r}, which is no plain number, so it is left out: write its numbers as numbers"
        for name, value in written.items()
        if name not in numbers
    ]
    texts += [
        f"{counted[name]} values of {name} are text, such as {spelled[name]!r:.40}, and left out"
        for name in numbers
        if name in spelled
    ]
    return ForeignRows(run.columns, max_steps, (*notes, *run.notes), tuple(texts))


def _unfolded(row: Row) -> Row:
    """Returns the row of a table that has a line for each value, and so the metric's name in a column, with that name.

    >>> _unfolded({"key": "reward", "value": 0.5, "step": 3, "timestamp": 1764278400})
    {'reward': 0.5, 'step': 3}
    """
    name = next((row[name] for name in METRIC_NAMES if isinstance(row.get(name), str)), "")
    if not name or not numbers_of(row).keys() <= {"value", *OF_TIME}:
        return row
    return {name: row["value"], **{step: row[step] for step in STEPS if step in row}}


def _is_written(value: Any) -> bool:
    """Tells whether a value holds a number that is not written as one, such as '35,2 %' or [0.35]."""
    if isinstance(value, list):
        return len(value) == 1 and is_number(value[0])
    return isinstance(value, str) and bool(_WRITTEN.fullmatch(value)) and not _DATE.match(value)


def _json_rows(path: Path) -> ForeignRows:
    try:
        content = parse_json(path.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise UserError(
            f"{path} is not JSON ({first_line(error)}): give JSON Lines a name that ends in .jsonl; a document that "
            "was cut off cannot be read"
        ) from None
    return _rows_of(content, path)


def _rows_of(content: Any, path: Path) -> ForeignRows:
    """Returns the rows of one JSON document."""
    if isinstance(content, list):
        return _gathered(content)
    if isinstance(content, dict) and isinstance(content.get(TRL_HISTORY), list):
        planned_steps = content.get("max_steps")
        is_planned = is_number(planned_steps) and abs(planned_steps) <= MOST_PLANNED
        return _gathered(content[TRL_HISTORY], int(planned_steps) if is_planned else 0)
    if isinstance(content, dict) and content and all(isinstance(values, dict | list) for values in content.values()):
        return _gathered(_pivoted(content))
    raise UserError(
        f"{path} holds no log: it is neither a {TRL_STATE} with a log_history, nor rows, nor columns of values"
    )


def _pivoted(content: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """Turns columns into rows. A column is a list, or a mapping from a row's index to a value."""
    rows: dict[Any, dict[str, Any]] = {}
    for name, values in content.items():
        for index, value in values.items() if isinstance(values, dict) else enumerate(values):
            rows.setdefault(index, {})[name] = value
    return rows.values()


def _csv_rows(path: Path, column: str | None) -> Iterator[dict[str, float | str]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            header = _QUOTED.sub("", file.readline())
            file.seek(0)
            separator = max(SEPARATORS, key=header.count)
            reader = csv.DictReader(file, delimiter=separator, skipinitialspace=True, strict=True)
            names = _metrics_of(path, [name for name in reader.fieldnames or () if name], column)
            for row in reader:
                # DictReader puts cells beyond the header there.
                require(
                    None not in row,
                    f"line {reader.line_num} of {path} has more cells than its header: write numbers with a point, and "
                    "put texts that hold a separator into quotes",
                )
                numbers = {metric: _number(row[name]) for name, metric in names.items()}
                comma = next((row[name] for name in names if _COMMAS.fullmatch(row[name] or "")), "")
                way = "without commas" if _THOUSANDS.fullmatch(comma) else "with a point"
                require(not comma, f"line {reader.line_num} of {path} has the number {comma!r}: write it {way}")
                share = next((row[name] for name in names if _PERCENT.fullmatch(row[name] or "")), "")
                require(not share, f"line {reader.line_num} of {path} has {share!r}: write the number without its sign")
                texts = {metric: row[name] for name, metric in names.items() if numbers[metric] is None and row[name]}
                yield {metric: value for metric, value in numbers.items() if value is not None} | texts
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} is no CSV file in UTF-8 ({error}): save it as one") from None


def _metrics_of(path: Path, names: list[str], column: str | None) -> dict[str, str]:
    """Returns the columns of a CSV file that are read, with their metrics: those of one run, without bounds."""
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
    metrics = {name: of_runs.get(name, ("", name)) for name in names}
    return {
        name: metric
        for name, (run, metric) in metrics.items()
        if (not run or run in runs) and not metric.endswith(BOUNDS)
    }


def _as_number(value: Any) -> Any:
    """Returns the number that a text holds, or the value itself."""
    return value if not isinstance(value, str) or (number := _number(value)) is None else number


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None
