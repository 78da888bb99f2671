"""This module changes words of the command line into words that Hydra reads as people mean them.

Entries of a key that takes names of one's own need no + before them, and whole numbers may be written as 1e6. Several
tools of one file, tools.py:search,calculator, are one value.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf

from grpo.config.errors import UserError, require
from grpo.config.run import TrainConfig

_QUOTED = re.compile(r"""'[^']*'|"[^"]*\"""")
_TOOLS = re.compile(r"(?=.*,)(\w+,\s*)*([^,:'\"]+:)?\w+(,\s*\w+)*|(program|verifiers):[^']*")
_WORD = re.compile(r"(\+{0,2})([\w.-]+)=(.*)", re.DOTALL)


def path_word(key: str, path: object) -> str:
    """Returns the word that sets a key to a path, quoted where Hydra would read the path otherwise.

    >>> path_word("output_dir", "runs/a"), path_word("output_dir", "/home/jürgen/R&D (2025)")
    ('output_dir=runs/a', 'output_dir="/home/jürgen/R&D (2025)"')
    """
    text = str(path)
    plain = re.fullmatch(r"[A-Za-z0-9_./:+@%-]*", text)
    return f"{key}={text}" if plain else '{}="{}"'.format(key, text.replace('"', '\\"'))


def reworded(words: Sequence[str], schema: type = TrainConfig) -> list[str]:
    """Returns the words for Hydra. Raises UserError for a number in the place of true or false.

    >>> reworded(["rollout.engine_args.max_num_seqs=4", "num_steps=1e3", "seed=1"])
    ['++rollout.engine_args.max_num_seqs=4', 'num_steps=1000', 'seed=1']
    >>> reworded(["task.episode=tools.py:search,add", "task.episode=a.py:f,b.py:g", "task.episode=program: ls -l"])
    ["task.episode='tools.py:search,add'", 'task.episode=a.py:f,b.py:g', "task.episode='program: ls -l'"]
    >>> reworded(["task.episode=python,calculator"])
    ["task.episode='python,calculator'"]
    >>> reworded(["output_dir=2026_11_28", "output_dir=runs/x"])
    ["output_dir='2026_11_28'", 'output_dir=runs/x']
    """
    return [_reworded(word, schema) for word in words]


def free_key(key: str, schema: type = TrainConfig) -> str:
    """Returns the key that takes entries with names of a user's own and that `key` is or lies in, or "".

    >>> free_key("model.config.rope_scaling.factor"), free_key("model.path")
    ('model.config', '')
    """
    of_set = re.match(r"task\.sets\.[^.]+\.", key)
    whole = f"task.{key[of_set.end() :]}" if of_set else key
    inside = next((free for free in _kinds(schema)[0] if whole == free or whole.startswith(f"{free}.")), "")
    return key[: len(key) - len(whole) + len(inside)] if inside else ""


def kind_of(key: str, schema: type = TrainConfig) -> Any:
    """Returns the type of a key's value, such as int, or list, or None for what is no key."""
    return _kinds(schema)[1].get(re.sub(r"^task\.sets\.[^.]+\.", "task.", key))


def as_meant(content: Any, *schemas: type, place: str = "") -> Any:
    """Returns what a YAML file holds, after 1e6 has become 1000000 at the keys of `schemas` that take whole numbers,
    and ~/x a path in the home folder.

    A file of a group does not name the group, so a key is known by its end.
    """
    for name in content if OmegaConf.is_dict(content) else ():
        node, key = content._get_node(name), f"{place}.{name}"
        value = None if node is None or OmegaConf.is_list(node) else node._value()
        if OmegaConf.is_dict(node) and isinstance(value, dict):
            as_meant(node, *schemas, place="" if place.endswith(".sets") else key)
        elif isinstance(value, float) and value.is_integer() and _takes_whole_number(key, schemas):
            content[name] = int(value)
        elif isinstance(value, str) and value.startswith("~/"):
            content[name] = os.path.expanduser(value)
    return content


def _takes_whole_number(key_end: str, schemas: Sequence[type]) -> bool:
    kinds = (item for schema in schemas for item in _kinds(schema)[1].items())
    return any(kind is int for key, kind in kinds if f".{key}".endswith(key_end))


def _reworded(word: str, schema: type) -> str:
    match = _WORD.fullmatch(word)
    if not match:
        return word
    plus, key, text = match.groups()
    unquoted = _QUOTED.sub("''", text) if text.startswith(("[", "{")) else ""
    # Hydra reads {name: math weight: 1} as the one text "math weight: 1".
    second = re.search(r":\s+[^][{},:'\s]+\s+([\w.]+):\s", unquoted)
    if second and kind_of(key, schema) is not str:
        raise UserError(
            f"cannot read {word!r}: a comma is missing before {second[1]}:, or quotes around a text with a colon"
        )
    if free := free_key(key, schema):
        names = key.removeprefix(free).split(".")[1:]
        # Hydra cannot make an entry that is a dataclass from a value within it.
        if len(names) > 1 and free.endswith("by_source"):
            return f"++{free}=" + "".join(f"{{{name}: " for name in names) + text + "}" * len(names)
        return f"++{key}={text}"
    kind = kind_of(key, schema)
    if kind is str and key.endswith(".episode") and _TOOLS.fullmatch(text):
        return f"{plus}{key}='{text}'"
    if kind not in (int, bool, str):
        return word
    value = _value(word)
    if kind is str:
        # Hydra would make 20261128 of the text 2026_11_28, and 1.5 of 1.50.
        return f"{plus}{key}='{text.strip()}'" if isinstance(value, int | float) else word
    if kind is bool:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        require(not is_number or value in (0, 1), f"{word}: it takes true or false")
    elif isinstance(value, float) and value.is_integer():
        return f"{plus}{key}={int(value)}"
    return word


def _value(word: str) -> Any:
    """Returns the value that Hydra reads in a word, or None where it cannot read it or reads several."""
    try:
        override: Override = OverridesParser.create().parse_override(word)
    except HydraException:
        return None
    return None if override.is_sweep_override() else override.value()


@cache
def _kinds(schema: type) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Returns the keys whose entries a user names, and the type of each key that holds one value."""
    free: list[str] = []
    types: dict[str, Any] = {}

    def walk(config_class: type, prefix: str) -> None:
        hints = get_type_hints(config_class)
        for name in (field.name for field in fields(config_class)):
            hint = hints[name]
            optional = [part for part in get_args(hint) if part is not type(None)]
            if is_dataclass(hint):
                walk(hint, f"{prefix}{name}.")
            elif get_origin(hint) is dict:
                # A set of problems is added as a choice of the group task, and has the keys of a task.
                free.extend([] if config_class in get_args(hint) else [f"{prefix}{name}"])
            elif isinstance(hint, type) and not get_origin(hint):
                types[f"{prefix}{name}"] = hint
            elif get_origin(hint) is list:
                types[f"{prefix}{name}"] = list
            elif len(optional) == 1:
                types[f"{prefix}{name}"] = optional[0]

    walk(schema, "")
    return tuple(free), types
