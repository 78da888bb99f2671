"""The configuration that a run wrote down, as the run's own dataclasses again."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from grpo.config.errors import UserError
from grpo.config.run import TrainConfig


def from_dict(values: Mapping[str, Any], overrides: Sequence[str] = ()) -> TrainConfig:
    """The configuration that `asdict` made these values of, changed by `key=value` overrides; keys that exist no
    more are ignored. Values are text and numbers and nothing else: no `${…}` in them is looked up. `UserError` for an
    override that does not fit."""

    def build(template: Any, given: Mapping[str, Any]) -> Any:
        known = {}
        for field in fields(template):
            if field.name in given:
                default, value = getattr(template, field.name), given[field.name]
                nested = is_dataclass(default) and isinstance(value, Mapping)
                known[field.name] = build(default, value) if nested else value
        return type(template)(**known)

    known = OmegaConf.create(_literal(asdict(build(TrainConfig(), values))))
    try:
        # The schema makes objects of what stands in lists too, such as a reward's parts.
        return OmegaConf.to_object(
            OmegaConf.merge(OmegaConf.structured(TrainConfig), known, OmegaConf.from_dotlist([*overrides]))
        )
    except OmegaConfBaseException as error:
        raise UserError(str(error).splitlines()[0]) from error


def _literal(value: Any) -> Any:
    """The same value, in which OmegaConf finds nothing to look up. Of n backslashes before a `${` it reads half, and
    an odd one makes the `${` text."""
    if isinstance(value, Mapping):
        return {name: _literal(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_literal(each) for each in value]
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value


def flat(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """(dotted key, value) of every leaf of a configuration as plain data."""
    found = []
    for name, value in config.items():
        found += flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else [(f"{prefix}{name}", value)]
    return found
