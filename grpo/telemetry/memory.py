"""This module measures the peak memory of this process."""

from __future__ import annotations

import re
import sys
from pathlib import Path

_KIB_PER_GIB = 2**20
_BYTES_PER_GIB = 2**30


def peak_memory() -> dict[str, float]:
    """Returns the peak memory since the process began, in GiB.

    ``memory/peak_rss_gib`` is the resident memory. ``memory/peak_cuda_gib`` is what PyTorch's allocator held on
    the current GPU, including its cache; it is present only once the process uses CUDA.
    """
    # getrusage's ru_maxrss is no substitute, since a child process inherits its parent's through fork and exec.
    status = Path("/proc/self/status").read_text()
    peaks = {"memory/peak_rss_gib": int(re.search(r"VmHWM:\s*(\d+) kB", status)[1]) / _KIB_PER_GIB}
    # This must neither import PyTorch nor create a CUDA context, which takes hundreds of MiB.
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        peaks["memory/peak_cuda_gib"] = torch.cuda.max_memory_reserved() / _BYTES_PER_GIB
    return peaks
