"""Hydra: where the configs are, and the schema they are checked against."""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from itertools import product
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir, main
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from grpo.config.errors import UserError
from grpo.config.run import TrainConfig
from grpo.config.sweep import SweepConfig
from grpo.config.task import DataConfig, TaskConfig

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


def compose_suite(config: TrainConfig) -> list[TaskConfig]:
    """The tasks of `evaluation.suite`, from `evaluation.suite_folder` where that has them."""
    tasks = []
    for name in config.evaluation.suite:
        task = compose_config([f"task={name}"]).task
        local = Path(config.evaluation.suite_folder) / f"{name}.jsonl"
        if config.evaluation.suite_folder and local.is_file():
            task.data = DataConfig(path=str(local))
        task.data.held_out_fraction = 0.0
        tasks.append(task)
    return tasks


def compose_sweep(preset: str, overrides: list[str]) -> SweepConfig:
    """A file of `configs/sweep` (by name) or of one's own (by path), changed by `key=value` words."""
    own = Path(preset)
    path = own if own.suffix in (".yaml", ".yml") else config_directory() / "sweep" / f"{preset}.yaml"
    if not path.is_file():
        there = ", ".join(sorted(file.stem for file in (config_directory() / "sweep").glob("*.yaml")))
        raise UserError(f"there is no sweep {preset!r}: choose one of {there}, or give a file that ends in .yaml")
    try:
        words = OmegaConf.from_dotlist(overrides)
        merged = OmegaConf.merge(OmegaConf.structured(SweepConfig), OmegaConf.load(path), words)
        return OmegaConf.to_object(merged)
    except (OmegaConfBaseException, YAMLError) as error:
        raise UserError(f"{path.name}: {str(error).splitlines()[0]}") from error


def grid(overrides: list[str]) -> list[dict[str, str]]:
    """Hydra's sweep syntax, a=1,2 b=range(3): every combination, as key → value; of words without any, one that is
    empty. Plain words do not count. Raises UserError for what Hydra cannot read."""
    try:
        swept = {
            each.get_key_element(): list(each.sweep_string_iterator())
            for each in _parsed(overrides)
            if each.is_sweep_override()
        }
    except HydraException as error:
        raise UserError(_one_line(error)) from error
    return [dict(zip(swept, values, strict=True)) for values in product(*swept.values())]


def plain(overrides: list[str]) -> list[str]:
    """The words that are no sweeps."""
    return [word for word, each in zip(overrides, _parsed(overrides), strict=True) if not each.is_sweep_override()]


@dataclass(frozen=True, slots=True)
class Range:
    """Values that a search may try: one of `choices`, or from `low` to `high`."""

    choices: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    step: float | None = None
    log: bool = False
    whole: bool = False


def ranges(overrides: list[str]) -> dict[str, Range]:
    """Key → range of each word in Hydra's grammar of sweeps, read as Hydra's Optuna sweeper reads it. Raises UserError
    for what Hydra cannot read."""
    found = {}
    for each in _parsed(overrides):
        if not each.is_sweep_override():
            continue
        value = each.value()
        if isinstance(value, IntervalSweep):
            whole = isinstance(value.start, int) and isinstance(value.end, int)
            found[each.get_key_element()] = Range(low=value.start, high=value.end, log="log" in value.tags, whole=whole)
        elif isinstance(value, RangeSweep):
            whole = all(isinstance(number, int) for number in (value.start, value.stop, value.step))
            last = value.stop - value.step  # a range's end is not in it
            found[each.get_key_element()] = Range(low=value.start, high=last, step=value.step, whole=whole)
        else:
            found[each.get_key_element()] = Range(choices=tuple(each.sweep_string_iterator()))
    return found


def _parsed(overrides: list[str]) -> list[Override]:
    try:
        return OverridesParser.create().parse_overrides(overrides)
    except HydraException as error:
        raise UserError(_one_line(error)) from error


def launch_all(run: Callable[[DictConfig], None], indices: list[int], folder: Path, words: list[str]) -> None:
    """Hydra's multirun: calls `run` with {folder, cell, launcher: this process} for each index, by the launcher that
    `words` choose (hydra/launcher=joblib, submitit_slurm, …; one after another in this process without any)."""
    job = {"folder": str(folder), "cell": 0, "launcher": os.getpid()}
    ConfigStore.instance().store(name="grpo_cell", node=job)
    outputs = [f"hydra.sweep.dir={folder}/hydra", "hydra.output_subdir=null", "hydra/job_logging=none"]
    chosen = [word for word in words if word.partition("=")[0] != "hydra/hydra_logging"]
    cells = ",".join(map(str, indices))
    arguments = [f"cell={cells}", *outputs, "hydra/hydra_logging=none", *chosen]
    before = sys.argv
    sys.argv = ["grpo sweep", "--multirun", *arguments]
    try:
        main(version_base="1.3", config_path=None, config_name="grpo_cell")(run)()
    finally:
        sys.argv = before


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
