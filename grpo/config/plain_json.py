"""This module parses JSON that may come from a stranger."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

DEEPEST = 100
"""Values are nested at most this deep. No file of a run reaches a tenth of it."""


def parse_json(text: str | bytes, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """Parses JSON as `json.loads` does, with `pairs` as its `object_pairs_hook`.

    Raises ValueError, and never RecursionError, for text that is no JSON and for values nested deeper than `DEEPEST`:
    whoever walks through a value later could not follow it there.

    >>> parse_json('{"step": [1, 2]}')
    {'step': [1, 2]}
    """
    try:
        value = json.loads(text, object_pairs_hook=pairs)
    except RecursionError:
        raise _too_deep() from None
    brackets = ("[", "{") if isinstance(text, str) else (b"[", b"{")
    # Few brackets, as in most lines of a log, cannot nest that deep.
    if sum(map(text.count, brackets)) > DEEPEST and _reaches(value, DEEPEST):
        raise _too_deep()
    return value


def _reaches(value: Any, depth: int) -> bool:
    """Tells whether lists and mappings are nested in `value` deeper than `depth`."""
    level = [value]
    for _ in range(depth + 1):
        parents = [item for item in level if isinstance(item, list | dict)]
        level = [child for parent in parents for child in (parent.values() if isinstance(parent, dict) else parent)]
    return bool(level)


def _too_deep() -> ValueError:
    return ValueError(f"its brackets are nested deeper than {DEEPEST}")
