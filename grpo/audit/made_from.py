"""These checks compare what a run was made from, as its manifest says, with what is there now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from grpo.audit.lines import DIFFERS, UNCHECKED, Line, compared, tried
from grpo.config import TrainConfig
from grpo.config.errors import UserError
from grpo.config.folder import CONFIG_FILE
from grpo.config.leaves import differences
from grpo.config.plain_json import read_object
from grpo.config.saved import from_dict
from grpo.models.upload import weights_identity
from grpo.run.manifest import DRIVER, own_files
from grpo.run.model_folder import model_files
from grpo.tasks.task import LoadedTask, usable_problems, without_warnings
from grpo.types import Problem


def check_made_from(output: Path, start: Mapping[str, Any]) -> Iterator[Line]:
    """Compares configuration, versions, device, own files, weights and problems with the last start in the manifest."""
    config = from_dict(start["config"])
    yield from tried("configuration", lambda: _configuration(output, start))
    yield from _versions(start)
    yield from _device(start)
    yield from compared("own files", [*_changed_files(config, start["own_files"])], _listed(start["own_files"]))
    yield from tried("weights at the start", lambda: _weights(config, start["weights"]))
    yield from tried("problems", lambda: _problems(config, start["problems"]))


def problems_of(config: TrainConfig) -> dict[str, Sequence[Problem]]:
    """Returns the problems that the configuration names, read now, by the names of their sets."""
    with without_warnings():
        return {name: usable_problems(of_set, name) for name, of_set in config.task.all_sets.items()}


def _configuration(output: Path, start: Mapping[str, Any]) -> Iterator[Line]:
    written = read_object(output / CONFIG_FILE)
    changed = [f"{name} was {then!r}, and {CONFIG_FILE} says {now!r}"
               for name, then, now in differences(start["config"], written)]  # fmt: skip
    yield from compared("configuration", changed, f"{CONFIG_FILE} is what the run was started with")


def _versions(start: Mapping[str, Any]) -> Iterator[Line]:
    then = start["code"].get("versions", {})
    wrong = [f"{name} was {number}, and {_version(name)} is installed"
             for name, number in then.items() if _version(name) != number]  # fmt: skip
    yield from compared("versions", wrong, ", ".join(f"{name} {number}" for name, number in then.items()))


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"


def _device(start: Mapping[str, Any]) -> Iterator[Line]:
    device, driver = start["device"], start["driver"]
    if device != "cpu" and not torch.cuda.is_available():
        yield Line("device", UNCHECKED, f"the run had {device}, and there is no GPU here")
        return
    here = "cpu" if device == "cpu" else torch.cuda.get_device_name()
    driver_here = DRIVER.read_text().split("\n")[0] if DRIVER.exists() else ""
    wrong = [f"the run had {then}, and this machine has {now or 'none'}"
             for then, now in ((device, here), (driver, driver_here)) if then != now]  # fmt: skip
    yield from compared("device", wrong, " with ".join(filter(None, (device, driver))))


def _changed_files(config: TrainConfig, then: Mapping[str, str]) -> Iterator[str]:
    now = own_files(config)
    for name, digest in then.items():
        if name not in now:
            yield f"{name} is gone"
        elif now[name] != digest:
            yield f"{name} was changed after the run: its SHA-256 was {digest}, and is {now[name]}"


def _listed(files: Mapping[str, str]) -> str:
    return ", ".join(files) or "the configuration names none"


def _weights(config: TrainConfig, then: Mapping[str, Any]) -> Iterator[Line]:
    now = weights_identity(config.model, model_files(config).path)
    before, after = sorted(then["sha256"].values()), sorted(now.sha256.values())
    wrong = [] if before == after else [f"{now.path} holds other weights than those that the run began with"]
    revision = f" at {then['revision']}" if then["revision"] else ""
    yield from compared("weights at the start", wrong, f"{then['path']}{revision}: {len(before)} files")


def _problems(config: TrainConfig, then: str) -> Iterator[Line]:
    try:
        problems = problems_of(config)
    except UserError as error:
        yield Line("problems", DIFFERS, f"they cannot be read any more: {error}")
        return
    same = LoadedTask(config.task, problems, {}).identity == then
    wrong = [] if same else ["questions, answers or their order are not those that the run read"]
    yield from compared("problems", wrong, f"{sum(map(len, problems.values()))} problems, SHA-256 {then}")
