"""The parts of a reward. Each is a pure function of (completion, answer, metadata), built once per worker."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from typing import Any

from grpo.config import RewardConfig, UserError
from grpo.tasks.extraction import EXTRACTORS, extract
from grpo.tasks.verification import exact, mathematics, number, value

RewardPart = Callable[[str, str, Mapping[str, Any]], float]
"""(completion, answer, metadata) → float. The completion is the whole text; the answer the problem's own."""


def readable(answer: str, config: RewardConfig) -> bool:
    """Whether the answer suits the reward, as far as can be told at once: LaTeX is left to the grading workers."""
    return "number" not in config.weights or value(answer) is not None


def _math(config: RewardConfig) -> RewardPart:
    """Same mathematics; where whole lines are extracted, the answer is searched in them."""
    return _of_extracted(mathematics(prose=config.extract in ("last_line", "all")))(config)


def _reasoning_gym(config: RewardConfig) -> RewardPart:
    """The generator's own scoring function."""
    import reasoning_gym  # noqa: F401  (seconds; here it does not count against an answer's time limit)

    from grpo.tasks.procedural import score

    def part(completion: str, answer: str, metadata: Mapping[str, Any]) -> float:
        extracted = extract(completion, config.extract)
        return 0.0 if extracted is None else score(extracted, metadata)

    return part


def _format(config: RewardConfig) -> RewardPart:
    """1 when `format_pattern` is found in the completion."""
    if not config.format_pattern:
        raise UserError("the reward part 'format' needs task.reward.format_pattern.")
    try:
        pattern = re.compile(config.format_pattern)
    except re.error as error:
        raise UserError(
            f"task.reward.format_pattern {config.format_pattern!r} is no regular expression: {error}."
        ) from error
    return lambda completion, answer, metadata: float(pattern.search(completion) is not None)


def _of_extracted(compare: Callable[[str, str], float]) -> Callable[[RewardConfig], RewardPart]:
    """A part that compares the extracted answer with the problem's; 0 where nothing can be extracted."""

    def build(config: RewardConfig) -> RewardPart:
        def part(completion: str, answer: str, metadata: Mapping[str, Any]) -> float:
            extracted = extract(completion, config.extract)
            return 0.0 if extracted is None else compare(extracted, answer)

        return part

    return build


REWARDS: dict[str, Callable[[RewardConfig], RewardPart]] = {
    "math": _math,
    "exact": _of_extracted(exact),
    "number": _of_extracted(number),
    "reasoning_gym": _reasoning_gym,
    "format": _format,
}


def build_parts(config: RewardConfig) -> dict[str, RewardPart]:
    """The functions that `config.weights` names, in its order; imports what they need.

    Raises `UserError` for an unknown name, an import path that leads to nothing callable, an unknown
    way to extract, and a missing or wrong `format_pattern`.
    """
    if not config.weights:
        raise UserError("task.reward.parts is empty; name at least one part, e.g. [{name: math}].")
    if config.extract not in EXTRACTORS:
        raise UserError(f"task.reward.extract is {config.extract!r}; choose one of {', '.join(EXTRACTORS)}.")
    return {name: REWARDS[name](config) if name in REWARDS else _imported(name) for name in config.weights}


def _imported(path: str) -> RewardPart:
    module_name, colon, function_name = path.partition(":")
    if not (module_name and colon and function_name):
        raise UserError(
            f"task.reward.parts: unknown part {path!r}; choose from {', '.join(REWARDS)}, "
            'or give an import path "package.module:function".'
        )
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except Exception as error:  # a module may raise anything while it is imported
        raise UserError(f"task.reward.parts: cannot import {path!r}: {type(error).__name__}: {error}.") from error
    if not callable(function):
        raise UserError(f"task.reward.parts: {path!r} is not callable; it must be a function.")
    return function
