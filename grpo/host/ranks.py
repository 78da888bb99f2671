"""This process's learner rank, the number of ranks, and its device, as torchrun's environment variables say.

Every other place asks here or, once torch.distributed runs, the `Collective`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from grpo.config import TrainConfig, UserError

if TYPE_CHECKING:
    import torch


def launched() -> bool:
    """Whether torchrun has started this process."""
    return "LOCAL_RANK" in os.environ


def world_size() -> int:
    """The number of learner ranks on all machines; 1 without a launcher."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_world_size() -> int:
    """The number of learner ranks on this machine; 1 without a launcher."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def rank() -> int:
    """This process's learner rank; 0 without a launcher."""
    return int(os.environ.get("RANK", "0"))


def device(config: TrainConfig) -> torch.device:
    """This rank's device. Raises UserError when a GPU is asked for and there is none."""
    import torch

    if config.device == "cpu" or (config.device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UserError("device=cuda, and torch sees no GPU here: `grpo doctor` tells why; device=cpu runs without one")
    chosen = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(chosen)
    return chosen
