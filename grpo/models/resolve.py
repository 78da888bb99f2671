# Light: imported before torch, or without it.
"""This module turns a `ModelConfig` into a local directory, or says in one line why that failed.

It also changes a model's settings, in a folder of links to the model's files with another config.json.
"""

import difflib
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import constants, get_token, is_offline_mode
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from grpo.config import ModelConfig, UserError
from grpo.config.errors import first_line, require
from grpo.config.folder import is_pointer
from grpo.config.plain_json import parse_json, read_object
from grpo.models import smollm2, tiny
from grpo.models.cache import build_once, cache_root

OWN_CODE = "it brings its own code; if you trust that, set model.trust_remote_code=true"
"""Models and tokenizers that transformers loads only with `trust_remote_code` are refused with these words."""

_HUB_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", "*.py"]
# These hold the same weights in other layouts, which would only double the download.
_HUB_DUPLICATES = ["original/*", "onnx/*", "consolidated*"]
CONFIG = "config.json"
# Settings of positions by the names of older models, which transformers still reads.
OLDER = {"rope_theta", "rope_scaling", "partial_rotary_factor"}


def resolve(model: ModelConfig, examples: Callable[[], Sequence[tuple[str, str]]], needs_weights: bool = True) -> Path:
    """Returns the local Hugging Face directory of the configured model, after downloading or building it if needed.

    Without `needs_weights` only configuration and tokenizer are downloaded, no weights have to be there, and the tiny
    model is not trained. `examples` returns (prompt text, answer text) pairs. It is called for the tiny model only,
    which is first trained on them. Raises `UserError` when the model cannot be obtained or loaded.
    """
    if model.source == "smollm2":
        return with_config(build_once(smollm2.ENTRY, smollm2.build_smollm2), model.config)
    if model.source == "tiny":
        pairs = [(prompt, answer) for prompt, answer in examples()]
        steps = tiny.NUM_STEPS if needs_weights else 0
        entry = tiny.cache_entry(pairs, num_steps=steps)
        made = build_once(entry, lambda directory: tiny.build_tiny(directory, pairs, num_steps=steps))
        return with_config(made, model.config)
    if model.source != "huggingface":
        raise UserError(f"model.source={model.source} is unknown: use huggingface, smollm2 or tiny")
    _require_path(model)
    directory = Path(model.path).expanduser()
    if not directory.is_dir():
        directory = _download(model.path, model.revision, needs_weights)
    _check_files(directory, model, needs_weights)
    return with_config(directory.absolute(), model.config)


def check_early(model: ModelConfig, needs_weights: bool = True) -> None:
    """Raises `UserError` for a model that plainly cannot be had, without asking the hub or importing torch.

    A name on the hub passes if it is well formed, unless HF_HUB_OFFLINE is set and the hub's cache lacks it.
    """
    if model.source != "huggingface":
        return
    _require_path(model)
    directory = Path(model.path).expanduser()
    if directory.is_dir():
        _check_files(directory, model, needs_weights)
    elif is_offline_mode() or not _may_be_on_hub(model.path):
        _download(model.path, model.revision, needs_weights)
    else:
        require_hub_cache()


def hub_cache() -> Path:
    """Returns the folder that keeps what the hub sends."""
    return Path(constants.HF_HUB_CACHE)


def hub_token() -> bool:
    """Tells whether there is a token for the hub, without asking the hub whether it is valid."""
    return bool(get_token())


def require_hub_cache() -> None:
    """Raises `UserError` when the folder that keeps what the hub sends is missing and cannot be made."""
    folder = hub_cache()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{folder}, which keeps what the hub sends, cannot be made ({error.strerror}): set HF_HOME to a folder "
            "that can be written"
        ) from error


def _require_path(model: ModelConfig) -> None:
    require(
        bool(model.path),
        "model.path is empty: set it to a model's directory or its name on the hub, like Qwen/Qwen3-0.6B",
    )
    path = Path(model.path).expanduser()
    is_gguf = path.suffix == ".gguf"
    kind = "a GGUF file, and those are not trained" if is_gguf else "a file"
    folder = "of the model's safetensors" if is_gguf else f"that it stands in, model.path={path.parent}"
    require(not path.is_file(), f"model.path={model.path} is {kind}: give the folder {folder}")


def _may_be_on_hub(name: str) -> bool:
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True


def _check_files(directory: Path, model: ModelConfig, needs_weights: bool) -> None:
    """Raises `UserError` for a model's directory that lacks its config.json or, if needed, whole weights."""
    if not (directory / "config.json").is_file():
        require(
            not (directory / "adapter_config.json").is_file(),
            f"model.path={model.path} is an adapter on the hub: fetch it with `hf download {model.path} --local-dir "
            "DIRECTORY`, then give model.path=DIRECTORY",
        )
        require(
            not any(directory.glob("*.gguf")),
            f"model.path={model.path} holds GGUF files, and those are not trained: give the folder of the model's "
            "safetensors",
        )
        raise UserError(f"model.path={model.path} has no config.json: give the directory that save_pretrained wrote")
    if needs_weights:
        _check_weights(directory, model.path)


def _download(name: str, revision: str, weights: bool) -> Path:
    """Downloads a model from the hub into the hub's cache, with or without `weights`. `revision` "" is the default one.

    Raises `UserError` when that fails.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        unwanted = _HUB_DUPLICATES + ([] if weights else ["*.safetensors"])
        patterns = {"allow_patterns": _HUB_FILES, "ignore_patterns": unwanted}
        return Path(snapshot_download(name, revision=revision or None, **patterns))
    except HFValidationError:
        problem = "there is no such directory, and it is not a valid name of a model on the hub: correct model.path"
        if address := re.match(r"https?://huggingface\.co/([\w.-]+/[\w.-]+)", name):
            problem += f", as model.path={address[1]}"
    except GatedRepoError:
        problem = "access on the hub is restricted: ask for it on the model's page and log in with `hf auth login`"
    except RevisionNotFoundError:
        problem = f"the hub has no revision {revision} of it: correct model.revision"
    except RepositoryNotFoundError:
        problem = (
            "it is neither a directory here nor a model on the hub: correct model.path, or log in with "
            "`hf auth login` if the model is private"
        )
    except LocalEntryNotFoundError:
        problem = (
            "it is neither a directory here nor in the hub's cache, and the hub is not reachable (or HF_HUB_OFFLINE is "
            "set): go online once, or give a directory"
        )
    except Exception as error:  # of the network, the disk, and the libraries that an odd HF_ENDPOINT reaches
        problem = f"the download failed ({first_line(error)}): try again, or correct HF_ENDPOINT if it is set"
    raise UserError(f"model.path={name}: {problem}")


def _check_weights(directory: Path, name: str) -> None:
    """Raises `UserError` unless `directory` holds undamaged safetensors weights."""
    from safetensors import SafetensorError, safe_open

    index = directory / "model.safetensors.index.json"
    files = ["model.safetensors"]
    if index.is_file():
        try:
            files = sorted({str(Path(file)) for file in parse_json(index.read_text())["weight_map"].values()})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"model.path={name} has a damaged {index.name}: copy it again") from error
    for file in files:
        if not (directory / file).is_file():
            raise UserError(
                f"model.path={name} has no {file}: write the weights with save_pretrained, or copy it there"
            )
        try:
            # This reads the header only and compares it with the file's length.
            with safe_open(directory / file, framework="numpy"):
                pass
        except SafetensorError as error:
            remedy = f"copy it again ({first_line(error)})"
            if is_pointer(directory / file):
                remedy = "it is a pointer of Git LFS, so fetch the file by `git lfs pull`"
            raise UserError(f"model.path={name} has a damaged {file}: {remedy}") from error


def with_config(directory: Path, changes: Mapping[str, Any]) -> Path:
    """Returns a folder with the model in `directory`, but with `changes` made to its config.json.

    Nested settings are changed one by one. The folder lies in the cache and is the same for the same changes, so that
    learner and sampler read the same model. Raises UserError for a setting that this kind of model does not have.
    """
    if not changes:
        return directory
    config = read_object(directory / CONFIG)
    _check_names(config, changes)
    changes = _in_rope_parameters(config, changes)
    text = json.dumps(_changed(config, changes), indent=2, sort_keys=True)
    # The list of files is part of the name, because a folder made before the weights came is another one.
    files = sorted(file.name for file in directory.iterdir())
    name = hashlib.sha256(f"{directory}\n{files}\n{text}".encode()).hexdigest()[:16]
    folder = cache_root() / f"changed-{name}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    new_folder = Path(tempfile.mkdtemp(dir=folder.parent))
    for file in directory.iterdir():
        if file.name != CONFIG:
            (new_folder / file.name).symlink_to(os.path.realpath(file))
    (new_folder / CONFIG).write_text(text)
    # Several people may share a cache, as its other folders allow.
    new_folder.chmod(folder.parent.stat().st_mode)
    try:
        os.rename(new_folder, folder)
    except OSError:
        shutil.rmtree(new_folder)
        # Another process was quicker.
        if not folder.is_dir():
            raise
    return folder


def _check_names(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
    from transformers import CONFIG_MAPPING

    kind = settings.get("model_type")
    # A model with code of its own shows only its file.
    if kind not in CONFIG_MAPPING:
        return
    default_config = CONFIG_MAPPING[kind]()
    setting_names = OLDER | settings.keys() | default_config.to_dict().keys()
    for name in changes:
        similar_names = difflib.get_close_matches(name, setting_names, n=1)
        hint = f"; did you mean {similar_names[0]}?" if similar_names else ": leave it out, or correct its name"
        require(
            name in setting_names or hasattr(default_config, name),
            f"model.config.{name} is no setting of {kind} models{hint}",
        )


def _in_rope_parameters(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the changes with the older names of positions' settings where newer models hold them: transformers reads
    no `rope_theta` beside `rope_parameters`. Raises UserError where several kinds of layers have one each."""
    newer = settings.get("rope_parameters")
    moved = {name: changes[name] for name in ("rope_theta", "partial_rotary_factor") if name in changes}
    if not isinstance(newer, Mapping) or not moved:
        return changes
    require(
        not any(isinstance(value, Mapping) for value in newer.values()),
        f"model.config.{next(iter(moved))} is one value, and this model has one for each kind of layer: set "
        "model.config.rope_parameters",
    )
    inner = {**changes.get("rope_parameters", {}), **moved}
    return {name: value for name, value in changes.items() if name not in moved} | {"rope_parameters": inner}


def _changed(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(settings)
    for name, value in changes.items():
        inner = result.get(name)
        nested = isinstance(value, Mapping) and isinstance(inner, Mapping)
        result[name] = _changed(inner, value) if nested else value
    return result
