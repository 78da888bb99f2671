"""This module lists a machine's GPUs, says what it lacks to run kernels, and for how long they run there."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.profiler import profile

# CUDA 13 and vLLM have no kernels for GPUs before Turing.
OLDEST_CAPABILITY = (7, 5)
# vLLM's CPU build loads no kernels without this library, and says so only when it calls one. Slim images lack it.
LIBRARY_ON_CPU = "libnuma.so.1"
# nvidia-smi may take so long on a machine with many GPUs.
SMI_SECONDS = 60


def listed_gpus() -> list[str]:
    """Returns the numbers of this machine's GPUs, as nvidia-smi lists them, without importing torch. [] where it fails.

    It lists the instances of a divided GPU too, on lines of their own.
    """
    try:
        process = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=SMI_SECONDS, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return re.findall(r"^GPU (\d+):", process.stdout, re.MULTILINE)


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


def lacking_on_cpu() -> str:
    """Says what to install for vLLM's kernels on CPUs. Returns "" where they can be loaded."""
    try:
        ctypes.CDLL(LIBRARY_ON_CPU)
    except OSError:
        return f"vLLM's kernels need {LIBRARY_ON_CPU}: install libnuma1 (Debian, Ubuntu) or numactl-libs (Fedora)"
    return ""


def too_old(capability: tuple[int, int]) -> str:
    """Says what to do with a GPU of this compute capability, "" if it will do.

    >>> too_old((8, 0))
    ''
    """
    if capability >= OLDEST_CAPABILITY:
        return ""
    has, needed = (".".join(map(str, each)) for each in (capability, OLDEST_CAPABILITY))
    return f"compute capability {has} is too old for CUDA 13 and vLLM, which need {needed} (Turing): use a newer GPU"


def watched() -> profile:
    """Returns a profiler that begins to watch the kernels of this process. `busy_seconds` ends it."""
    from torch.profiler import ProfilerActivity, profile

    profiler = profile(activities=[ProfilerActivity.CUDA])
    profiler.start()
    return profiler


def busy_seconds(profiler: profile) -> float:
    """Ends a profiler of `watched`. Returns the seconds since in which some kernel ran on the GPU."""
    import torch
    from torch.autograd import DeviceType

    torch.cuda.synchronize()
    profiler.stop()
    on_device = [event for event in profiler.events() if event.device_type == DeviceType.CUDA]
    return covered((event.time_range.start, event.time_range.end) for event in on_device) / 1e6


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Returns the length of the union of intervals.

    >>> covered([(0, 2), (5, 6), (1, 3), (5.5, 5.7)])
    4
    """
    total, covered_until = 0, float("-inf")
    for start, end in sorted(spans):
        total += max(0, end - max(start, covered_until))
        covered_until = max(covered_until, end)
    return total
