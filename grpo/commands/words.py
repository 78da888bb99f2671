"""This module reads `key=value` words of the command line."""

from __future__ import annotations

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
    where such a file or folder exists.

    >>> paths_and_settings(["runs/a", "limit=3"])
    ([PosixPath('runs/a')], ['limit=3'])
    """
    settings = [word for word in words if "=" in word and not os.path.exists(word)]
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


def truth(word: str) -> bool:
    """Reads ``"true"`` or ``"false"``. Raises ValueError for anything else."""
    if word.lower() not in ("true", "false"):
        raise ValueError(word)
    return word.lower() == "true"


truth.__name__ = "true or false"


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


def count(word: str) -> int:
    """Reads a whole number that is not negative. Raises ValueError for anything else."""
    if (number := whole(word)) < 0:
        raise ValueError(word)
    return number


count.__name__ = "a whole number of at least 0"


def natural(word: str) -> int:
    """Reads a whole number above 0. Raises ValueError for anything else."""
    if (number := whole(word)) < 1:
        raise ValueError(word)
    return number


natural.__name__ = "a whole number above 0"


def positive(word: str) -> float:
    """Reads a finite number above 0. Raises ValueError for anything else."""
    if not 0 < (number := float(word)) < math.inf:
        raise ValueError(word)
    return number


positive.__name__ = "a number above 0"


def dial(word: str) -> float:
    """Reads an exponent of advantages. Raises ValueError for a number that no run uses, and for anything else."""
    if not -10 <= (number := float(word)) <= 10:
        raise ValueError(word)
    return number


dial.__name__ = "a number between -10 and 10"


def degrees(word: str) -> int:
    """Reads σ's degrees of freedom. Raises ValueError for anything but 0 and 1."""
    if (number := whole(word)) not in (0, 1):
        raise ValueError(word)
    return number


degrees.__name__ = "0 (population σ) or 1 (sample σ)"


def seconds(word: str) -> float:
    """Reads a finite number of seconds above 0. Raises ValueError for anything else."""
    return positive(word)


seconds.__name__ = "a number of seconds above 0"


def integers(words: str) -> tuple[int, ...]:
    """Reads integers separated by commas, such as ``"1,4,8"``. Raises ValueError for anything else."""
    return tuple(int(word) for word in words.split(","))


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
