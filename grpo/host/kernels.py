"""This module says what a machine lacks to run kernels on its GPUs."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path

# CUDA 13 and vLLM have no kernels for GPUs before Turing.
OLDEST_CAPABILITY = (7, 5)


def compiler() -> str:
    """Returns the C compiler that Triton calls, or "" where there is none."""
    return os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang") or ""


def lacking() -> str:
    """Says what to install for Triton, which compiles on every machine and makes most of vLLM's kernels on GPUs: a C
    compiler and Python's headers. Returns "" where both are there."""
    headers = Path(sysconfig.get_path("include", "posix_prefix"))
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    remedies = [] if compiler() else ["install gcc"]
    if not (headers / "Python.h").exists():
        remedies.append(f"install {python}-dev (Python.h is not in {headers})")
    return f"vLLM's kernels need it: {' and '.join(remedies)}" if remedies else ""


def too_old(capability: tuple[int, int]) -> str:
    """Says what to do with a GPU of this compute capability, "" if it will do.

    >>> too_old((8, 0))
    ''
    """
    if capability >= OLDEST_CAPABILITY:
        return ""
    has, needed = (".".join(map(str, each)) for each in (capability, OLDEST_CAPABILITY))
    return f"compute capability {has} is too old for CUDA 13 and vLLM, which need {needed} (Turing): use a newer GPU"
