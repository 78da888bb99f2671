"""This module reads how much memory a rank's device has, and how much of it is free."""

import torch

from grpo.host import main_memory, ranks

# A GPU that this machine lacks is taken to have this many GiB.
GIB_ELSEWHERE = 80.0


def device_gib(device: str) -> float:
    """Returns the size of this rank's GPU in GiB: 0 for a run on CPUs, `GIB_ELSEWHERE` if this machine has no GPU."""
    if not ranks.on_gpu(device):
        return 0.0
    return torch.cuda.mem_get_info()[1] / 2**30 if torch.cuda.is_available() else GIB_ELSEWHERE


def available_gib(device: str) -> float:
    """Returns the free memory of this rank's device in GiB, or `GIB_ELSEWHERE` for a GPU that this machine lacks."""
    if ranks.on_gpu(device):
        return torch.cuda.mem_get_info()[0] / 2**30 if torch.cuda.is_available() else GIB_ELSEWHERE
    return main_memory.free_gib()
