"""This module describes functions, and the methods of environments, as tools that a model calls."""

import inspect
import sys
from collections.abc import Callable, Mapping
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints, is_typeddict
from unittest.mock import patch

from grpo.config.errors import UserError, first_line

RESERVED = ("reset", "get_reward")
OF_JSON = (str, int, float, bool, list, tuple, dict, object, type(None), Any, UnionType)


def _require_callable_by_name(function: Callable[..., Any]) -> None:
    """Raises UserError for a tool that a model cannot call, or whose result it cannot read."""
    name = getattr(function, "__name__", type(function).__name__)
    if not inspect.isroutine(inspect.unwrap(function)) or name == "<lambda>":
        raise UserError(f"task.episode: the tool {name} is no function: write def NAME(…), which calls it")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UserError(f"task.episode: the tool {name} yields: write return, with all that the model shall read")
    parameters = inspect.signature(function).parameters.values()
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    if odd := [str(parameter) for parameter in parameters if parameter.kind not in named]:
        raise UserError(
            f"task.episode: the tool {name} takes {odd[0]}, and a model gives each argument by its name: write them "
            "all as NAME: TYPE, without *, ** and /"
        )
    for parameter, hint in _hints(function).items():
        if parameter != "return" and (foreign := _foreign(hint)):
            raise UserError(
                f"task.episode: the tool {name} takes {parameter} of type {foreign}, and a model gives values of JSON: "
                "write str, int, float, bool, list, dict or Literal"
            )
    if not (inspect.getdoc(function) or "").strip():
        no_tool = (
            ", or begin its name with _ if it is no tool" if "self" in inspect.signature(function).parameters else ""
        )
        raise UserError(
            f"task.episode: the tool {name} has no docstring, which tells the model what it does: write one, with each "
            f"parameter under Args:{no_tool} (an environment is named by its class, and by no function that makes it)"
        )


def _hints(function: Callable[..., Any]) -> Mapping[str, Any]:
    try:
        return get_type_hints(function)
    except Exception:  # names that do not exist; transformers says which
        return {}


def _foreign(hint: Any) -> str | None:
    """Returns the name of a class in a type that no value of JSON belongs to, such as a dataclass or a set."""
    kind = get_origin(hint) or hint
    if inspect.isclass(kind) and kind not in OF_JSON and not is_typeddict(kind):
        return kind.__name__
    inner = () if kind is Literal else get_args(hint)
    return next(filter(None, map(_foreign, inner)), None)


def schema_of(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Returns the JSON schema of a tool. Raises UserError for one that a model cannot call or has no docstring."""
    _require_callable_by_name(function)
    try:
        from transformers.utils import chat_template_utils, get_json_schema
    except ModuleNotFoundError as error:
        raise UserError(f"task.python={sys.executable} lacks transformers, which describes tools: add it") from error
    try:
        # Otherwise it would import torch, for tools that return sounds.
        with patch.object(chat_template_utils, "is_torch_available", lambda: False):
            schema = get_json_schema(inspect.unwrap(function))
    except Exception as error:  # transformers raises errors of its own for what a docstring or a signature lacks
        if foreign := _foreign(_hints(function).get("return")):
            raise UserError(
                f"task.episode: the type that the tool {function.__name__} returns, {foreign}, cannot be described: "
                "leave it out, or write str, int, float, bool, list or dict"
            ) from error
        raise UserError(
            f"task.episode: the tool {function.__name__} cannot be described ({first_line(error)}): give each "
            "parameter a type, and write a line NAME: WORDS for it in the docstring, under Args:"
        ) from error
    # A method that is described before there is an object of its class.
    parameters = schema["function"]["parameters"]
    parameters["properties"].pop("self", None)
    return schema


def methods_of(kind: type) -> dict[str, Callable[..., Any]]:
    """Returns the public methods of a class of environments that are its tools: all but `reset` and `get_reward`, and
    no static methods, as in TRL."""
    return {
        name: function
        for name, function in inspect.getmembers(kind, callable)
        if (inspect.ismethod(function) or inspect.isfunction(inspect.unwrap(function)))
        and not name.startswith("_")
        and name not in RESERVED
        and not isinstance(inspect.getattr_static(kind, name), staticmethod)
    }
