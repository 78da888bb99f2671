"""This module checks the rows of a run's own files, which an editor or another program may have changed."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from grpo.config.folder import EVALUATIONS_FILE, METRICS_FILE, SAMPLES_FILE
from grpo.types import metrics as m

# No run takes more steps. Tables over all steps of a longer one would not fit memory.
MOST_STEPS = 10**7
# The plan of a round. A row with counts has these numbers, each at least 1.
PLAN = (m.INTERVAL, m.GROUP_SIZE, m.PROMPTS)
MEASURES = ("pass@1", "maj@k", "greedy")
TEXTS = ("prompt_id", "question", "answer", "completion", "source", "outcome", "problem_id")
# A completion is shown by these.
OF_SAMPLE = ("prompt_id", "question", "answer", "completion", "reward", "correct", "outcome", "tokens")
OF_PROBLEM = ("problem_id", "correct", "total")


def wrong_in(file_name: str, row: Mapping[str, Any]) -> str:
    """Says the first thing that is wrong in a row of the run's file of this name, or returns "".

    >>> wrong_in("metrics.jsonl", {"step": 1, "pass_rate": None})
    'pass_rate must be a number, not None'
    """
    check = _CHECKS.get(file_name)
    return next(check(row), "") if check else ""


def _of_metrics(row: Mapping[str, Any]) -> Iterator[str]:
    for name, value in row.items():
        if name in (m.COUNTS, m.FIRST_COUNTS):
            if not _is_counts(value):
                yield _not(name, "a list of [right, group size, groups]", value)
        elif name == m.REASON:
            yield from _texts(row, (name,))
        else:
            yield from _numbers(row, (name,))
    if not 0 <= row["step"] <= MOST_STEPS or row["step"] % 1:
        yield _not("step", f"a whole number from 0 to {MOST_STEPS:,}", row["step"])
    for name, value in row.items():
        # Numbers that a reward names are anything.
        ours = name in m.TABLE or name.startswith(m.SOURCE)
        if ours and (name == m.PASS_RATE or name.endswith("_fraction")) and not _is_share(value):
            yield _not(name, "a share from 0 to 1", value)
    for name in PLAN if m.COUNTS in row else ():
        if row.get(name, 1) < 1:
            yield _not(name, "at least 1", row[name])
    if m.COUNTS in row and m.INTERVAL not in row:
        yield f"{m.INTERVAL} is missing"
    if row.get(m.INTERVAL, 1) > max(row["step"], 1):
        yield _not(m.INTERVAL, f"at most its step, {row['step']:g}", row[m.INTERVAL])


def _of_evaluation(row: Mapping[str, Any]) -> Iterator[str]:
    for name in ("per_problem", "ungraded_problems"):
        problems = row.get(name, [])
        if not (isinstance(problems, list) and all(isinstance(problem, Mapping) for problem in problems)):
            yield _not(name, "a list of rows", problems)
    for problem in row.get("per_problem", ()):
        yield from (f"per_problem: {wrong}" for wrong in _of_problem(problem))
    yield from _missing(row, ("pass@1",))
    yield from _numbers(row, ("samples_per_problem", "mean_length", "truncated_fraction"))
    measures = [(name, row[name]) for name in MEASURES if name in row]
    pass_at = row.get("pass@k", {})
    if not isinstance(pass_at, Mapping) or not all(k.isdecimal() for k in pass_at):
        yield _not("pass@k", "intervals by k", pass_at)
    for name, interval in (*measures, *((f"pass@{k}", value) for k, value in pass_at.items())):
        ends = {"value": None, **interval} if isinstance(interval, Mapping) else {"value": None}
        if not all(_is_share(ends[end]) for end in ("value", "low", "high") if end in ends):
            yield _not(name, "a value, low and high between 0 and 1", interval)


def _of_problem(problem: Mapping[str, Any]) -> Iterator[str]:
    yield from _missing(problem, OF_PROBLEM)
    yield from _numbers(problem, ("correct", "total"))
    yield from _texts(problem, TEXTS)
    if not 0 <= problem["correct"] <= problem["total"] or problem["total"] < 1:
        yield f"correct={problem['correct']} of total={problem['total']} is no share"


def _of_sample(row: Mapping[str, Any]) -> Iterator[str]:
    yield from _texts(row, TEXTS)
    yield from _numbers(row, ("tokens", "reward"))
    if not isinstance(row.get("correct", False), bool):
        yield _not("correct", "true or false", row["correct"])


_CHECKS: dict[str, Callable[[Mapping[str, Any]], Iterator[str]]] = {
    METRICS_FILE: _of_metrics,
    EVALUATIONS_FILE: _of_evaluation,
    SAMPLES_FILE: _of_sample,
}


def _missing(row: Mapping[str, Any], names: tuple[str, ...]) -> Iterator[str]:
    return (f"{name} is missing" for name in names if name not in row)


def _texts(row: Mapping[str, Any], names: tuple[str, ...]) -> Iterator[str]:
    return (_not(name, "a text", row[name]) for name in names if name in row and not isinstance(row[name], str))


def _numbers(row: Mapping[str, Any], names: tuple[str, ...]) -> Iterator[str]:
    return (_not(name, "a number", row[name]) for name in names if name in row and not _is_number(row[name]))


def _is_number(value: Any) -> bool:
    return (type(value) is int and abs(value) < 10**18) or (type(value) is float and math.isfinite(value))


def _is_share(value: Any) -> bool:
    return _is_number(value) and -1e-9 <= value <= 1 + 1e-9


def _is_counts(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(entry, list)
        and [type(number) for number in entry] == [int, int, int]
        and 0 <= entry[0] <= entry[1] <= MOST_STEPS
        and min(entry[1:]) >= 1
        and entry[2] <= MOST_STEPS
        for entry in value
    )


def _not(name: str, wanted: str, value: Any) -> str:
    return f"{name} must be {wanted}, not {repr(value)[:80]}"
