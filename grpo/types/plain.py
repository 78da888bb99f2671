"""This module rebuilds dataclasses from the plain values of a JSON file, and checks the type of every value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

WORDS: Mapping[Any, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
# Larger whole numbers fit neither a tensor nor an index.
LARGEST = 2**63

Reader = Callable[[Any], Any]
"""This function turns a plain value into one of its kind. It raises `Misfit` for other values."""


class Misfit(ValueError):
    """A misfit says which kind of value was expected at a place, and what stands there."""

    def __init__(self, wrong: str, place: str = ""):
        super().__init__(f"{place} {wrong}")
        self._wrong, self._place = wrong, place

    def within(self, place: str) -> Misfit:
        """Returns the same misfit, seen from around `place`."""
        return Misfit(self._wrong, place + self._place)


def rebuilt(kind: Any, value: Any, name: str) -> Any:
    """Returns the `kind` that `dataclasses.asdict` and JSON made `value` of. `name` is what errors call it.

    `kind` is a dataclass, a NamedTuple, int, float, bool, str, Mapping[str, …], Sequence[…], tuple[…], Any, or one of
    these or None. Raises ValueError for the first value of another kind, and for a key that is missing or unknown.

    >>> rebuilt(tuple[int, ...], [1, 2], "steps")
    (1, 2)
    >>> rebuilt(Mapping[str, float], {"seconds": "long"}, "spent")
    Traceback (most recent call last):
    grpo.types.plain.Misfit: spent.seconds must be a number, not 'long'
    """
    try:
        return _reader(kind)(value)
    except Misfit as error:
        raise error.within(name) from None


@cache
def _reader(kind: Any) -> Reader:
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if kind is Any or isinstance(kind, TypeVar):
        return lambda value: value
    if origin is UnionType:
        [read] = (_reader(part) for part in arguments if part is not NoneType)
        return lambda value: None if value is None else read(value)
    if is_dataclass(origin):
        bound = dict(zip(getattr(origin, "__parameters__", ()), arguments, strict=False))
        required = [field.name for field in fields(origin) if field.default is field.default_factory is MISSING]
        return _object_reader(origin, bound, required)
    if hasattr(origin, "_field_defaults"):
        return _object_reader(origin, {}, [name for name in origin._fields if name not in origin._field_defaults])
    if origin is Sequence:
        return _tuple_reader((*arguments, ...))
    if origin is tuple:
        return _tuple_reader(arguments)
    return _mapping_reader(arguments[1]) if arguments else _plain_reader(kind)


def _plain_reader(kind: type) -> Reader:
    # In Python, true and false are whole numbers too, and a whole number is no float.
    kinds = (int, float) if kind is float else (kind,)

    def read(value: Any) -> Any:
        if type(value) not in kinds or (kind is int and not -LARGEST <= value < LARGEST):
            raise _misfit(WORDS[kind], value)
        return value

    return read


def _tuple_reader(kinds: tuple[Any, ...]) -> Reader:
    """Returns the reader of a tuple whose type has one kind for all items and `...`, or one kind for each item."""
    of_all = _reader(kinds[0]) if kinds[-1] is ... else None
    of_each = [] if of_all else [_reader(kind) for kind in kinds]

    def read(value: Any) -> Any:
        if not isinstance(value, list | tuple) or not (of_all or len(value) == len(of_each)):
            raise _misfit("a list" if of_all else f"a list of {len(of_each)}", value)
        items: list[Any] = []
        try:
            for reader, item in zip([of_all] * len(value) if of_all else of_each, value, strict=True):
                items.append(reader(item))
        except Misfit as error:
            raise error.within(f"[{len(items)}]") from None
        return tuple(items)

    return read


def _mapping_reader(kind: Any) -> Reader:
    read_item = _reader(kind)

    def read(value: Any) -> Any:
        return {key: _within(key, read_item, item) for key, item in _items(value)}

    return read


def _object_reader(kind: Any, bound: Mapping[Any, Any], required: Sequence[str]) -> Reader:
    """Returns the reader of a dataclass or a NamedTuple. `bound` says what its type variables, if it has any, stand
    for; `required` are its fields without a default."""
    readers = {name: _reader(bound.get(hint, hint)) for name, hint in get_type_hints(kind).items()}

    def read(value: Any) -> Any:
        present = dict(_items(value))
        for name in (name for name in required if name not in present):
            raise Misfit(f"lacks {name}")
        for name in (name for name in present if name not in readers):
            raise Misfit(f"has {str(name)[:80]!r}, which this version does not know")
        return kind(**{name: _within(name, readers[name], item) for name, item in present.items()})

    return read


def _items(value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise _misfit("keys and values", value)
    return value.items()


def _within(name: str, read: Reader, value: Any) -> Any:
    try:
        return read(value)
    except Misfit as error:
        raise error.within(f".{name}") from None


def _misfit(wanted: str, value: Any) -> Misfit:
    return Misfit(f"must be {wanted}, not {repr(value)[:80]}")
