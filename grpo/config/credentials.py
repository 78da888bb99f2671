"""This module refuses keys and passwords in a configuration, because a run writes its configuration down.

The configuration ends up in config.json, checkpoints, HTML pages, model cards and trackers. A key belongs in an
environment variable.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from grpo.config.errors import UserError
from grpo.config.run import TrainConfig

TRACKERS = ("WANDB_API_KEY", "MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD")
"""No user's code that a run calls needs these environment variables."""
PLACE = "{key}"
"""An address may hold this placeholder. A key from an environment variable is put in its place."""
_WORDS = r"(?:x-)?(?:(?:amz|goog|api|access|auth|bearer|hf|private|secret|security|session|subscription)[_-]?)*"
_NAME = rf"{_WORDS}(?:key|token|secret|passw(?:or)?d|pwd|authorization|credentials?|signature|sig)"
# Alone, these words may mean anything as the name of a setting, such as the key of a dictionary.
_SETTING = re.compile(rf"(?!(?:key|signature|sig)$){_NAME}", re.IGNORECASE)
_IN_QUERY = re.compile(
    rf"([?&;](?:(?:{_NAME}|code)=|k=(?=[^&\s]{{8}})))(?!{re.escape(PLACE)})[^&\s'\"]+", re.IGNORECASE
)
# Alone before a host, a word is a key in an address of the web, and a user's name in others, such as a database's.
_IN_FRONT = re.compile(r"\b(https?://|[a-z][a-z0-9+.-]*://(?=[^/@\s]*:))[^/@\s]+@", re.IGNORECASE)
_IN_TEXT = re.compile(r"\bBearer\s+[\w.~+/-]{8,}|\b(?:hf_|ghp_)[A-Za-z0-9]{16,}|"
                      r"\b(?:sk-(?=[\w-]*\d)|xox[bp]-)[\w-]{16,}")  # fmt: skip
# End of a key's name → how to give the secret instead.
_INSTEAD = {
    ".server.url": f"write {PLACE} in its place, and name its environment variable in server.key_variable",
    "tracking.mlflow": "export MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or PGPASSWORD for a database",
    ".hf_token": "export HF_TOKEN",
    ".data.path": "download the file, and name it here",
    "": "give it by an environment variable",
}


def refuse_credentials(config: TrainConfig) -> None:
    """Raises UserError for the first key or password in a configuration. The message does not repeat it."""
    for name, text in _texts(asdict(config)):
        setting = name.rpartition(".")[2]
        found = (pattern.search(text) for pattern in (_IN_QUERY, _IN_FRONT, _IN_TEXT))
        if text and (_SETTING.fullmatch(setting) or any(found)):
            advice = next(remedy for suffix, remedy in _INSTEAD.items() if name.endswith(suffix))
            raise UserError(
                f"{name} holds a key or a password, which a run would write down with its settings: {advice}"
            )


def without_credentials(text: str) -> str:
    """Returns a text, such as a word that is refused, without the keys and passwords in it.

    >>> without_credentials("task.data.path=https://me:secret@host/x?X-Amz-Signature=ab12&y=2")
    'task.data.path=https://…@host/x?X-Amz-Signature=…&y=2'
    """
    return _IN_TEXT.sub("…", _IN_FRONT.sub(r"\1…@", _IN_QUERY.sub(r"\1…", text)))


def _texts(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yields the dotted name and the value of every text in plain data."""
    if isinstance(value, str):
        yield name, value
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for inner, item in items:
        yield from _texts(item, f"{name}.{inner}" if name else str(inner))
