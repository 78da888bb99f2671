"""This module lists every configuration key and every choice of a group, as people read them.

Types and defaults are the dataclasses' own. Meanings are the comments above their fields and at the top of the YAML
files, so nothing is written down twice.

The help of a command lists the groups, and every key with the value that would run.
"""

import ast
import inspect
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import yaml

from grpo.config.flags import FLAGS
from grpo.config.hydra import compose_config, config_directory
from grpo.config.ranges import CHOICES, IMPORTED, POSITIVE, as_typed
from grpo.config.run import TrainConfig
from grpo.config.sweep import SweepConfig

LIST, BY_NAME = "list of ", "NAME: "
SWEEP = "grpo sweep"
"""This section holds the keys of a sweep, which no run reads."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key is one leaf of the configuration.

    values    its choices or its type, e.g. "token | sequence" or "int > 0"
    default   the dataclass's default, followed by that of `grpo train` without words where the two differ, e.g.
              "2048 (grpo train alone: 256)"
    """

    name: str
    values: str
    default: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Section:
    """A section holds the keys of one dataclass under one dotted name, and the dataclass's docstring."""

    name: str
    meaning: str
    keys: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice is one YAML file of a group, e.g. "objective=dapo", with its first line as its meaning.

    `grpo train` without words takes the choices that are `usual`.
    """

    name: str
    meaning: str
    usual: bool


def sections() -> list[Section]:
    """Returns all sections with their keys, in the order of the dataclasses."""
    run, sweep = TrainConfig(), SweepConfig()
    # The folder's default is shown as it is written, without the start of this command.
    train = replace(compose_config([]), output_dir=run.output_dir)
    return [*_sections(run, train), Section(SWEEP, _docstring(SweepConfig), _keys(sweep, sweep, ""))]


def running(config: TrainConfig) -> list[Key]:
    """Returns every key of a run, with its value in `config` as its default."""
    return [key for section in _sections(config, config) for key in section.keys if "[]" not in key.name]


def choices() -> list[Choice]:
    """Returns every choice of every group, in alphabetical order."""
    defaults = yaml.safe_load((config_directory() / "train.yaml").read_text(encoding="utf-8"))["defaults"]
    default_choices = {
        f"{group}={choice}" for entry in defaults if isinstance(entry, dict) for group, choice in entry.items()
    }
    files = sorted(config_directory().glob("*/*.yaml"))
    names = [f"{file.parent.name}={file.stem}" for file in files]
    return [Choice(name, _first_line(file), name in default_choices) for name, file in zip(names, files, strict=True)]


def comments(config_class: type) -> dict[str, str]:
    """Returns the comment above each field of a dataclass, as one line; "" where there is none."""
    lines = inspect.getsource(config_class).splitlines()
    meanings = {}
    for node in ast.parse("\n".join(lines)).body[0].body:
        if isinstance(node, ast.AnnAssign):
            above = (line.strip() for line in reversed(lines[: node.lineno - 1]))
            comment = reversed([*takewhile(lambda line: line.startswith("#"), above)])
            meanings[node.target.id] = " ".join(line.removeprefix("#").strip() for line in comment)
    return meanings


def _sections(default: Any, train: Any, prefix: str = "") -> Iterator[Section]:
    yield Section(prefix.rstrip("."), _docstring(type(default)), _keys(default, train, prefix))
    for name, (form, item) in _within(type(default)).items():
        if form != BY_NAME:
            yield from _sections(item(), item(), f"{prefix}{name}{'[]' if form == LIST else ''}.")
    for name in _nested(default):
        yield from _sections(getattr(default, name), getattr(train, name), f"{prefix}{name}.")


def _keys(default: Any, train: Any, prefix: str) -> tuple[Key, ...]:
    meanings, nested = comments(type(default)), _nested(default)
    keys = []
    for field in fields(default):
        if field.name not in nested:
            name, value, of_train = f"{prefix}{field.name}", getattr(default, field.name), getattr(train, field.name)
            default_text = (
                _text(value) if of_train == value else f"{_text(value)} (grpo train alone: {_text(of_train)})"
            )
            keys.append(Key(name, _values(type(default), field.name, name), default_text, meanings[field.name]))
    return tuple(keys)


def _values(config_class: type, field: str, name: str) -> str:
    if name in CHOICES:
        return as_typed([*CHOICES[name], *(["package.module:function"] if name in IMPORTED else [])])
    form, item = _within(config_class).get(field, ("", None))
    if item:
        return f"{form}{{{', '.join(part.name for part in fields(item))}}}"
    hint = get_type_hints(config_class)[field]
    if hint is bool:
        return "true | false"
    words = hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint).replace("typing.", "")
    return words + (" > 0" if name in POSITIVE else "")


def _within(config_class: type) -> dict[str, tuple[str, type]]:
    """Returns the form and the dataclass of each field that holds dataclasses, by the field's name."""
    found = {}
    for name, hint in get_type_hints(config_class).items():
        if item := next(filter(is_dataclass, get_args(hint)), None):
            found[name] = {list: LIST, dict: BY_NAME}.get(get_origin(hint), "null | "), item
    return found


def _nested(config: Any) -> list[str]:
    return [field.name for field in fields(config) if is_dataclass(getattr(config, field.name))]


def _text(value: Any) -> str:
    """Returns a value as it is typed on the command line."""
    if value == "":
        return '""'
    return json.dumps(value, ensure_ascii=False, default=_given).replace('"', "")


def _given(config: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass that are not None."""
    return {name: value for name, value in vars(config).items() if value is not None}


def _docstring(config_class: type) -> str:
    return " ".join(inspect.getdoc(config_class).split())


def _first_line(file: Path) -> str:
    lines = (line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith("# @package"))
    first = next(lines, "")
    return first.removeprefix("#").strip() if first.startswith("#") else ""


def help_text(command: str, words: Sequence[str]) -> str:
    """Returns the choices of every group, and every key with the value that it has with the given words."""
    groups = sorted({file.parent for file in config_directory().glob("*/*.yaml") if file.parent.name != "sweep"})
    return "\n".join([
        f"usage: grpo {command} [GROUP=CHOICE ...] [KEY=VALUE ...]\nflags: {FLAGS}\n\ngroups:",
        *(f"  {group.name}: {', '.join(sorted(file.stem for file in group.glob('*.yaml')))}" for group in groups),
        f"\nkeys, with the values of this command ({' '.join(words) or 'no words given'}):",
        *(f"  {key.name}={key.default}  {_first_sentence(key.meaning)}" for key in running(compose_config([*words]))),
        "\n`grpo config all` explains every key and choice; `grpo config WORD` searches them, e.g. grpo config lora",
    ])  # fmt: skip


def _first_sentence(text: str) -> str:
    """Returns a text up to the first full stop that ends a sentence.

    >>> _first_sentence("This file holds it, e.g. a.json. Others do not.")
    'This file holds it, e.g. a.json.'
    """
    return re.split(r"(?<=[^.]{3}\.)(?<!e\.g\.) (?=[A-Z0-9\"'])", text, maxsplit=1)[0]
