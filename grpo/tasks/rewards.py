"""The parts of a reward. Each is a pure function of (completion, answer, metadata), built once per worker."""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from grpo.config import RewardConfig, UserError
from grpo.tasks.extraction import EXTRACTORS, extract

RewardPart = Callable[[str, str, Mapping[str, Any]], float]
"""(completion, answer, metadata) → float. The completion is the whole text; the answer the problem's own."""


class UnparsableAnswer(ValueError):
    """A problem's own answer cannot be read, so nothing can be compared with it."""


def readable(answer: str, config: RewardConfig) -> bool:
    """Whether the answer suits the reward, as far as can be told at once: LaTeX is left to the grading workers."""
    return "number" not in config.weights or _value(answer) is not None


_PLAIN_NUMBER = re.compile(r"([-+]?(?:\d{1,400}(?:\.\d{0,400})?|\.\d{1,400})(?:e[-+]?\d{1,3})?)(?:/(\d{1,400}))?")


def exact(extracted: str, answer: str) -> float:
    """Same text, apart from ``$``, thousands commas and spaces that do not part two words or numbers."""
    return float(_squeeze(extracted) == _squeeze(answer))


def number(extracted: str, answer: str) -> float:
    """Same value: "1,000", "$1000.0" and "1e3" are equal, "1/2" and "0.5" too; 50% counts as 50.

    0 when what was extracted is not one plain number; raises UnparsableAnswer when the answer is none.
    """
    wanted = _value(answer)
    if wanted is None:
        raise UnparsableAnswer(answer)
    return float(wanted == _value(extracted))


def _squeeze(text: str) -> str:
    bare = " ".join(text.replace("$", "").split())
    return re.sub(r"(?<!\w) | (?!\w)|(?<=\d),(?=(?:\d{3})+(?!\d))", "", bare)


def _value(text: str) -> Fraction | None:
    match = _PLAIN_NUMBER.fullmatch(re.sub(r"[\\%]", "", _squeeze(text)).removesuffix(".").lower())
    if match is None or (match.group(2) and not int(match.group(2))):
        return None
    return Fraction(match.group(1)) / int(match.group(2) or 1)


def _math(config: RewardConfig) -> RewardPart:
    """math_verify's symbolic equality. Extracted answers and golds are LaTeX or plain numbers; when
    whole lines are extracted, the answer is searched in them as math_verify does in prose."""
    import logging

    from math_verify import parse, verify

    # It warns, in every worker, that it keeps no time limit; the pool does.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    prose = config.extract in ("last_line", "all")

    # Its own limits use signal.alarm, which works in main threads only.
    def formula(text: str) -> list[Any]:
        bare = text.replace(r"\$", "").replace("$", "")
        return parse(f"${bare}$", parsing_timeout=None)

    gold = functools.lru_cache(maxsize=1024)(formula)

    def part(extracted: str, answer: str) -> float:
        # What it cannot read comes back as the text alone.
        if all(isinstance(reading, str) for reading in gold(answer)):
            raise UnparsableAnswer(answer)
        if exact(extracted, answer):
            return 1.0
        attempt = parse(extracted, parsing_timeout=None) if prose else formula(extracted)
        return float(verify(gold(answer), attempt, timeout_seconds=None))

    return _of_extracted(part)(config)


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
