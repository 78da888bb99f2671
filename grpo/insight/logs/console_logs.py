"""This module reads the metrics that trainers print on the console, out of what was kept of that output.

TRL, Unsloth       {'loss': 0.01, 'reward': 0.5, …}, which names no step: rows are numbered
OpenRLHF, slime    Global step 3: {'policy_loss': 0.01, …}, rollout 3: {'rollout/raw_reward': 0.5, …}
verl               step:3 - actor/entropy:0.31 - critic/score/mean:0.25 …

Each may stand behind whatever Ray or a logger puts before it.
"""

import re
from collections.abc import Iterator
from pathlib import Path

_NUMBER = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+|nan|inf)"
_OF_TRAINER = re.compile(r"(?:\b(?:step|rollout) (\d+): *)?(\{'[^{}]*\})", re.IGNORECASE)
_ITEM = re.compile(rf"'([^']+)': *(?:np\.float\d+\()?'?({_NUMBER})'?\)?(?=[,}}])")
_OF_VERL = re.compile(r"\bstep:(\d+) - (\S+:.*)")
_PART = re.compile(rf"(\S+):(?:np\.float\d+\()?({_NUMBER})\)?")
NUMBERED = "the log names no steps, so its rows are numbered from 1, as with logging_steps=1"


def console_rows(file: Path) -> tuple[list[dict[str, float]], tuple[str, ...]]:
    """Returns the rows that a console's output holds, with a note where they had to be numbered."""
    rows = [row for line in _lines(file) if (row := _row(line))]
    with_step = [row for row in rows if "step" in row]
    without = [row for row in rows if "step" not in row]
    # Other programs print beside the trainer, such as one that saves its checkpoints.
    if len(with_step) > sum(map(_is_of_training, without)):
        return with_step, ()
    count = 0
    for row in without:
        # A row of an evaluation stands behind that of its step, and the last one tells how long all took.
        count += _is_of_training(row)
        row["step"] = float(count)
    return without, (NUMBERED,)


def _is_of_training(row: dict[str, float]) -> bool:
    return "loss" in row or "reward" in row


def _lines(file: Path) -> Iterator[str]:
    with file.open(encoding="utf-8", errors="replace") as opened:
        for line in opened:
            # A bar of progress is drawn over and over in one line.
            yield from line.split("\r")


def _row(line: str) -> dict[str, float] | None:
    if found := _OF_VERL.search(line):
        parts = (_PART.fullmatch(part) for part in found[2].split())
        return {"step": float(found[1]), **{part[1]: float(part[2]) for part in parts if part}}
    if found := _OF_TRAINER.search(line):
        step = {"step": float(found[1])} if found[1] else {}
        return {**step, **{name: float(value) for name, value in _ITEM.findall(found[2])}}
    return None
