"""This module writes manifest.json, which says what a run was made from, and at its end what it left.

Each start of a run, the first and every resumption, adds an entry under `starts`. The end adds `end`, with the SHA-256
of every record. `grpo audit` compares both with what is there now.
"""

import importlib.util
import json
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from grpo.config import TrainConfig
from grpo.config.errors import UserError
from grpo.config.folder import (
    CHECKPOINTS,
    CHECKSUMS_FILE,
    CODE_FILE,
    COMPLETIONS_FOLDER,
    CONTINUED,
    END_FILE,
    MANIFEST_FILE,
    MODEL_FOLDER,
    MODELS_FOLDER,
    PATCH_FILE,
)
from grpo.config.plain_json import read_object
from grpo.episodes.forms import PROGRAM_WORD
from grpo.host.disk import write_whole
from grpo.models.cache import sha256
from grpo.models.upload import weights_identity
from grpo.types.imported import GIVEN

DRIVER = Path("/proc/driver/nvidia/version")


def facts_of_start(config: TrainConfig, model: Path, problems: str, device: torch.device, step: int) -> dict[str, Any]:
    """Returns what a run is made from when it starts at `step`.

    `model` is the folder of its model, `problems` the identity of the problems as they were read.
    """
    code, patch = (Path(config.output_dir) / name for name in (CODE_FILE, PATCH_FILE))
    return {
        "step": step,
        "code": (read_object(code) if code.exists() else {}) | ({"patch": sha256(patch)} if patch.exists() else {}),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "driver": DRIVER.read_text().split("\n")[0] if DRIVER.exists() else "",
        "weights": asdict(weights_identity(config.model, model)),
        "problems": problems,
        "own_files": own_files(config),
        "config": asdict(config),
    }


def own_files(config: TrainConfig) -> dict[str, str]:
    """Returns the SHA-256 of the files with the user's own rewards, episodes, chat templates and functions of the loss,
    by their names in the configuration. A function that exists in a process only has none. Files that such a file
    imports are not seen."""
    objective, names = config.objective, []
    for of_set in config.task.all_sets.values():
        parts = [of_set.reward.parts, *(reward.parts for reward in of_set.reward.by_source.values())]
        names += [of_set.episode, *(part.name for reward_parts in parts for part in reward_parts)]
    names += [config.normalization.name, objective.name, objective.aggregation.level, objective.kl.estimator]
    digests = {
        prompt.chat_template: sha256(Path(prompt.chat_template))
        for prompt in (of_set.prompt for of_set in config.task.all_sets.values())
        if Path(prompt.chat_template).is_file()
    }
    for module in dict.fromkeys(module for name in names for module in _modules_in(name)):
        if module != GIVEN and (file := _file_of(module)) and file.is_file():
            digests[module] = sha256(file)
    return digests


def _modules_in(name: str) -> list[str]:
    """Returns the modules, or the files of a program's command, that a name in the configuration has.

    >>> _modules_in("python,tools.py:search,look"), _modules_in("math"), _modules_in("program: python -m mine")
    (['tools.py'], [], [])
    """
    if name.startswith(PROGRAM_WORD):
        return [word for word in shlex.split(name.removeprefix(PROGRAM_WORD)) if Path(word).is_file()]
    # Tools that come with grpo stand before the user's own.
    return [name.rpartition(":")[0].rpartition(",")[2]] if ":" in name else []


def _file_of(module: str) -> Path | None:
    """Returns the file of a module, which is named by its path or as Python imports it."""
    if Path(module).is_file():
        return Path(module)
    with suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(module)
        return Path(spec.origin) if spec and spec.origin else None
    return None


def open_manifest(output: Path, start: Mapping[str, Any], resumed: bool) -> None:
    """Writes the manifest of a run that starts, or adds the start of one that is resumed. Then a line says which of the
    user's own files have changed."""
    earlier = read_manifest(output).get("starts", []) if resumed and (output / MANIFEST_FILE).exists() else []
    for name, digest in start["own_files"].items() if earlier else ():
        if earlier[-1].get("own_files", {}).get(name, digest) != digest:
            print(f"  changed since: what {name} holds")
    write_whole(output / MANIFEST_FILE, json.dumps({"starts": [*earlier, start]}, indent=1))


@contextmanager
def closing(output: Path, first: bool) -> Iterator[None]:
    """Closes the manifest when a run ends, in whatever way, on the `first` rank."""
    try:
        yield
    finally:
        if first and (output / MANIFEST_FILE).exists():
            with suppress(OSError, UserError):
                close_manifest(output)


def close_manifest(output: Path) -> None:
    """Adds to the manifest what the run has left: the SHA-256 of each record, of the lists of checksums of its
    checkpoints, and of its models' files. The copy beside the model gets the same text."""
    end = {name: sha256(output / name) for name in left_by(output)}
    text = json.dumps({**read_manifest(output), "end": end}, indent=1)
    write_whole(output / MANIFEST_FILE, text)
    if (output / MODEL_FOLDER / MANIFEST_FILE).exists():
        write_whole(output / MODEL_FOLDER / MANIFEST_FILE, text)


def left_by(output: Path) -> list[str]:
    """Returns the names of the files in a run's folder whose digests its manifest has."""
    patterns = (
        *(f"{COMPLETIONS_FOLDER}/*.parquet", f"{CHECKPOINTS}/step-*/{CHECKSUMS_FILE}"),
        *(f"{MODEL_FOLDER}/*", f"{MODELS_FOLDER}/*/*"),
    )
    found = [path for pattern in patterns for path in sorted(output.glob(pattern)) if path.name != MANIFEST_FILE]
    files = [*(output / name for name in (*CONTINUED, END_FILE)), *found]
    return [str(file.relative_to(output)) for file in files if file.is_file()]


def read_manifest(output: Path) -> dict[str, Any]:
    """Returns the manifest of a run. Raises UserError where there is none, or it is damaged."""
    file = output / MANIFEST_FILE
    if not file.exists():
        raise UserError(f"{output} has no {MANIFEST_FILE}: give the folder of a run")
    return read_object(file, ": restore it from a copy, or start a new run with another output_dir")
