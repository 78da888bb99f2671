"""This module reads torchrun's environment variables: this process's learner rank, the number of ranks, the device.

No other module sets them, and only `grpo.launch.membership` reads them besides. Once torch.distributed runs, the
`Collective` also knows rank and number of ranks.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import TYPE_CHECKING

from grpo.config.errors import UserError, require
from grpo.config.run import HardwareConfig
from grpo.config.start import START_VARIABLE, only_here
from grpo.host import main_memory
from grpo.host.kernels import too_old
from grpo.host.network import LOOPBACK, free_port

if TYPE_CHECKING:
    import torch


NO_GPU = (
    "device=cuda, but torch sees no GPU here: run `grpo doctor` to find out why, or set device=cpu to run without one"
)

PROCESSES = (
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MPI", "PMI_RANK", "PMI_SIZE"),
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
"""These launchers number their processes by variables that `grpo train` does not read."""

ALONE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": LOOPBACK}
"""These variables, and a port, make a process the only rank."""


def launched() -> bool:
    """Tells whether torchrun has started this process."""
    return "LOCAL_RANK" in os.environ


def check_environment(output_dir: str) -> None:
    """Raises `UserError` where torchrun's variables are wrong, or only some of them are set, and where ranks would each
    name another `output_dir`."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        _number(name, 0)
    port = _number("MASTER_PORT", 1)
    require(0 < port < 2**16, f"the environment variable MASTER_PORT={port} is no port: unset or correct it")
    missing_names = [name for name in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    require(
        "RANK" not in os.environ or not missing_names,
        f"the environment variable RANK is set, but not {' and '.join(missing_names)}: start ranks by `grpo launch` or "
        "torchrun, or unset RANK",
    )
    require(
        "RANK" in os.environ or world_size() == 1,
        f"the environment variable WORLD_SIZE={world_size()} is set, but not RANK: start ranks by `grpo launch` or "
        "torchrun, or unset WORLD_SIZE",
    )
    require(
        rank() < world_size(),
        f"the environment variable RANK is {rank()} and WORLD_SIZE {world_size()}, and ranks are numbered from 0 to "
        "WORLD_SIZE − 1: start them by `grpo launch` or torchrun, or unset both",
    )
    require(
        _number("LOCAL_RANK", 0) < local_world_size() <= world_size() or not launched(),
        f"the environment variables LOCAL_RANK={os.environ.get('LOCAL_RANK')}, LOCAL_WORLD_SIZE={local_world_size()} "
        f"and WORLD_SIZE={world_size()} contradict one another: start ranks by `grpo launch` or torchrun, or unset "
        "them",
    )
    require(
        "RANK" not in os.environ or launched() or world_size() == 1,
        f"the environment variables RANK={rank()} and WORLD_SIZE={world_size()} are set without LOCAL_RANK, as "
        "PyTorchJob and PAI do once for each machine: start the same words by `grpo launch … hardware.shell=each "
        f"hardware.learner_nodes={world_size()}`, or ranks by torchrun, or unset RANK",
    )
    require(
        world_size() == 1 or not only_here(output_dir),
        f"each of the {world_size()} ranks would write into a folder of its own, since output_dir is named by the "
        f"start of its process or its moment: name output_dir, set {START_VARIABLE} alike for all ranks, or start them "
        "by `grpo launch`",
    )


def refuse_unranked() -> None:
    """Raises `UserError` in all but the first of several processes that a launcher has started without torchrun's
    variables, as each would be a run of its own."""
    for launcher, number, count in PROCESSES:
        place = f"{os.environ.get(number)} of {os.environ.get(count, 'several')}"
        require(
            "RANK" in os.environ or not _number(number, 0),
            f"this is process {place} that {launcher} has started, and each would be a run of its own: start the "
            "same words once on each machine by `grpo launch … "
            f"hardware.shell=each`, which starts the ranks, or unset {number} for a run of its own",
        )


def _number(name: str, default: int) -> int:
    """Reads a variable that torchrun sets. Raises `UserError` for anything but digits."""
    value = os.environ.get(name, str(default))
    require(value.isdecimal(), f"the environment variable {name}={value!r} is no whole number: unset or correct it")
    return int(value)


def set_alone() -> bool:
    """Makes this process the only rank, unless a launcher has given it a rank. Returns whether it is the only rank.

    DeepSpeed reads the variables too, and wants an address although nobody is met there. A job of one machine may have
    set some of them, and so may a library that was imported.
    """
    if launched() and "RANK" in os.environ:
        return False
    os.environ.update(ALONE, MASTER_PORT=str(free_port()))
    return True


def forget_launcher() -> None:
    """Unsets what a launcher has told this machine, so that ranks and servers started here see only their own."""
    for name in [name for name in os.environ if name in (*ALONE, "MASTER_PORT") or name.startswith("PET_")]:
        del os.environ[name]


def unset_alone() -> None:
    """Undoes `set_alone`. Called only where it returned True."""
    for name in (*ALONE, "MASTER_PORT"):
        os.environ.pop(name, None)


def world_size() -> int:
    """Returns the number of learner ranks on all machines, which is 1 without a launcher."""
    return _number("WORLD_SIZE", 1)


def local_world_size() -> int:
    """Returns the number of learner ranks on this machine, which is 1 without a launcher."""
    return _number("LOCAL_WORLD_SIZE", 1)


def counts(hardware: HardwareConfig, dry_run: bool) -> tuple[int, int]:
    """Returns the numbers of learner ranks on all machines, and on this one.

    For a dry run without a launcher, these are the numbers of ranks that `grpo launch` would start.
    """
    if dry_run and not launched():
        return hardware.ranks, hardware.ranks_per_node
    return world_size(), local_world_size()


def own_cores() -> int:
    """Returns how many of this machine's processor cores each of its learner ranks can have."""
    return max(1, main_memory.cores() // local_world_size())


def rank() -> int:
    """Returns this process's learner rank, which is 0 without a launcher."""
    return _number("RANK", 0)


def refuse_missing_driver(device: str) -> None:
    """Raises `UserError` for device=cuda where torch cannot see a GPU, without importing torch.

    CUDA, also within containers and Windows, needs the driver's library, which torch loads by this name. AMD's GPUs are
    reached through /dev/kfd. Where either is there, `device` finds out more.
    """
    if device != "cuda" or Path("/dev/kfd").exists():
        return
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise UserError(NO_GPU) from None


def on_gpu(device: str) -> bool:
    """Tells whether a run uses GPUs: with device=cuda, or with device=auto if torch sees a GPU."""
    import torch

    return device == "cuda" or (device == "auto" and torch.cuda.is_available())


def device(name: str) -> torch.device:
    """Returns this rank's device by the configured one. Raises `UserError` if that is a GPU and this rank has none, or
    one that is too old."""
    import torch

    if not on_gpu(name):
        return torch.device("cpu")
    require(torch.cuda.is_available(), NO_GPU)
    local, count = _number("LOCAL_RANK", 0), torch.cuda.device_count()
    require(
        local < count,
        f"there is no GPU for learner rank {local} of this machine (counted from 0), since torch sees {count}: set "
        f"hardware.ranks_per_node={count}, or show all GPUs to every rank (CUDA_VISIBLE_DEVICES)",
    )
    device_of_rank = torch.device("cuda", local)
    torch.cuda.set_device(device_of_rank)
    remedy = too_old(torch.cuda.get_device_capability(device_of_rank))
    require(not remedy, f"GPU {local} cannot be used, since its {remedy}, or set device=cpu")
    return device_of_rank
