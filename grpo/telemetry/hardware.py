"""This module measures the peak memory of this process, and knows the peak compute of NVIDIA's GPUs."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from grpo.types import metrics as m

if TYPE_CHECKING:
    import torch


# Dense bfloat16 TFLOP/s of NVIDIA's data sheets, by the part of the device's name that identifies the GPU.
_PEAK_TFLOPS = {
    "GB200": 2500.0,
    "B200": 2250.0,
    "H200 NVL": 835.0,
    "H200": 989.0,
    "GH200": 989.0,
    "H100 PCIe": 756.0,
    "H100 NVL": 835.0,
    "H100": 989.0,
    "H800": 989.0,
    "H20": 148.0,
    "A100": 312.0,
    "A800": 312.0,
    "L40S": 362.0,
    "L40": 181.0,
    "L4": 121.0,
    "V100": 125.0,
}
_KIB_PER_GIB = 2**20
_BYTES_PER_GIB = 2**30


def peak_tflops(device: torch.device) -> float | None:
    """Returns the dense bfloat16 TFLOP/s of a GPU in the table, and None for other GPUs and for CPUs."""
    if device.type != "cuda":
        return None
    import torch

    return peak_of(torch.cuda.get_device_name(device))


def peak_of(name: str) -> float | None:
    """Returns the dense bfloat16 TFLOP/s for a name that torch reports, such as ``"NVIDIA H100 80GB HBM3"``."""
    words = f"{name} ".replace("-", " ")
    matches = [(len(part), peak) for part, peak in _PEAK_TFLOPS.items() if f"{part} " in words]
    return max(matches)[1] if matches else None


def peak_memory() -> dict[str, float]:
    """Returns the peak memory since the process began, in GiB.

    ``memory/peak_rss_gib`` is the resident memory. ``memory/peak_cuda_gib`` is what PyTorch's allocator held on
    the current GPU, including its cache, and ``memory/peak_tensors_gib`` what was in tensors. They are present only
    once the process uses CUDA.
    """
    # getrusage's ru_maxrss is no substitute, since a child process inherits its parent's through fork and exec.
    status = Path("/proc/self/status").read_text()
    peaks = {m.PEAK_RSS: int(re.search(r"VmHWM:\s*(\d+) kB", status)[1]) / _KIB_PER_GIB}
    # This must neither import PyTorch nor create a CUDA context, which takes hundreds of MiB.
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        peaks[m.PEAK_CUDA] = torch.cuda.max_memory_reserved() / _BYTES_PER_GIB
        peaks[m.PEAK_TENSORS] = torch.cuda.max_memory_allocated() / _BYTES_PER_GIB
    return peaks
