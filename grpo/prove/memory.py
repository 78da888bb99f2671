"""This module measures peak memory between two calls, on a GPU or a CPU."""

from __future__ import annotations

from pathlib import Path

import torch

from grpo.telemetry import peak_memory

GIB = 2**30


def reset_peak(device: torch.device) -> None:
    """Resets the peak to the memory that is held now."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        # Linux: 5 sets a process's peak of resident memory to what it has (proc_pid_clear_refs(5)).
        Path("/proc/self/clear_refs").write_text("5")


def peak_gib(device: torch.device) -> float:
    """Returns the largest memory since the last `reset_peak` in GiB: of PyTorch's tensors on a GPU, or of the whole
    process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / GIB
    return peak_memory()["memory/peak_rss_gib"]


def held_gib(device: torch.device) -> float:
    """Returns the memory that is held now in GiB, and resets the peak."""
    reset_peak(device)
    return peak_gib(device)
