"""These checks compare what a run was made from, as its manifest says, with what is there now."""

from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from grpo.audit.lines import DIFFERS, UNCHECKED, Line, compared, tried
from grpo.audit.starts import Start
from grpo.config import TrainConfig
from grpo.config.errors import UserError
from grpo.config.folder import CODE_FILE, CONFIG_FILE, MANIFEST_FILE, PATCH_FILE
from grpo.config.leaves import differences
from grpo.config.plain_json import read_object
from grpo.models.cache import sha256
from grpo.models.upload import weights_identity
from grpo.run.manifest import DRIVER, own_files
from grpo.run.model_folder import model_files
from grpo.tasks.task import LoadedTask
from grpo.tasks.usable import usable_problems, without_warnings
from grpo.types import Problem


def check_made_from(output: Path, starts: Sequence[Start]) -> Iterator[Line]:
    """Compares configuration, code, versions and device with the last start in the manifest, and own files, weights and
    problems with all starts."""
    last = starts[-1].facts
    yield from tried("configuration", lambda: _configuration(output, starts))
    yield from tried("code", lambda: _code(output, last["code"]))
    yield from tried("versions", lambda: _versions(last))
    yield from tried("device", lambda: _device(last))
    yield from tried("own files", lambda: _own_files(starts))
    yield from tried("weights at the start", lambda: _weights(starts))
    yield from tried("problems", lambda: _problems(starts))


def problems_of(config: TrainConfig) -> dict[str, Sequence[Problem]]:
    """Returns the problems that the configuration names, read now, by the names of their sets."""
    with without_warnings():
        return {name: usable_problems(of_set, name) for name, of_set in config.task.all_sets.items()}


def _record(path: Path) -> dict[str, Any]:
    """Returns the object of a JSON file. Raises ValueError for a damaged one, which is not as the run left it."""
    try:
        return read_object(path)
    except UserError as error:
        raise ValueError(str(error)) from error


def _configuration(output: Path, starts: Sequence[Start]) -> Iterator[Line]:
    written = _record(output / CONFIG_FILE)
    # A start that had no step left to take has not written it.
    made = next((start for start in reversed(starts) if start.step < start.config.num_steps), starts[0])
    changed = [f"{name} was {then!r}, and {CONFIG_FILE} says {now!r}"
               for name, then, now in differences(made.facts["config"], written)]  # fmt: skip
    yield from compared("configuration", changed, f"{CONFIG_FILE} is what the run was started with")


def _code(output: Path, then: Mapping[str, Any]) -> Iterator[Line]:
    now, patch = _record(output / CODE_FILE), output / PATCH_FILE
    wrong = [f"{name} in {CODE_FILE} is not what {MANIFEST_FILE} says"
             for name in sorted({*then, *now} - {"patch"}) if then.get(name) != now.get(name)]  # fmt: skip
    if bool(then.get("changed")) != patch.exists():
        wrong.append(f"{PATCH_FILE} is {'there' if patch.exists() else 'gone'}, and {MANIFEST_FILE} says otherwise")
    elif patch.exists() and then.get("patch", sha256(patch)) != sha256(patch):
        wrong.append(f"{PATCH_FILE} was changed after the run")
    yield from compared("code", wrong, f"commit {then.get('commit', 'unknown')}{', changed' * patch.exists()}")


def _versions(start: Mapping[str, Any]) -> Iterator[Line]:
    then = start["code"].get("versions", {})
    wrong = [f"{name} was {number}, and {_version(name)} is installed"
             for name, number in then.items() if _version(name) != number]  # fmt: skip
    wrong = wrong if then else [f"{MANIFEST_FILE} names none"]
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


def _own_files(starts: Sequence[Start]) -> Iterator[Line]:
    wrong, listed = [], dict[str, str]()
    for start in starts:
        then, now = start.facts["own_files"], own_files(start.config)
        listed |= then
        wrong += [
            f"{name} is not in {Path.cwd()}: audit a run in the folder it started from"
            for name in then
            if name not in now
        ]
        wrong += [f"{name} is not in {MANIFEST_FILE}" for name in now if name not in then]
        wrong += [
            f"{name} was changed after the run: its SHA-256 was {then[name]}, and is {now[name]}"
            for name in then
            if name in now and then[name] != now[name]
        ]
    yield from compared("own files", [*dict.fromkeys(wrong)], ", ".join(listed) or "the configuration names none")


def _weights(starts: Sequence[Start]) -> Iterator[Line]:
    wrong = []
    for start in starts:
        then, now = start.facts["weights"], weights_identity(start.config.model, model_files(start.config).path)
        if sorted(then["sha256"].values()) != sorted(now.sha256.values()):
            wrong.append(f"{now.path} holds other weights than those that the run began with at step {start.step}")
    revision = f" at {then['revision']}" if then["revision"] else ""
    yield from compared("weights at the start", wrong, f"{then['path']}{revision}: {len(then['sha256'])} files")


def _problems(starts: Sequence[Start]) -> Iterator[Line]:
    wrong, count = [], 0
    for start in starts:
        try:
            problems = problems_of(start.config)
        except UserError as error:
            yield Line("problems", DIFFERS, f"they cannot be read any more: {error}")
            return
        count = sum(map(len, problems.values()))
        if LoadedTask(start.config.task, problems, {}).identity != start.facts["problems"]:
            wrong.append(
                f"questions, answers or their order are not those that the run read at its start at step {start.step}"
            )
    yield from compared("problems", wrong, f"{count} problems, SHA-256 {starts[-1].facts['problems']}")
