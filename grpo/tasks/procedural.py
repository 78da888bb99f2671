"""This module draws problems from reasoning_gym's generators and scores answers by the generators' own functions."""

import difflib
import functools
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from grpo.config import UserError
from grpo.config.errors import first_line, require
from grpo.types import Problem

ENTRY = "reasoning_gym"
"""This key of a problem's metadata holds the generator's own entry, which `score` needs."""


def procedural_problems(
    name: str, options: dict[str, Any], size: int, seed: int
) -> tuple[list[Problem], tuple[str, ...]]:
    """Draws `size` problems from the generator `name`. Returns the distinct ones, and the ids of repeated questions.

    Ids are ``"<name>-<draw>"``. The metadata hold what `score` needs. An answer may be "", since some
    generators accept any solution that their scoring function finds right.

    Raises `UserError` for an unknown generator or unknown options.
    """
    if size < 1:
        raise UserError(f"task.data.size is {size}; a generator needs the number of problems to draw.")
    own = sorted({"size", "seed"} & options.keys())
    keys = " and ".join(f"task.data.{key}" for key in own)
    require(not own, f"task.data.options: {' and '.join(own)} would have no effect there; set {keys}.")
    problems: dict[str, Problem] = {}
    repeated = []
    for index, entry in enumerate(_entries(name, {**options, "size": size, "seed": seed})):
        problem_id = f"{name}-{index}"
        if entry["question"] in problems:
            repeated.append(problem_id)
            continue
        answer = "" if entry["answer"] is None else str(entry["answer"])
        source = {"name": name, "options": dict(options), "entry": dict(entry)}
        problems[entry["question"]] = Problem(problem_id, entry["question"], answer, {ENTRY: source})
    return list(problems.values()), tuple(repeated)


def score(answer: str, metadata: Mapping[str, Any]) -> float:
    """Returns the generator's own score of an answer, in [0, 1]. Some generators give partial credit.

    A scoring function raises on text that it cannot parse; such an answer counts as wrong and scores 0.
    Raises `KeyError` when the problem does not come from reasoning_gym.
    """
    source = metadata[ENTRY]
    scorer = _scorer(source["name"], json.dumps(source["options"], sort_keys=True))
    try:
        return float(scorer.score_answer(answer, source["entry"]))
    except Exception:
        return 0.0


@functools.lru_cache(maxsize=16)
def _scorer(name: str, options: str) -> Any:
    """Returns the generator's scoring object. `options` are JSON text because a cache needs hashable arguments."""
    return _dataset(name, json.loads(options))


def _entries(name: str, options: dict[str, Any]) -> Iterator[Mapping[str, Any]]:
    dataset = _dataset(name, options)
    for index in range(options["size"]):
        with _one_line(name):
            entry = dataset[index]
        yield entry


@contextmanager
def _one_line(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # each generator raises what it likes about its options
        raise UserError(f"task.data.options of generator {name!r}: {first_line(error)}; correct the option.") from error


def _dataset(name: str, options: dict[str, Any]) -> Any:
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    if name not in DATASETS:
        close = difflib.get_close_matches(name, DATASETS, n=3, cutoff=0.4)
        hint = f"did you mean {', '.join(close)}?" if close else "reasoning_gym's gallery lists them."
        if Path(name).suffix or Path(name).exists():
            hint = "task=file reads a file or a folder of files."
        raise UserError(f"task.data.path: reasoning_gym has no generator {name!r}; {hint}")
    with _one_line(name):
        return reasoning_gym.create_dataset(name, **options)
