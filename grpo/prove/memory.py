"""This module measures peak memory between two calls, on a GPU or a CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from grpo.telemetry.memory import peak_memory

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


def peak_of_tensors_gib(action: Callable[[], Any], device: torch.device) -> float:
    """Returns the peak memory of the tensors that `action` makes on the device, in GiB."""
    if device.type == "cuda":
        held_before = held_gib(device)
        action()
        return peak_gib(device) - held_before
    # A process takes more memory than its tensors, so their allocations are counted. Memory from before may be freed.
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        action()
    held_bytes = peak = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held_bytes += event.nbytes()
            peak = max(peak, held_bytes)
    return peak / GIB
