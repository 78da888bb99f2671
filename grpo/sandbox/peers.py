"""This module lets tests in one process use a program in another, as if its functions stood beside them.

Values travel as plain data, and arrive as numbers, texts, dates, lists, tuples, sets and dictionaries of Python's own,
and arrays of numbers as numpy's where the tests use numpy. So nothing that the program does to its own interpreter
reaches the tests: no `__eq__`, no patched `assert`, no exit. An object of another class stays where it is, and a `Far`
stands for it.
"""

from __future__ import annotations

import builtins
import json
import operator
import sys
from collections import deque, namedtuple
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from typing import Any, BinaryIO

Channel = tuple[int, int]
"""A channel is what a peer reads from, and what it writes to."""
SEQUENCES: dict[str, type] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque}
VALUES = {
    "builtins": ("range",),
    "decimal": ("Decimal",),
    "fractions": ("Fraction",),
    "datetime": ("date", "time", "datetime", "timedelta", "timezone"),
}
"""Values of these classes, by their modules, travel as the arguments from which Python makes them again."""
NUMBERS = "biufc"
"""Arrays of numpy with items of these kinds travel as arrays."""


class Far:
    """This object stands for one in the other process. It is equal to itself alone."""

    def __init__(self, peer: Peer, number: int):
        self.__dict__.update(_peer=peer, _number=number)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self._peer.calls += 1
        value, after = self._peer.ask("call", self, list(arguments), named)
        for own, changed in zip(arguments, after, strict=True):
            if isinstance(own, list | deque) and isinstance(changed, list | deque):
                own.clear()
                own.extend(changed)
            elif hasattr(own, "shape") and getattr(changed, "shape", None) == own.shape:
                own[...] = changed
            elif isinstance(own, set | dict) and type(own) is type(changed):
                own.clear()
                own.update(changed)
        return value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._peer.ask("getattr", self, name)

    def __sub__(self, other: Any) -> Any:
        # Tests write abs(f(3) - 7) < 1e-6, and an object that says 0 to every number would pass them.
        value = self._peer.ask("sub", self, other)
        if isinstance(other, int | float | complex) and not isinstance(value, Far):
            raise TypeError("an object less a number is an object again")
        return value


def _asks(operation: str) -> Callable[..., Any]:
    return lambda far, *arguments: far._peer.ask(operation, far, *arguments)


for _operation in ("setattr", "iter", "next", "bool", "len", "getitem", "setitem", "str", "repr", "add", "mul"):
    setattr(Far, f"__{_operation}__", _asks(_operation))


def call(function: Callable[..., Any], arguments: list[Any], named: Mapping[str, Any]) -> tuple[Any, list[Any]]:
    """Calls a function, and returns its value with the arguments, since it may have changed them."""
    return function(*arguments, **named), arguments


OPERATIONS: dict[str, Callable[..., Any]] = {
    **{"call": call, "getattr": getattr, "setattr": setattr, "iter": iter, "next": next, "len": len, "bool": bool},
    **{"str": str, "repr": repr, "getitem": operator.getitem, "setitem": operator.setitem},
    **{"add": operator.add, "sub": operator.sub, "mul": operator.mul},
}
"""The tests may do this to the program's objects. The program may only call functions that the tests have passed."""


class Peer:
    """A peer is one end of the connection between two processes. `operations` are those that the other one may ask.
    With `imports` an array becomes numpy's also where nothing has imported numpy."""

    def __init__(
        self, reader: BinaryIO, writer: BinaryIO, operations: Mapping[str, Callable[..., Any]], imports: bool = True
    ):
        self._reader, self._writer, self._operations, self._imports = reader, writer, operations, imports
        self._own: list[Any] = []
        # This is how often this side has called the other side's functions.
        self.calls = 0
        self._far: dict[int, Far] = {}

    def ask(self, operation: str, *arguments: Any) -> Any:
        """Asks the other process for an operation, and answers what it asks meanwhile. Raises what it raised."""
        self._send("ask", [operation, self._packed(list(arguments))])
        while True:
            kind, content = self._receive()
            if kind == "value":
                return self._unpacked(content)
            if kind == "raised":
                raise _error(*content)
            self._answer(*content)

    def serve(self) -> None:
        """Answers until the other process has ended."""
        with suppress(EOFError):
            while True:
                self._answer(*self._receive()[1])

    def _answer(self, operation: str, arguments: Any) -> None:
        try:
            reply = "value", self._packed(self._operations[operation](*self._unpacked(arguments)))
        except EOFError:
            raise
        except BaseException as error:
            reply = "raised", [[kind.__name__ for kind in type(error).__mro__], str(error)]
        self._send(*reply)

    def _send(self, kind: str, content: Any) -> None:
        self._writer.write(json.dumps([kind, content]).encode() + b"\n")
        self._writer.flush()

    def _receive(self) -> tuple[str, Any]:
        line = self._reader.readline()
        if not line.endswith(b"\n"):
            raise EOFError("the program has ended")
        kind, content = json.loads(line)
        return kind, content

    def _packed(self, value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, Far):
            return ["yours", value._number]
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return ["named", [type(value).__name__, *map(self._packed, (value._fields, tuple(value)))]]
        if type(value).__name__ in VALUES.get(type(value).__module__, ()):
            made_from = self._packed(value.__reduce_ex__(2)[1])
            return ["value", [type(value).__module__, type(value).__name__, made_from]]
        for name, kind in SEQUENCES.items():
            if isinstance(value, kind):
                return [name, [self._packed(item) for item in value]]
        if isinstance(value, dict):
            return ["dict", [[self._packed(key), self._packed(item)] for key, item in value.items()]]
        if isinstance(value, bytes | bytearray):
            return ["bytes", value.decode("latin-1")]
        if isinstance(value, complex):
            return ["complex", [value.real, value.imag]]
        # Numbers and arrays of numpy.
        if hasattr(type(value), "tolist"):
            plain = self._packed(value.tolist())
            is_array = type(value).__name__ == "ndarray" and value.ndim and value.dtype.kind in NUMBERS
            return ["array", [plain, value.dtype.str, list(value.shape)]] if is_array else plain
        known = next((number for number, own in enumerate(self._own) if own is value), None)
        if known is None:
            self._own.append(value)
        return ["mine", len(self._own) - 1 if known is None else known]

    def _unpacked(self, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        kind, content = value
        if kind == "yours":
            return self._own[content]
        if kind == "mine":
            return self._far.setdefault(content, Far(self, content))
        if kind == "dict":
            return {self._unpacked(key): self._unpacked(item) for key, item in content}
        if kind == "bytes":
            return content.encode("latin-1")
        if kind == "complex":
            return complex(*content)
        if kind == "array":
            return self._array(*content)
        if kind == "named":
            name, fields, values = content
            return _named(name, self._unpacked(fields))(*self._unpacked(values))
        if kind == "value":
            module, name, made_from = content
            own_kind = VALUES[module][VALUES[module].index(name)]
            return getattr(import_module(module), own_kind)(*self._unpacked(made_from))
        return SEQUENCES[kind](self._unpacked(item) for item in content)

    def _array(self, plain: Any, kind: str, shape: list[int]) -> Any:
        """Makes an array of numpy, or a list in a process that has nothing to do with numpy."""
        values = self._unpacked(plain)
        if not self._imports and "numpy" not in sys.modules:
            return values
        numpy = import_module("numpy")
        assert numpy.dtype(kind).kind in NUMBERS
        return numpy.array(values, kind).reshape(shape)


_named = lru_cache(namedtuple)


def _error(names: list[str], message: str) -> Exception:
    """Returns an exception of Python's own, by the names of a class and of those that it inherits from. One that
    inherits from Exception alone, or that ends a program, becomes a RuntimeError."""
    for name in map(str, names):
        kind = getattr(builtins, name, None)
        if isinstance(kind, type) and issubclass(kind, Exception) and (kind is not Exception or name == names[0]):
            # Some need more than a message.
            with suppress(TypeError):
                return kind(message)
    return RuntimeError(f"{names[0]}: {message}")
