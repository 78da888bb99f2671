"""This module reads `key=value` words of the command line."""

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from grpo.config import UserError
from grpo.config.errors import require

KINDS = {int: "a whole number", float: "a number"}


def paths_and_settings(words: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Returns the words that name files or folders, and those of the form `key=value`. A word of that form is a path
    where such a file or folder exists, and where a slash stands before its first =. Raises `UserError` for a flag,
    which no command of paths has.

    >>> paths_and_settings(["runs/a", "limit=3", "models/lr=1e-3"])
    ([PosixPath('runs/a'), PosixPath('models/lr=1e-3')], ['limit=3'])
    """
    for flag in (word for word in words if word.startswith("-") and not os.path.exists(word)):
        name = flag.lstrip("-").partition("=")[0]
        raise UserError(f"{flag} is no KEY=VALUE: write it as {name}=VALUE")
    settings = [
        word for word in words if "/" not in word.partition("=")[0] and "=" in word and not os.path.exists(word)
    ]
    return [Path(word) for word in words if word not in settings], settings


def typed(settings: Sequence[str], **kinds: Callable[[str], Any]) -> dict[str, Any]:
    """Returns the values of `key=value` words by key, each converted by the key's entry in `kinds`.

    Raises `UserError` for an unknown key, and for a value that does not fit its kind.
    """
    values = {}
    for setting in settings:
        key, _, value = setting.partition("=")
        if key not in kinds:
            raise UserError(f"unknown key {key!r}; choose one of: {', '.join(kinds)}")
        require(key not in values, f"{key}= is given twice: leave out {setting!r} or the one before it")
        try:
            values[key] = (whole if kinds[key] is int else kinds[key])(value)
        except ValueError:
            kind = KINDS.get(kinds[key], kinds[key].__name__)
            raise UserError(f"{key}={value!r} is not valid: it must be {kind}") from None
    return values


def whole(word: str) -> int:
    """Reads a whole number, which may be written as 1e6. Raises ValueError for anything else.

    >>> whole("12"), whole("1e6")
    (12, 1000000)
    """
    try:
        return int(word)
    except ValueError:
        if not (number := float(word)).is_integer():
            raise
        return int(number)


def kind(name: str, read: Callable[[str], Any], fits: Callable[[Any], bool]) -> Callable[[str], Any]:
    """Returns a function that reads a word, or raises ValueError for one that does not fit. Messages say `name`."""

    def reader(word: str) -> Any:
        if not fits(value := read(word)):
            raise ValueError(word)
        return value

    reader.__name__ = name
    return reader


def one_of(*choices: str) -> Callable[[str], str]:
    """Returns a function that reads one of several words."""
    return kind(f"{', '.join(choices[:-1])} or {choices[-1]}", str, choices.__contains__)


count = kind("a whole number of at least 0", whole, lambda number: number >= 0)
natural = kind("a whole number above 0", whole, lambda number: number > 0)
positive = kind("a number above 0", float, lambda number: 0 < number < math.inf)
seconds = kind("a number of seconds above 0", float, lambda number: 0 < number < math.inf)
dial = kind("a number between -10 and 10", float, lambda number: -10 <= number <= 10)
degrees = kind("0 (population σ) or 1 (sample σ)", whole, lambda number: number in (0, 1))
truth = kind(
    "true or false", lambda word: {"true": True, "false": False}.get(word.lower()), lambda value: value is not None
)


def span(word: str) -> tuple[int, int]:
    """Reads a whole number or a range of them, both ends included. Raises ValueError for anything else.

    >>> span("7"), span("10-20")
    ((7, 7), (10, 20))
    """
    low, _, high = word.partition("-")
    ends = int(low), int(high or low)
    if ends[0] > ends[1]:
        raise ValueError(word)
    return ends


span.__name__ = "a whole number, or a range such as 10-20"
