"""Peak memory of this process."""

from __future__ import annotations

import resource
import sys

_KIB_PER_GIB = 2**20
_BYTES_PER_GIB = 2**30


def peak_memory() -> dict[str, float]:
    """Largest memory since the process began, in GiB.

    ``memory/peak_rss_gib`` is what was resident; ``memory/peak_cuda_gib`` what PyTorch's allocator held of
    the current GPU, its cache included, and is there only once the process uses CUDA.
    """
    peaks = {"memory/peak_rss_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / _KIB_PER_GIB}
    # Asking must not be what imports PyTorch or creates a CUDA context (hundreds of MiB).
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        peaks["memory/peak_cuda_gib"] = torch.cuda.max_memory_reserved() / _BYTES_PER_GIB
    return peaks
