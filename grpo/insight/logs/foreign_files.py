"""This module reads rows of metrics from binary files: TensorBoard's event files, and Parquet."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo.config import UserError
from grpo.config.errors import first_line
from grpo.insight.logs.foreign_names import TRAIN_STEP

EVENT_FILES = "*tfevents*"
# So many rows of a Parquet file are held at once.
BATCH_ROWS = 4096


def read_event_files(path: Path) -> list[dict[str, Any]]:
    """Reads the scalars of one event file, or of all in a folder. Returns a row for each step of each file.

    The files of a folder follow each other by the time in their names. A run that was resumed, or started anew, has
    written several, whose steps may overlap. Raises `UserError` when TensorBoard is not installed, or when several
    folders hold runs.
    """
    # Hyperparameters are written into a folder of their own, as one point each.
    places = sorted({file.parent for file in path.rglob(EVENT_FILES)}) if path.is_dir() else [path]
    runs: dict[Path, list[dict[str, Any]]] = {}
    for place in places:
        files = sorted(place.glob(EVENT_FILES)) if place.is_dir() else [place]
        rows = [row for file in files for row in _event_rows(file)]
        if len({row["step"] for row in rows}) > 1:
            runs[place] = rows
    if not runs:
        raise UserError(f"{path} holds no scalars of two steps or more: its event files are empty or damaged")
    if len(runs) > 1:
        raise UserError(f"{path} holds the event files of {len(runs)} runs: give one of {', '.join(map(str, runs))}")
    (rows,) = runs.values()
    return rows


def _event_rows(file: Path) -> list[dict[str, Any]]:
    """Returns a row for each step of an event file, ascending."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError as error:
        raise UserError(
            f"tensorboard is not installed ({error}); in a clone of grpo: pip install '.[trackers]'"
        ) from error
    accumulator = EventAccumulator(str(file), size_guidance={"scalars": 0})
    accumulator.Reload()
    rows: dict[int, dict[str, Any]] = {}
    tags = accumulator.Tags()["scalars"]
    # slime counts rollouts, and apart from them the optimizer steps, of which a rollout may have several.
    last_steps = {tag: accumulator.Scalars(tag)[-1].step for tag in {"rollout/step", TRAIN_STEP} & {*tags}}
    per_rollout = round((last_steps[TRAIN_STEP] + 1) / (min(last_steps.values()) + 1)) if len(last_steps) > 1 else 1
    for tag in tags:
        steps_per_row = per_rollout if tag.startswith("train/") else 1
        for event in accumulator.Scalars(tag):
            step = event.step // steps_per_row
            rows.setdefault(step, {"step": step})[tag] = event.value
    return [rows[step] for step in sorted(rows)]


def read_parquet(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the rows of a Parquet file. Raises `UserError` when the file is damaged or of another format."""
    from pyarrow import ArrowException, parquet

    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(BATCH_ROWS):
                yield from batch.to_pylist()
    except (ArrowException, OSError) as error:
        raise UserError(f"{path} cannot be read as a Parquet file: {first_line(error)}") from None
