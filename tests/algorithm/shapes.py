"""This module checks the shapes that signatures of grpo.algorithm name, at every call of a public function.

`grpo/algorithm/shapes.py` has the names. `conftest.py` puts checked functions in the place of the package's own.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from functools import wraps
from typing import Annotated, get_args, get_origin, get_type_hints

from torch import Tensor

import grpo.algorithm
import grpo.config

MODULES = [
    importlib.import_module(f"grpo.algorithm.{found.name}") for found in pkgutil.iter_modules(grpo.algorithm.__path__)
]


def hints(thing, module=None):
    """Returns the annotations of a function or dataclass. They may name classes that are imported for them alone."""
    return get_type_hints(thing, {**vars(grpo.config), **vars(module or inspect.getmodule(thing))}, include_extras=True)


def public_functions():
    """Returns the functions that the package's modules define without an underscore, each with its module."""
    return [
        (function, module)
        for module in MODULES
        for name, function in vars(module).items()
        if inspect.isfunction(function) and function.__module__ == module.__name__ and not name.startswith("_")
    ]


def check(hint, value, sizes, where):
    """Raises AssertionError if a tensor in `value` has another shape than `hint` says. `sizes` has the axes so far."""
    origin = get_origin(hint)
    if value is None or hint is inspect.Parameter.empty:
        return
    if origin is Annotated:
        axes = hint.__metadata__[0]
        # A union such as `float | Scalar` allows what is no tensor.
        if isinstance(value, Tensor):
            assert value.dim() == len(axes), f"{where} has the shape {[*value.shape]}, and not {[*axes]}"
            for axis, size in zip(axes, value.shape, strict=True):
                named = sizes.setdefault(axis, size)
                assert named == size, f"{where} has {size} {axis} where other tensors have {named}"
    elif origin is tuple and ... not in get_args(hint):
        for place, (own, part) in enumerate(zip(get_args(hint), value, strict=True)):
            check(own, part, sizes, f"{where}[{place}]")
    elif origin in (list, Sequence):
        # Groups and micro-batches differ in size.
        for part in value:
            check(get_args(hint)[0], part, {}, where)
    elif origin is Mapping:
        for name, part in value.items():
            check(get_args(hint)[1], part, sizes, f"{where}[{name}]")
    elif is_dataclass(hint) and hint.__module__.startswith("grpo.algorithm"):
        for name, own in hints(hint).items():
            check(own, getattr(value, name), sizes, f"{where}.{name}")
    elif get_args(hint):
        for own in get_args(hint):
            if get_origin(own) is Annotated:
                check(own, value, sizes, where)


def checked(function, module):
    """Returns a function that checks the shapes of its arguments and of its result."""
    annotations, signature = hints(function, module), inspect.signature(function)

    @wraps(function)
    def wrapper(*args, **kwargs):
        sizes = {}
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            check(annotations.get(name), value, sizes, f"{function.__name__}: {name}")
        result = function(*args, **kwargs)
        check(annotations.get("return"), result, sizes, f"the result of {function.__name__}")
        return result

    return wrapper


def install():
    """Puts checked functions in the place of the package's own, in its modules and their tables.

    Functions without tensors stay: doctest runs only examples of functions that it finds in their own module.
    """
    wrappers = {
        id(function): checked(function, module)
        for function, module in public_functions()
        if "Tensor" in str(hints(function, module))
    }
    for module in MODULES:
        tables = [vars(module), *(value for value in vars(module).values() if type(value) is dict)]
        for table in tables:
            table.update({name: wrappers[id(value)] for name, value in table.items() if id(value) in wrappers})
