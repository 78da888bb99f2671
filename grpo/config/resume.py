"""What is another than when a run was saved, and what must not be."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any


def differences(old: Any, new: Any, path: str = "") -> Iterable[tuple[str, Any, Any]]:
    """(dotted path, old value, new value) of every leaf in which two configurations differ."""
    for field in fields(new):
        before, after = getattr(old, field.name), getattr(new, field.name)
        name = f"{path}{field.name}"
        if is_dataclass(after):
            yield from differences(before, after, f"{name}.")
        elif before != after:
            yield name, before, after
