"""Names in a run's folder that several rooms know."""

from __future__ import annotations

import re
from pathlib import Path

CHECKPOINTS = "checkpoints"
_NAME = re.compile(r"step-(\d+)")


def checkpoints_in(directory: Path) -> list[Path]:
    """The checkpoints in a run's `checkpoints` folder, in the order of their steps. Whatever else lies there, such as
    a copy or a note, is none."""
    found = directory.iterdir() if directory.is_dir() else ()
    return sorted((path for path in found if _NAME.fullmatch(path.name) and path.is_dir()), key=step_of)


def step_of(checkpoint: Path) -> int:
    """The optimizer steps after which a checkpoint was saved."""
    return int(_NAME.fullmatch(checkpoint.name)[1])
