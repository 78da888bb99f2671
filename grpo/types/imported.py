"""This module imports users' own functions by the paths that the configuration gives."""

import ast
import functools
import importlib
import importlib.util
import inspect
import os
import sys
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

GIVEN = "given"
"""The path ``"given:NAME"`` leads to a function that exists in this process only, such as one of a notebook's cell."""
given: dict[str, Any] = {}
"""These functions were given to this process as objects, by their paths."""
_files: dict[Path, Any] = {}
"""These modules were executed from files."""
_under_way: list[str] = []
"""These modules are being imported at the moment."""


@functools.cache
def imported(path: str) -> Any:
    """Returns the function at ``"package.module:function"`` or ``"file.py:function"``, or the one in `given`.

    Raises TypeError if the object there is not callable, and ImportError for a module that changes the working folder.
    Passes on any other error of the import. A process executes a file once.

    >>> imported("math:sqrt")(9.0)
    3.0
    """
    if path in given:
        return given[path]
    module_name, _, function_name = path.rpartition(":")
    if module_name.endswith(":"):
        raise ImportError(f"one colon leads from a file to its function: {module_name.rstrip(':')}:{function_name}")
    if module_name == GIVEN:
        raise ImportError("it was given in Python, as an object that this process lacks: give it to Trainer again")
    if not module_name.endswith(".py") and ("/" in module_name or Path(module_name).is_file()):
        raise ImportError(f"{module_name} is no Python file: give a file that ends in .py, or a module's name")
    with _staying_here(module_name):
        module = _of_file(Path(module_name)) if module_name.endswith(".py") else importlib.import_module(module_name)
    if not hasattr(module, function_name):
        raise AttributeError(f"module {Path(module_name).stem!r} has no attribute {function_name!r}")
    function = getattr(module, function_name)
    if not callable(function):
        raise TypeError(f"{path!r} is of type {type(function).__name__}, and no function or class")
    return function


def import_path(function: Any) -> str:
    """Returns the path by which another process imports a function: ``"module:name"``, or ``"file.py:name"``.

    Returns "" for a function that no other process can import: a lambda, a nested function, an object that can be
    called, one that was typed into a notebook or a terminal, or one that its module has not by its name (wrapped ones).
    """
    name, module = getattr(function, "__qualname__", ""), getattr(function, "__module__", "")
    if not name.isidentifier() or getattr(sys.modules.get(module), name, None) is not function:
        return ""
    if module != "__main__":
        return f"{module}:{name}"
    try:
        file, text = inspect.getsourcefile(inspect.unwrap(function)), inspect.getsource(inspect.unwrap(function))
    except (TypeError, OSError):  # an object that can be called, or a function without a file
        return ""
    # A function below `if __name__ == "__main__":` is not there where the file is imported.
    return f"{Path(file).resolve()}:{name}" if file and Path(file).is_file() and not text[:1].isspace() else ""


def forget() -> None:
    """Forgets all that was imported from files, since the user may have changed them."""
    imported.cache_clear()
    for module in _files.values():
        sys.modules.pop(module.__name__, None)
    _files.clear()


def under_way() -> bool:
    """Tells whether a user's module is being imported at the moment."""
    return bool(_under_way)


@contextmanager
def _staying_here(module_name: str) -> Generator[None]:
    """Raises ImportError for code that changes the working folder, from which the run's relative paths lead, or ends
    the process, and instead of a kind of exception that nobody expects."""
    here, leave = os.getcwd(), os._exit

    def stay(code: int) -> None:
        raise ImportError(f"it ends the process by os._exit({code})")

    vars(os)["_exit"] = stay
    _under_way.append(module_name)
    try:
        yield
    except (Exception, SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:  # such as those of a test runner, which skips a test
        raise ImportError(f"it raised {type(error).__name__}: {error}") from error
    finally:
        vars(os)["_exit"] = leave
        _under_way.pop()
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


def _of_file(file: Path) -> Any:
    if (path := file.resolve()) in _files:
        return _files[path]
    # Dataclasses and pickles look for the module of their class. No other module has this name.
    name = f"{path.stem.replace('.', '_')}_{zlib.crc32(bytes(path)):08x}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, ModuleNotFoundError) and (path.parent / f"{error.name}.py").is_file():
            raise ModuleNotFoundError(
                f"{error.name}.py lies beside it, in a folder that is not searched: set PYTHONPATH={path.parent}"
            ) from error
        raise
    _files[path] = module
    return module
