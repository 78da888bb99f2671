"""This module uploads a folder with a model to the Hugging Face hub, only when a person asks for it.

It also identifies a model's weights, to check that adapters meet the base that they were trained on.
"""

import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

from grpo.config import ModelConfig, UserError
from grpo.config.errors import first_line
from grpo.models.cache import sha256

Result = TypeVar("Result")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def check_upload(name: str) -> None:
    """Checks before any long work that the user who is logged in may upload to `name`.

    Raises UserError where nobody is logged in, where the token only reads, and for a name of somebody else.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.utils import validate_repo_id

    if name.count("/") != 1:
        raise UserError(f"upload={name} must be a user or an organization and a name, like upload=me/my-model")
    _, who = _explaining(name, lambda: (validate_repo_id(name), HfApi().whoami()))
    owners = [who["name"], *(organization["name"] for organization in who.get("orgs", ()))]
    if name.partition("/")[0] not in owners:
        raise UserError(
            f"upload={name}: the token on this machine may write to {' or '.join(owners)} only: give a name there"
        )
    if who.get("auth", {}).get("accessToken", {}).get("role") == "read":
        raise UserError(f"upload={name}: the token on this machine may only read: log in with one that may write")


def upload(folder: Path, name: str, public: bool = False) -> str:
    """Uploads all files of a folder as one commit, and returns the model's address. A new model is private unless
    `public`. Raises UserError where the hub refuses the upload or is not reached. The folder stays in any case."""
    from huggingface_hub import HfApi

    def send() -> str:
        api = HfApi()
        address = api.create_repo(name, private=not public, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder, commit_message="A model trained by grpo")
        return str(address)

    return _explaining(name, send)


def _explaining(name: str, action: Callable[[], Result]) -> Result:
    """Returns what `action` returns. Raises UserError with one line where the hub refuses, or cannot be reached or
    used."""
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, HTTPError, LocalTokenNotFoundError

    try:
        return action()
    except HFValidationError as error:
        problem = f"that is no valid name ({first_line(error)})"
    except LocalTokenNotFoundError:
        problem = "nobody is logged in on this machine: run `hf auth login`, or set HF_TOKEN"
    except HfHubHTTPError as error:
        problem = f"the hub refuses it ({first_line(error)}): check the name, and the rights of your token"
    except (OSError, HTTPError) as error:
        problem = f"the hub is not reachable ({first_line(error)}): leave out upload=, and run `hf upload` later"
    raise UserError(f"upload={name}: {problem}")


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


def check_base(saved: WeightsIdentity, present: WeightsIdentity, checkpoint: Path) -> None:
    """Raises UserError when a checkpoint's adapters were trained on other weights than the present ones."""
    if sorted(saved.sha256.values()) == sorted(present.sha256.values()):
        return
    revision = saved.revision
    settings = f"model and model.revision={revision}" if revision else "model"
    raise UserError(
        f"the adapters in {checkpoint} were trained on {saved.path}{f' at {revision}' if revision else ''}, but "
        f"{present.path} now holds other weights: set {settings} as before, or give a copy of it as model.path"
    )
