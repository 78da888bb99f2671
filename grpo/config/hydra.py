"""Hydra: where the configs are, and the schema they are checked against."""

from __future__ import annotations

import difflib
import re
from dataclasses import fields, is_dataclass
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from grpo.config.errors import UserError
from grpo.config.run import TrainConfig

PACKAGE = Path(__file__).resolve().parent.parent


def config_directory() -> Path:
    """The folder of YAML groups: inside the package when installed, beside it in a checkout."""
    installed = PACKAGE / "configs"
    return installed if installed.is_dir() else PACKAGE.parent / "configs"


def register() -> None:
    """Makes `TrainConfig` the schema that `configs/train.yaml` starts from."""
    ConfigStore.instance().store(name="schema", node=TrainConfig)


def compose_config(overrides: list[str], config_name: str = "train") -> TrainConfig:
    """The configuration that these Hydra overrides give. Raises UserError, in one line, for a wrong one."""
    register()
    try:
        with initialize_config_dir(str(config_directory()), version_base="1.3"):
            return to_config(compose(config_name, overrides))
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(_one_line(error)) from error


def to_config(composed: DictConfig) -> TrainConfig:
    """The plain dataclasses of a composed config."""
    return OmegaConf.to_object(composed)


def _one_line(error: Exception) -> str:
    """Hydra's message without its advice on debugging, with the nearest key there is."""
    if isinstance(error, OverrideParseException):
        return f"cannot read {error.override!r}: put a value with special characters in quotes, key='\"a=b\"'"
    text = str(error) if error.__cause__ is None else f"{error}: {error.__cause__}"
    unknown = re.search(r"Could not override '([^']+)'", text)
    known = _paths(TrainConfig())
    if unknown and unknown.group(1) not in known:
        near = difflib.get_close_matches(unknown.group(1), known, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"unknown config key {unknown.group(1)}{hint}"
    text = text.split("Config search path")[0].split("See https")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    kept = [
        line
        for line in lines
        if not line.startswith(("Set the env", "To append", "full_key:", "object_type=", "reference_type="))
    ]
    key = next((line.removeprefix("full_key: ") for line in lines if line.startswith("full_key:")), "")
    return " ".join(kept) + (f" (key: {key})" if key and key not in text.splitlines()[0] else "")


def _paths(node: object, prefix: str = "") -> list[str]:
    """Every dotted key of a configuration."""
    found = []
    for field in fields(node):
        value = getattr(node, field.name)
        found.append(f"{prefix}{field.name}")
        if is_dataclass(value):
            found += _paths(value, f"{prefix}{field.name}.")
    return found


def print_help() -> None:
    """Every key with its default, and the choices of every group."""
    print("groups (grpo train GROUP=CHOICE):")
    for group in sorted(path for path in config_directory().iterdir() if path.is_dir()):
        print(f"  {group.name}: {', '.join(sorted(file.stem for file in group.glob('*.yaml')))}")
    print("\nkeys (grpo train KEY=VALUE), with their defaults; meanings and units: grpo/config/*.py")
    print(OmegaConf.to_yaml(OmegaConf.structured(TrainConfig)))
