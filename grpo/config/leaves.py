"""This module walks through a configuration, given as dataclasses or as nested mappings, as JSON holds it."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any


def entries(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the dotted key and the value of everything in a configuration, each section before what is in it.

    The sections of a dataclass are dataclasses, and those of a mapping are mappings.
    """
    is_mapping = isinstance(config, Mapping)
    names = config if is_mapping else [field.name for field in fields(config)]
    for name in names:
        value = config[name] if is_mapping else getattr(config, name)
        yield f"{prefix}{name}", value
        if _is_section(value, is_mapping):
            yield from entries(value, f"{prefix}{name}.")


def leaves(config: Any) -> Iterator[tuple[str, Any]]:
    """Yields the entries that are no sections.

    >>> list(leaves({"seed": 0, "model": {"path": "x", "config": {}}}))
    [('seed', 0), ('model.path', 'x')]
    """
    is_mapping = isinstance(config, Mapping)
    return ((key, value) for key, value in entries(config) if not _is_section(value, is_mapping))


def differences(old: Any, new: Any) -> list[tuple[str, Any, Any]]:
    """Returns (key, old value, new value) of every leaf in which two configurations differ. A missing value is None."""
    before, after = dict(leaves(old)), dict(leaves(new))
    keys = dict.fromkeys([*before, *after])
    return [(key, before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)]


def _is_section(value: Any, in_mapping: bool) -> bool:
    return isinstance(value, Mapping) if in_mapping else is_dataclass(value)
