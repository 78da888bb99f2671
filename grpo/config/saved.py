"""A saved configuration, from config.json of a run or state.json of a checkpoint, becomes dataclasses again."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from grpo.config import plain_yaml
from grpo.config.complaints import one_line
from grpo.config.errors import UserError, require
from grpo.config.folder import STATE_FILE
from grpo.config.hydra import config_directory
from grpo.config.plain_json import read_object
from grpo.config.rewording import reworded
from grpo.config.run import TrainConfig


def from_dict(values: Mapping[str, Any], overrides: Sequence[str] = ()) -> TrainConfig:
    """Returns the configuration from which `asdict` made these values, changed by `key=value` overrides.

    An override may also name a file of configs/, such as `normalization=dr_grpo`. Keys that no longer exist are
    ignored. A `${…}` within a value stays plain text. Raises UserError for an override that does not fit.
    """

    def build(template: Any, mapping: Mapping[str, Any]) -> Any:
        arguments = {}
        for field in fields(template):
            if field.name in mapping:
                default, value = getattr(template, field.name), mapping[field.name]
                nested = is_dataclass(default) and isinstance(value, Mapping)
                arguments[field.name] = build(default, value) if nested else value
        return type(template)(**arguments)

    try:
        saved_config = OmegaConf.create(_literal(asdict(build(TrainConfig(), values))))
        # The schema makes dataclasses of list items too, such as a reward's parts.
        return OmegaConf.to_object(OmegaConf.merge(_schema(), saved_config, *map(_override, reworded(overrides))))
    except OmegaConfBaseException as error:
        raise UserError(one_line(error)) from error
    except RecursionError:
        raise UserError("a value is nested too deep to be read") from None


@cache
def _schema() -> DictConfig:
    """Returns the types of all keys. Merging copies it, in a sixth of the time that it takes to build."""
    return OmegaConf.structured(TrainConfig)


def _override(word: str) -> DictConfig:
    """Returns what one `key=value` word changes. A word without a dot may choose a file of a group, as in Hydra."""
    word = word.lstrip("+")
    group, _, choice = word.partition("=")
    folder = config_directory() / group
    if "." in group or not folder.is_dir():
        return OmegaConf.from_dotlist([word])
    path = folder / f"{choice}.yaml"
    if not path.is_file():
        choices = ", ".join(sorted(file.stem for file in folder.glob("*.yaml")))
        raise UserError(f"{group} has no {choice!r}; choose one of {choices}")
    file_config = plain_yaml.load(path)
    is_global = path.read_text().startswith("# @package _global_")
    return file_config if is_global else OmegaConf.create({group: file_config})


def read_state(checkpoint: Path) -> dict[str, Any]:
    """Reads the `state.json` of a checkpoint. Raises UserError when it cannot be read."""
    return read_object(checkpoint / STATE_FILE)


def read_config(checkpoint: Path) -> TrainConfig:
    """Reads from a checkpoint the configuration that it was trained with. Raises UserError when there is none."""
    config = read_state(checkpoint).get("config")
    if not isinstance(config, dict):
        raise UserError(f"{checkpoint / STATE_FILE} is damaged: it holds no configuration")
    try:
        return from_dict(config)
    except UserError as error:
        raise UserError(f"{checkpoint / STATE_FILE} is damaged: in its configuration {error}") from error


def read_score(checkpoint: Path) -> float | None:
    """Reads the held-out pass rate of a checkpoint, or None if it was not evaluated. Raises UserError as `read_state`
    does."""
    score = read_state(checkpoint).get("score")
    is_number = isinstance(score, int | float) and math.isfinite(score)
    require(score is None or is_number, f"{checkpoint / STATE_FILE} is damaged: its score is {str(score)[:80]!r}")
    return score


def _literal(value: Any) -> Any:
    """Returns plain data with every `${` escaped, so that OmegaConf keeps it as text.

    Before a `${`, OmegaConf reads every two backslashes as one, and an odd backslash makes the `${` plain text.
    """
    if isinstance(value, Mapping):
        return {name: _literal(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_literal(item) for item in value]
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value


def flat(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Returns (dotted key, value) for every leaf of a configuration, given as nested mappings."""
    leaves = []
    for name, value in config.items():
        leaves += flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else [(f"{prefix}{name}", value)]
    return leaves
