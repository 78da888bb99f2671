"""This module finds runs in a folder of runs, such as runs/tiny, for messages that name them."""

from __future__ import annotations

import os
from pathlib import Path

from grpo.config.errors import UserError
from grpo.config.folder import CHECKPOINTS, CONFIG_FILE, METRICS_FILE, checkpoints_in

SHOWN = 3
"""A message names this many of the newest runs."""


def is_run(folder: Path) -> bool:
    """Says whether a run of grpo has written its settings with a round, or a checkpoint, into a folder."""
    logged = (folder / METRICS_FILE).exists() and (folder / CONFIG_FILE).exists()
    return logged or bool(checkpoints_in(folder / CHECKPOINTS))


def runs_within(folder: Path) -> list[Path]:
    """Returns the runs whose folders lie in `folder`, in the order in which they last wrote. Passes over folders that
    this user may not read."""
    readable = [path for path in _entries(folder) if os.access(path, os.R_OK | os.X_OK) and path.is_dir()]
    return sorted(filter(is_run, readable), key=_written)


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def refuse_several(folder: Path, instead: str = "") -> None:
    """Raises `UserError` for a folder that is no run and holds runs.

    The message names the newest ones, and ends with what may be done `instead` of naming one.
    """
    runs = [] if is_run(folder) else runs_within(folder)
    if not runs:
        return
    newest = [str(run) for run in reversed(runs[-SHOWN:])]
    older = len(runs) - SHOWN
    others = f", and {older} older {'ones' if older > 1 else 'one'}" if older > 0 else ""
    raise UserError(
        f"{folder} is no run, but holds {len(runs)}: give one of them, the newest first {', '.join(newest)}{others}"
        + instead
    )


def resumable(output: Path) -> Path | None:
    """Returns the newest run with a checkpoint in `output`, beside it or around it, or None where there is none."""
    near = [*runs_within(output), *runs_within(output.parent), output.parent]
    return max((run for run in near if checkpoints_in(run / CHECKPOINTS)), key=_saved, default=None)


def _written(run: Path) -> float:
    """Returns when a run last wrote its log, or a checkpoint where it has none, in seconds since 1970."""
    log = run / METRICS_FILE
    return (log if log.exists() else run / CHECKPOINTS).stat().st_mtime


def _saved(run: Path) -> float:
    """Returns when a run saved its last checkpoint, in seconds since 1970."""
    return checkpoints_in(run / CHECKPOINTS)[-1].stat().st_mtime
