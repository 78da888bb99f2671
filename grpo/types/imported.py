"""This module imports users' own functions by the paths that the configuration gives."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from pathlib import Path
from typing import Any


@functools.cache
def imported(path: str) -> Any:
    """Returns the function at ``"package.module:function"`` or ``"file.py:function"``.

    Raises TypeError if the object there is not callable, and passes on any error of the import. A run imports each path
    once; two functions of one file are two paths, so the file is executed twice.

    >>> imported("math:sqrt")(9.0)
    3.0
    """
    module_name, _, function_name = path.rpartition(":")
    module = _of_file(Path(module_name)) if module_name.endswith(".py") else importlib.import_module(module_name)
    function = getattr(module, function_name)
    if not callable(function):
        raise TypeError(f"{path!r} is not callable; it must be a function")
    return function


def _of_file(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
