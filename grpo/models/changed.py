"""This module changes a model's settings, in a folder of links to the model's files with another config.json."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo.config.errors import require
from grpo.config.plain_json import read_object
from grpo.models.cache import cache_root

CONFIG = "config.json"
# Settings of positions by the names of older models, which transformers still reads.
OLDER = {"rope_theta", "rope_scaling", "partial_rotary_factor"}


def with_config(directory: Path, changes: Mapping[str, Any]) -> Path:
    """Returns a folder with the model in `directory`, but with `changes` made to its config.json.

    Nested settings are changed one by one. The folder lies in the cache and is the same for the same changes, so that
    learner and sampler read the same model. Raises UserError for a setting that this kind of model does not have.
    """
    if not changes:
        return directory
    config = read_object(directory / CONFIG)
    _check_names(config, changes)
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
            (new_folder / file.name).symlink_to(file.resolve())
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


def _changed(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(settings)
    for name, value in changes.items():
        inner = result.get(name)
        nested = isinstance(value, Mapping) and isinstance(inner, Mapping)
        result[name] = _changed(inner, value) if nested else value
    return result
