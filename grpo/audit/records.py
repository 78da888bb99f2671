"""These checks compare a run's records with its manifest, and with one another."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from grpo.audit.lines import UNCHECKED, Line, compared
from grpo.config.errors import UserError
from grpo.config.folder import CHECKPOINTS, MANIFEST_FILE, METRICS_FILE, PROMPTS_FILE, checkpoints_in
from grpo.measure import repeats_itself
from grpo.models.cache import sha256
from grpo.run.checkpoints import damage_of
from grpo.run.manifest import left_by
from grpo.telemetry.completions import is_graded
from grpo.telemetry.json_lines import Row
from grpo.types import metrics as m


def check_digests(output: Path, end: Mapping[str, str] | None) -> Iterator[Line]:
    """Compares each record with the digest that the run wrote at its end."""
    if end is None:
        yield Line("records", UNCHECKED, f"the run did not close {MANIFEST_FILE}: it goes on, or was killed")
        return
    names = left_by(output)
    wrong = [f"{name} is gone" for name in end if name not in names]
    wrong += [f"{name} was added after the run" for name in names if name not in end]
    wrong += [
        f"{name} was changed after the run" for name in names if name in end and sha256(output / name) != end[name]
    ]
    yield from compared("records", wrong, f"{len(end)} files are as the run left them")


def check_checkpoints(output: Path) -> Iterator[Line]:
    """Compares the files of each checkpoint with its checksums."""
    checkpoints = checkpoints_in(output / CHECKPOINTS)
    wrong = []
    for checkpoint in checkpoints:
        try:
            wrong += [f"{checkpoint.name} {doubt.fact}" for doubt in [damage_of(checkpoint)] if doubt]
        except UserError as error:
            wrong.append(str(error))
    if checkpoints:
        yield from compared("checkpoints", wrong, f"{len(checkpoints)} have the files that were saved")
    else:
        yield Line("checkpoints", UNCHECKED, "there are none")


def check_metrics(metrics: Sequence[Row], prompts: Sequence[Row]) -> Iterator[Line]:
    """Compares the metrics of each round with those that follow from the record of its prompts."""
    by_step = {row["step"]: row for row in prompts}
    rounds = [(row, by_step[row["step"]]) for row in metrics if row["step"] in by_step]
    wrong = [f"step {row['step']} has no line in {PROMPTS_FILE}" for row in metrics if row["step"] not in by_step]
    wrong += [
        f"step {step} has no line in {METRICS_FILE}" for step in by_step.keys() - {row["step"] for row in metrics}
    ]
    for row, asked in rounds:
        wrong += _differing(row, _of_prompts(asked) | _of_counts(row))
    yield from compared("metrics of prompts", wrong, f"counts, pass rates and lengths of {len(rounds)} rounds")


def check_completions(metrics: Sequence[Row], rows: Iterable[Row], prompts: Sequence[Row]) -> Iterator[Line]:
    """Compares metrics and the record of prompts with all completions of each round, where the run has kept them."""
    by_step = {row["step"]: row for row in metrics}
    asked_by_step, wrong, count = {row["step"]: row for row in prompts}, [], 0
    for step, completions in groupby(rows, key=lambda row: row["step"]):
        of_round, count = [*completions], count + 1
        wrong += _differing(by_step.get(step, {"step": step}), _of_completions(of_round))
        wrong += _other_prompts(step, asked_by_step.get(step), of_round)
    if count:
        yield from compared("metrics of completions", wrong, f"rewards and lengths of {count} rounds")
    else:
        yield Line(
            "metrics of completions", UNCHECKED, "the run kept some completions only (tracking.completions=some)"
        )


def _differing(row: Row, expected: Mapping[str, Any]) -> Iterator[str]:
    for name, value in expected.items():
        logged = row.get(name)
        is_number = isinstance(value, float) and isinstance(logged, int | float)
        same = math.isclose(logged, value, rel_tol=1e-9, abs_tol=1e-9) if is_number else logged == value
        if not same and not (logged is None and name != m.COUNTS):
            yield f"step {row['step']}: {METRICS_FILE} has {name}={logged}, and other records give {value}"


def _of_prompts(asked: Row) -> dict[str, Any]:
    """Returns the metrics that follow from a line of prompts.jsonl."""
    graded = [(correct, size) for correct, size in asked["correct"] if size]
    counts = [[*pair, number] for pair, number in sorted(Counter(graded).items())]
    values: dict[str, Any] = {m.NUM_GROUPS: float(len(asked["prompt_ids"])), m.COUNTS: counts}
    if "lengths" in asked and len(graded) == len(asked["correct"]):
        tokens = sum(length * size for length, (_, size) in zip(asked["lengths"], graded, strict=True))
        values[m.LENGTH] = tokens / sum(size for _, size in graded)
    return values


def _of_counts(row: Row) -> dict[str, float]:
    """Returns the metrics that follow from a round's counts of groups by right completions and size."""
    counts, first = row.get(m.COUNTS) or [], row.get(m.FIRST_COUNTS) or row.get(m.COUNTS) or []
    if not counts or m.PASS_RATE not in row:
        return {}
    number = sum(groups for *_, groups in counts)
    right, tried = (sum(values) for values in zip(*((k * n, size * n) for k, size, n in first), strict=True))
    return {
        m.PASS_RATE: right / tried,
        m.ALL_RIGHT: sum(n for k, size, n in counts if k == size) / number,
        m.ALL_WRONG: sum(n for k, _, n in counts if not k) / number,
    }


def _of_completions(rows: Sequence[Row]) -> dict[str, float]:
    """Returns the metrics that follow from all completions of a round."""
    graded = [row for row in rows if is_graded(row)]
    values = {
        m.NUM_COMPLETIONS: float(len(rows)),
        m.LENGTH: sum(row["tokens"] for row in rows) / len(rows),
        m.TRUNCATED: sum(row["truncated"] for row in rows) / len(rows),
        m.REPETITION: sum(repeats_itself(row["completion"]) for row in rows) / len(rows),
    }
    if graded:
        values[m.REWARD] = sum(row["reward"] for row in graded) / len(graded)
        values[m.REWARD_SQUARE] = sum(row["reward"] ** 2 for row in graded) / len(graded)
    return values


def _other_prompts(step: int, asked: Row | None, rows: Sequence[Row]) -> Iterator[str]:
    """Yields the prompts whose completions are not those that prompts.jsonl counts."""
    if asked is None:
        yield f"step {step} has completions, and no line in {PROMPTS_FILE}"
        return
    right: dict[str, list[int]] = {}
    for row in rows:
        of_prompt = right.setdefault(row["prompt_id"], [0, 0])
        of_prompt[0] += row["correct"] and is_graded(row)
        of_prompt[1] += is_graded(row)
    recorded = dict(zip(asked["prompt_ids"], map(list, asked["correct"]), strict=True))
    for prompt_id in sorted(recorded.keys() | right.keys()):
        then, now = recorded.get(prompt_id), right.get(prompt_id)
        if then != now:
            yield f"step {step}: {prompt_id} has {now} [right, graded] completions, and {PROMPTS_FILE} says {then}"
