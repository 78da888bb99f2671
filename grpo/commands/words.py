"""`key=value` words of the command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from grpo.config import UserError


def typed(settings: Sequence[str], **kinds: Callable[[str], Any]) -> dict[str, Any]:
    """`key=value` words as values of the kinds given. `UserError` for another key or a value that does not fit."""
    found = {}
    for setting in settings:
        key, _, value = setting.partition("=")
        if key not in kinds:
            raise UserError(f"unknown key {key!r}; there are: {', '.join(kinds)}")
        try:
            found[key] = kinds[key](value)
        except ValueError:
            raise UserError(f"{key}={value!r} is no {kinds[key].__name__}") from None
    return found


def integers(words: str) -> tuple[int, ...]:
    """Numbers with commas between: ``"1,4,8"``."""
    return tuple(int(each) for each in words.split(","))
