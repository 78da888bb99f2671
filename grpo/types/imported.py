"""This module imports users' own functions by the paths that the configuration gives."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

GIVEN = "given"
"""The path ``"given:NAME"`` leads to a function that exists in this process only, such as one of a notebook's cell."""
given: dict[str, Any] = {}
"""These functions were given to this process as objects, by their paths."""


@functools.cache
def imported(path: str) -> Any:
    """Returns the function at ``"package.module:function"`` or ``"file.py:function"``, or the one in `given`.

    Raises TypeError if the object there is not callable, and ImportError for a module that changes the working folder.
    Passes on any other error of the import. A run imports each path once; two functions of one file are two paths, so
    the file is executed twice.

    >>> imported("math:sqrt")(9.0)
    3.0
    """
    if path in given:
        return given[path]
    module_name, _, function_name = path.rpartition(":")
    if module_name == GIVEN:
        raise ImportError("it was given in Python, as an object that this process lacks: give it to Trainer again")
    if not module_name.endswith(".py") and ("/" in module_name or Path(module_name).is_file()):
        raise ImportError(f"{module_name} is no Python file: give a file that ends in .py, or a module's name")
    with _staying_here():
        module = _of_file(Path(module_name)) if module_name.endswith(".py") else importlib.import_module(module_name)
    function = getattr(module, function_name)
    if not callable(function):
        raise TypeError(f"{path!r} is not callable; it must be a function")
    return function


@contextmanager
def _staying_here() -> Generator[None]:
    """Raises ImportError for code that changes the working folder, from which the run's relative paths lead, or ends
    the process, and instead of a kind of exception that nobody expects."""
    here, leave = os.getcwd(), os._exit

    def stay(code: int) -> None:
        raise ImportError(f"it ends the process by os._exit({code})")

    vars(os)["_exit"] = stay
    try:
        yield
    except (Exception, SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:  # such as those of a test runner, which skips a test
        raise ImportError(f"it raised {type(error).__name__}: {error}") from error
    finally:
        vars(os)["_exit"] = leave
    if os.getcwd() != here:
        os.chdir(here)
        raise ImportError("it changes the working folder, from which this run's paths lead: leave os.chdir out there")


def require_found(path: str) -> None:
    """Raises an error as `imported` does where there is no such file or module, or a file is no Python, without
    executing anything, since a function of the loss imports torch."""
    module_name = path.rpartition(":")[0]
    if module_name.endswith(".py"):
        ast.parse(Path(module_name).read_bytes(), module_name)
    elif importlib.util.find_spec(module_name.partition(".")[0]) is None:
        raise ModuleNotFoundError(f"there is no module {module_name}")


def _of_file(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
