"""This module reads the metrics that trainers print on the console, out of what was kept of that output.

TRL, Unsloth       {'loss': 0.01, 'reward': 0.5, …}; the bar of progress before it names the step, else rows are
                   numbered
SkyRL              {'trainer/global_step': 3, 'reward/avg_raw_reward': 0.5, …}
OpenRLHF, slime    Global step 3: {'policy_loss': 0.01, …}, rollout 3: {'rollout/raw_reward': 0.5, …}
verl               step:3 - actor/entropy:0.31 - critic/score/mean:0.25 …
loops of one's own Step 3/100 | loss: 0.01 | reward: 0.5 …

Each may stand behind whatever Ray or a logger puts before it.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

_NUMBER = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+|nan|inf)"
_OF_TRAINER = re.compile(r"(?:\b(?:step|rollout) (\d+): *)?(\{'[^{}]*\})", re.IGNORECASE)
_ITEM = re.compile(rf"'([^']+)': *(?:np\.float\d+\()?'?({_NUMBER})'?\)?(?=[,}}])")
_OF_VERL = re.compile(r"\bstep:(\d+) - (\S+:.*)")
_PART = re.compile(rf"(\S+):(?:np\.float\d+\()?({_NUMBER})\)?")
# A line of a loop of one's own has at least three of these, one of them a reward.
_PAIR = re.compile(rf"(?<![\w/@])([A-Za-z][\w/@]*(?: [A-Za-z][\w/@]*){{0,4}}) *[:=] *({_NUMBER})(?![\w.:])")
# Its step stands behind a word for it, or is the N of the last N/M.
_COUNT = re.compile(r"(?i)\b(?:step|iteration|iter|update|round)\W{0,3}(\d+)|\b(\d+)/\d+(?!.{0,99}\d/\d)")
# A bar of progress: 5%|▌         | 5/100 [26:14<8:17:55, 314.48s/it]
_BAR = re.compile(r"\| *(\d+)/(\d+) \[")
# A mapping goes over at most this many lines.
MOST_LINES = 100
NUMBERED = "the log names no steps, so its rows are numbered from 1, as with logging_steps=1"


def console_rows(file: Path) -> tuple[list[dict[str, float]], tuple[str, ...]]:
    """Returns the rows that a console's output holds, with a note where they had to be numbered."""
    rows, bars, reached = [], [], {}
    for line in _lines(file):
        row = _row(line)
        reached |= {total: int(done) for done, total in _BAR.findall(line.partition("{")[0] if row else line)}
        if row:
            rows.append(row)
        if row and _is_of_training(row):
            bars.append(dict(reached))
    with_step = [row for row in rows if "step" in row]
    without = [row for row in rows if "step" not in row]
    # Other programs print beside the trainer, such as one that saves its checkpoints.
    if len(with_step) > sum(map(_is_of_training, without)):
        return with_step, ()
    if not bars:
        return _numbered([row for line in _lines(file) if (row := _own_row(line))])
    known = _steps(bars) if not with_step else []
    steps = iter(known or _counted(filter(_is_of_training, without)))
    step = 0
    for row in without:
        # A row of an evaluation stands behind that of its step, and the last one tells how long all took.
        step = next(steps) if _is_of_training(row) else step
        row["step"] = float(step)
    return without, () if known else (NUMBERED,)


def _numbered(rows: list[dict[str, float]]) -> tuple[list[dict[str, float]], tuple[str, ...]]:
    """Numbers rows whose steps are unknown, or begin anew with each epoch."""
    if all(earlier.get("step", 0) < later.get("step", 0) for earlier, later in itertools.pairwise(rows)):
        return rows, ()
    return [{**row, "step": float(number)} for number, row in enumerate(rows, start=1)], (NUMBERED,)


def _own_row(line: str) -> dict[str, float] | None:
    """Returns the numbers that a loop of one's own prints in a line, with their names in small letters."""
    row = {name.lower().replace(" ", "_"): float(value) for name, value in _PAIR.findall(line)}
    if len(row) < 3 or not any("reward" in name for name in row):
        return None
    step = _COUNT.search(line)
    return {**row, **({"step": float(step[1] or step[2])} if step else {})}


def _counted(rows: Iterable[Mapping[str, float]]) -> list[int]:
    """Numbers rows of training. Where their epoch goes back, a run was resumed, or another one begins.

    >>> _counted([{"epoch": epoch} for epoch in (0.1, 0.2, 0.3, 0.4, 0.3, 0.4, 0.1)])
    [1, 2, 3, 4, 3, 4, 1]
    """
    steps: list[int] = []
    epochs: list[float] = []
    for row in rows:
        epoch = row.get("epoch", epochs[-1] if epochs else 0.0)
        if epochs and epoch < epochs[-1]:
            epochs = [earlier for earlier in epochs if earlier < epoch]
        epochs.append(epoch)
        steps.append(len(epochs))
    return steps


def _steps(bars: Sequence[Mapping[str, int]]) -> list[int]:
    """Returns the step of each row by the trainer's bar of progress, or nothing if there is none.

    `bars` say for each row how far the bars before it had come, by their lengths. Only the trainer's grows from row to
    row. Others load weights or sample.
    """
    for total in bars[0] if bars else ():
        steps = [reached[total] for reached in bars]
        if all(earlier < later for earlier, later in itertools.pairwise(steps)):
            return steps
    return []


def _is_of_training(row: dict[str, float]) -> bool:
    return "loss" in row or "reward" in row


def _lines(file: Path) -> Iterator[str]:
    """Yields the lines of a console. A mapping over several lines, as a terminal wraps it, is one line."""
    begun: list[str] = []
    with file.open(encoding="utf-8", errors="replace") as opened:
        # A bar of progress is drawn over and over in one line.
        for line in (part.rstrip("\n") for whole in opened for part in whole.split("\r")):
            if begun and (len(begun) == MOST_LINES or "{'" in line or _OF_VERL.search(line)):
                yield from begun
                begun = []
            begun.append(line)
            text = "".join(begun)
            if "{'" not in text or "}" in text[text.rfind("{'") :]:
                yield text
                begun = []
    yield from begun


def _row(line: str) -> dict[str, float] | None:
    if found := _OF_VERL.search(line):
        parts = (_PART.fullmatch(part) for part in found[2].split())
        return {"step": float(found[1]), **{part[1]: float(part[2]) for part in parts if part}}
    if found := _OF_TRAINER.search(line):
        row = {name: float(value) for name, value in _ITEM.findall(found[2])}
        counted = float(found[1]) if found[1] else row.get("trainer/global_step")
        return row if counted is None else {"step": counted, **row}
    return None
