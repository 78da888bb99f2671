"""This module identifies a model's weights, to check that adapters meet the base that they were trained on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from grpo.config import ModelConfig, UserError
from grpo.models.cache import sha256

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class WeightsIdentity:
    """An identity says where a model came from, and has the SHA-256 of each of its files of weights.

    `revision` is the commit on the hub, or "".
    """

    path: str
    revision: str
    sha256: Mapping[str, str]


def weights_identity(model: ModelConfig, directory: Path) -> WeightsIdentity:
    """Returns the identity of the model in `directory`. A process computes the hash of a file again only after it has
    changed."""
    revision = directory.name if directory.parent.name == "snapshots" else model.revision
    return WeightsIdentity(model.path or model.source, revision, _digests(directory))


def _digests(directory: Path) -> dict[str, str]:
    files = sorted(directory.glob("*.safetensors"))
    times_changed = [file.stat().st_mtime_ns for file in files]
    with ThreadPoolExecutor() as pool:
        return {file.name: digest for file, digest in zip(files, pool.map(_digest, files, times_changed), strict=True)}


@cache
def _digest(file: Path, changed: int) -> str:
    """Returns the SHA-256 of a file that was last changed at the nanosecond `changed`."""
    # The hub's cache names a large file by its SHA-256, which saves reading it.
    stored_file = file.resolve()
    is_named_by_digest = stored_file.parent.name == "blobs" and _SHA256.fullmatch(stored_file.name)
    return stored_file.name if is_named_by_digest else sha256(file)


def check_base(saved: WeightsIdentity | None, present: WeightsIdentity, checkpoint: Path) -> None:
    """Raises UserError when a checkpoint's adapters were trained on other weights than the present ones.

    `saved` is None for checkpoints of older versions, which do not name the base but contain it.
    """
    if not saved or sorted(saved.sha256.values()) == sorted(present.sha256.values()):
        return
    revision = saved.revision
    mend = f"model and model.revision={revision}" if revision else "model"
    raise UserError(
        f"the adapters in {checkpoint} were trained on {saved.path}{f' at {revision}' if revision else ''}, but "
        f"{present.path} now holds other weights: set {mend} as before, or give a copy of it as model.path"
    )
