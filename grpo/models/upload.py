"""This module uploads a folder with a model to the Hugging Face hub, only when a person asks for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from grpo.config import UserError
from grpo.config.errors import first_line

Result = TypeVar("Result")


def check_upload(name: str) -> None:
    """Checks before any long work that the user who is logged in may upload to `name`.

    Raises UserError where nobody is logged in, where the token only reads, and for a name of somebody else.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.utils import validate_repo_id

    if name.count("/") != 1:
        raise UserError(f"upload={name} must be a user or an organization and a name, like upload=me/my-model")
    _, who = _told(name, lambda: (validate_repo_id(name), HfApi().whoami()))
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

    return _told(name, send)


def _told(name: str, action: Callable[[], Result]) -> Result:
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
