"""This module parses JSON that may come from a stranger."""

import json
from pathlib import Path
from typing import Any

from grpo.config.errors import UserError, first_line, require

DEEPEST = 40
"""Values are nested at most this deep. No file of a run reaches a quarter of it, and OmegaConf follows it there."""


def parse_json(text: str | bytes) -> Any:
    """Parses JSON as `json.loads` does.

    Raises ValueError, and never RecursionError, for text that is no JSON and for values nested deeper than `DEEPEST`:
    whoever walks through a value later could not follow it there.

    >>> parse_json('{"step": [1, 2]}')
    {'step': [1, 2]}
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise _too_deep() from None
    brackets = ("[", "{") if isinstance(text, str) else (b"[", b"{")
    # Few brackets, as in most lines of a log, cannot nest that deep.
    if sum(map(text.count, brackets)) > DEEPEST and _is_too_deep(value):
        raise _too_deep()
    return value


def read_object(file: Path, remedy: str = ": restore it from a copy") -> dict[str, Any]:
    """Reads a file that holds one JSON object. Raises UserError, which ends with `remedy`, for any other file."""
    # A pipe or a device in its place would be read for ever.
    require(file.is_file() or not file.exists(), f"{file} is damaged: it is no plain file{remedy}")
    try:
        value = parse_json(file.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{file} is damaged ({first_line(error)}){remedy}") from error
    require(isinstance(value, dict), f"{file} is damaged: it holds no JSON object{remedy}")
    return value


def _is_too_deep(value: Any) -> bool:
    """Tells whether lists and mappings are nested in `value` deeper than `DEEPEST`."""
    parents = [value]
    for _ in range(DEEPEST):
        families = (parent.values() if isinstance(parent, dict) else parent for parent in parents)
        parents = [child for family in families for child in family if isinstance(child, (list, dict))]
    return bool(parents)


def _too_deep() -> ValueError:
    return ValueError(f"its brackets are nested deeper than {DEEPEST}")
