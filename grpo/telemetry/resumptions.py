"""This module writes into a run's folder where the run was resumed and how it had ended before, and reads it again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from grpo.config.errors import UserError
from grpo.config.folder import RESUMPTIONS_FILE
from grpo.telemetry.json_lines import JsonLines, read_metrics
from grpo.types.plain import rebuilt

KILLED = "killed"


class Resumption(NamedTuple):
    """A resumption says after which optimizer step a run went on, and what had happened before.

    step          the step of the checkpoint from which it went on
    checkpoint    the name of that checkpoint
    reached       the last step that the run had logged; the steps after `step` are taken again
    ended, why    how and why it had ended: the words of an `Ending`, or `KILLED` if it left none
    changed       (dotted key, old value, new value) of each setting that differs from the checkpoint's
    """

    step: int
    checkpoint: str
    reached: int
    ended: str
    why: str = ""
    changed: Sequence[tuple[str, Any, Any]] = ()


def add_resumption(folder: Path, resumption: Resumption) -> None:
    """Adds a line to resumptions.jsonl, and removes a last one that a killed process left unfinished."""
    lines = JsonLines(folder / RESUMPTIONS_FILE, resume_step=math.inf)
    lines.write(resumption._asdict(), resumption.step)
    lines.close()


def forget_resumptions(folder: Path) -> None:
    """Removes the resumptions.jsonl that an earlier run left in the folder."""
    (folder / RESUMPTIONS_FILE).unlink(missing_ok=True)


def read_resumptions(folder: Path) -> list[Resumption]:
    """Returns the resumptions of a run in their order. A run of an earlier version, which left no file, has none."""
    path = folder / RESUMPTIONS_FILE
    try:
        return [rebuilt(Resumption, row, "a line") for row in read_metrics(path)] if path.exists() else []
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}): delete that line") from error
