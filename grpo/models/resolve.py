"""This module turns a `ModelConfig` into a local directory, or says in one line why that failed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub import constants, get_token, is_offline_mode
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from grpo.config import ModelConfig, UserError
from grpo.config.errors import first_line, require
from grpo.config.plain_json import parse_json
from grpo.models import smollm2, tiny
from grpo.models.cache import build_once
from grpo.models.changed import with_config

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

OWN_CODE = "it brings its own code; if you trust that, set model.trust_remote_code=true"
"""This is said of models and tokenizers that transformers loads only with `trust_remote_code`."""

_HUB_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", "*.py"]
# These hold the same weights in other layouts, which would only double the download.
_HUB_DUPLICATES = ["original/*", "onnx/*", "consolidated*"]


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
        raise UserError(f"model.path={model.path} has no config.json: give the directory that save_pretrained wrote")
    if needs_weights:
        _check_weights(directory, model.path)


def load_tokenizer(path: Path | str, model: ModelConfig) -> PreTrainedTokenizerBase:
    """Loads the tokenizer in directory `path`. Raises `UserError` when there is none or it cannot be loaded."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(path), trust_remote_code=model.trust_remote_code)
    except Exception as error:  # the tokenizers library raises no more specific error
        hint = OWN_CODE
        if "trust_remote_code" not in str(error):
            hint = f"save one there with save_pretrained ({first_line(error)})"
        raise UserError(f"cannot load the tokenizer of {path}: {hint}") from error


def _download(name: str, revision: str, weights: bool) -> Path:
    """Downloads a model from the hub into the hub's cache, with or without `weights`. `revision` "" is the default one.

    Raises `UserError` when that fails.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
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
    except (HfHubHTTPError, OSError) as error:
        problem = f"the download failed ({first_line(error)}): try again"
    raise UserError(f"model.path={name}: {problem}")


def _check_weights(directory: Path, name: str) -> None:
    """Raises `UserError` unless `directory` holds undamaged safetensors weights."""
    from safetensors import SafetensorError, safe_open

    index = directory / "model.safetensors.index.json"
    files = ["model.safetensors"]
    if index.is_file():
        try:
            files = sorted(set(parse_json(index.read_text())["weight_map"].values()))
        except (ValueError, KeyError) as error:
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
            raise UserError(f"model.path={name} has a damaged {file}: copy it again ({first_line(error)})") from error
