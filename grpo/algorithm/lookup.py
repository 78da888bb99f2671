"""This module looks up the functions of the loss by their names in the configuration."""

from collections.abc import Mapping
from typing import TypeVar

from grpo.types.imported import imported

Function = TypeVar("Function")


def member(table: Mapping[str, Function], name: str) -> Function:
    """Returns the function that `name` stands for.

    The name is an entry of `table`, or the path ``"package.module:function"`` or ``"file.py:function"`` of a user's own
    function. Raises ValueError for a name that is neither, and passes on any error of the import. At the start of a
    run, `grpo.algorithm.probe` has checked the functions behind such paths.

    >>> member({"three": 3}, "three")
    3
    >>> member({"three": 3}, "math:sqrt")(9.0)
    3.0
    """
    if name in table:
        return table[name]
    if ":" not in name:
        raise ValueError(f"{name!r} is none of {', '.join(table)}, and no import path package.module:function")
    return imported(name)
