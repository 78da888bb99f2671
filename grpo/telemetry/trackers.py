"""Where metrics and samples go: JSON lines on disk always, Weights & Biases when asked for."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo.config import UserError
from grpo.interfaces import Tracker

METRICS_FILE = "metrics.jsonl"
SAMPLES_FILE = "samples.jsonl"
RUN_ID_FILE = "run-id"


class JsonLines:
    """A file of one JSON object a line, ``{"step": 12, ...}``, begun anew or cut back to `resume_step`.

    Each line reaches the operating system at once, so a killed process loses at most the line it was writing.
    """

    def __init__(self, path: Path, resume_step: int | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if resume_step is None or not path.exists():
            self._file = path.open("w", encoding="utf-8")
            return
        kept = [row for row in read_metrics(path) if row["step"] <= resume_step]
        # Written beside and moved over: a kill in between leaves the old file or the new one, never half of one.
        rewritten = path.with_suffix(".rewritten")
        with rewritten.open("w", encoding="utf-8") as file:
            file.writelines(_line(row) for row in kept)
            file.flush()
            os.fsync(file.fileno())
        os.replace(rewritten, path)
        self._file = path.open("a", encoding="utf-8")

    def write(self, row: Mapping[str, Any], step: int) -> None:
        self._file.write(_line({"step": step, **row}))
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class JsonlTracker:
    """`metrics.jsonl` and `samples.jsonl` in `directory`: one object a line, ``{"step": 12, ...}``.

    `resume_step` None begins new files in place of old ones; a number keeps the lines up to that step and
    drops the later ones, which the resumed run will write again.
    """

    def __init__(self, directory: str | Path, resume_step: int | None = None) -> None:
        self._metrics = JsonLines(Path(directory) / METRICS_FILE, resume_step)
        self._samples = JsonLines(Path(directory) / SAMPLES_FILE, resume_step)

    def log(self, values: Mapping[str, Any], step: int) -> None:
        self._metrics.write(values, step)

    def samples(self, rows: Iterable[Mapping[str, Any]], step: int) -> None:
        for row in rows:
            self._samples.write(row, step)

    def close(self) -> None:
        self._metrics.close()
        self._samples.close()


class WandbTracker:
    """Weights & Biases. `mode` is ``"offline"`` (written below `directory`, `wandb sync` sends it later) or
    ``"online"``. `config` is shown beside the run; `resume` continues the run that `directory` belongs to.
    `UserError` when online is impossible."""

    def __init__(
        self, config: Mapping[str, Any], mode: str, project: str, directory: str | Path, resume: bool = False
    ) -> None:
        import wandb

        identity = Path(directory, RUN_ID_FILE)
        identity.parent.mkdir(parents=True, exist_ok=True)
        if not (resume and identity.exists()):
            identity.write_text(secrets.token_hex(4))
        # wandb's capture of the terminal fights with the live display for it.
        settings = wandb.Settings(console="off", quiet=True)
        try:
            # Left to itself, wandb.init asks for a key at the terminal and an unattended run waits for ever.
            if mode == "online" and not wandb.login(prompt=False):
                raise UserError("wandb has no API key: run `wandb login`, or set tracking.wandb=offline")
            self._run = wandb.init(
                id=identity.read_text(),
                resume="allow" if mode == "online" else None,
                config=dict(config),
                mode=mode,
                project=project,
                dir=str(directory),
                settings=settings,
            )
        except wandb.Error as error:
            reason = " ".join(str(error).split())
            raise UserError(f"wandb did not start ({reason}): mend it, or set tracking.wandb=offline") from error
        self._table = wandb.Table

    def log(self, values: Mapping[str, Any], step: int) -> None:
        # Lists and texts are for programs that read the file.
        self._run.log({name: value for name, value in values.items() if isinstance(value, int | float)}, step=step)

    def samples(self, rows: Iterable[Mapping[str, Any]], step: int) -> None:
        rows = list(rows)
        if rows:
            columns = list(rows[0])
            data = [[row[column] for column in columns] for row in rows]
            self._run.log({"samples": self._table(columns=columns, data=data)}, step=step)

    def close(self) -> None:
        self._run.finish()


class Trackers:
    """Several trackers as one."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = tuple(trackers)

    def log(self, values: Mapping[str, Any], step: int) -> None:
        for tracker in self._trackers:
            tracker.log(values, step)

    def samples(self, rows: Iterable[Mapping[str, Any]], step: int) -> None:
        rows = list(rows)
        for tracker in self._trackers:
            tracker.samples(rows, step)

    def close(self) -> None:
        for tracker in self._trackers:
            tracker.close()


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The rows of a JSON lines file, in order, without a last line that a killed process left unfinished.

    `UserError` when there is no such file, or when another line is damaged.
    """
    try:
        lines = Path(path).read_bytes().splitlines()
    except FileNotFoundError:
        raise UserError(f"there is no {path}: give the output_dir of a run") from None
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(json.loads(line))
        except ValueError:
            if number < len(lines):
                raise UserError(f"line {number} of {path} is not JSON: delete that line") from None
    return rows


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row) + "\n"
