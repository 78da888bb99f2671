"""This module finds a machine's place among those that all start the same command (`hardware.shell=each`).

A launcher tells each machine its number, and nearly all tell the address of the first one. Machine 0 learns with the
first ranks. The names of the variables are those of the launchers' documentation: SkyPilot "Distributed multi-node
jobs", dstack "Distributed tasks", Kubeflow Trainer (torchrun's own PET_*), PyTorchJob and PAI "Built-in environment
variables" (RANK and WORLD_SIZE count machines), Kubernetes "Indexed Job", srun "Output environment variables".
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from grpo.config.errors import UserError, require
from grpo.config.run import HardwareConfig
from grpo.host.network import LOOPBACK


class Variables(NamedTuple):
    """These environment variables tell a process of a launcher its place. "" stands for what a launcher does not tell.

    `first` holds the first machine's address, or a list that begins with it. `copy` numbers the processes on a machine.
    """

    launcher: str
    index: str
    count: str = ""
    first: str = ""
    port: str = ""
    copy: str = ""


LAUNCHERS = (
    Variables("SkyPilot", "SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES", "SKYPILOT_NODE_IPS"),
    Variables("dstack", "DSTACK_NODE_RANK", "DSTACK_NODES_NUM", "DSTACK_MASTER_NODE_IP"),
    Variables("Kubeflow Trainer", "PET_NODE_RANK", "PET_NNODES", "PET_MASTER_ADDR", "PET_MASTER_PORT"),
    # So do PyTorchJob, PAI, AIHC, Ray Train with one worker a machine, and torchrun --nproc-per-node=1.
    Variables("the launcher", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK"),
    # `mpirun -x MASTER_ADDR` or hardware.hosts tells the address, since Open MPI does not.
    Variables(
        *("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        *("MASTER_ADDR", "MASTER_PORT", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ),
    # JobSet and Indexed Jobs number the pods' names, too.
    Variables("Kubernetes", "JOB_COMPLETION_INDEX"),
    # Only srun sets these, and a job's script, which runs on the first machine alone, has none of them.
    Variables("Slurm", "SLURM_NODEID", "SLURM_STEP_NUM_NODES", "SLURM_STEP_NODELIST", "", "SLURM_LOCALID"),
)
"""A launcher within another one comes first, such as torchrun in a job of Slurm."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place is a machine's number, from 0 on, and where the first machine is met: its name or address, and a port."""

    index: int
    first: str
    port: int


def place_of(environment: Mapping[str, str], own_name: str, hardware: HardwareConfig) -> Place:
    """Returns this machine's place by its environment variables and its full name.

    Raises `UserError` where no launcher has set any, where they do not fit the configured number of machines, and where
    the first machine's address is not known.
    """
    needed = hardware.learner_nodes + hardware.server_nodes
    known = next((known for known in LAUNCHERS if environment.get(known.index) and _counts(known, environment)), None)
    if known is None:
        names = ", ".join(dict.fromkeys(known.index for known in LAUNCHERS))
        raise UserError(
            f"hardware.shell=each finds no launcher's number of this machine ({names}): set RANK, WORLD_SIZE and "
            "MASTER_ADDR on every machine, or use hardware.shell=ssh; under Slurm start it by srun --ntasks-per-node=1"
        )
    index = _number(known.index, environment)
    count = _number(known.count, environment) if known.count else needed
    require(
        count == needed,
        f"hardware.learner_nodes={hardware.learner_nodes} and hardware.server_nodes={hardware.server_nodes} need "
        f"{needed} machines, but {known.launcher} has started {count}: change these numbers",
    )
    require(
        index < count,
        f"{known.launcher} has started {count} machines, and this one has the number {index}, though they are counted "
        f"from 0: correct {known.index}",
    )
    require(
        environment.get(known.copy, "0") == "0",
        f"hardware.shell=each is started once on each machine, and {known.launcher} starts it several times here "
        f"({known.copy}={environment.get(known.copy)}): ask for one process a machine; it starts the ranks itself",
    )
    first = (
        LOOPBACK
        if needed == 1
        else next(iter(hardware.hosts), "")
        or first_of(environment.get(known.first, ""))
        or _first_name(own_name, index)
    )
    require(
        bool(first),
        f"{known.launcher} does not tell the first machine's address: name it by hardware.hosts=[ADDRESS]"
        + (f", or set {known.first}" if known.first else ""),
    )
    port = _number(known.port, environment) if environment.get(known.port) else hardware.first_port
    require(0 < port < 2**16, f"the environment variable {known.port}={port} is no port: give one from 1 to 65535")
    return Place(index, first, port)


def _counts(known: Variables, environment: Mapping[str, str]) -> bool:
    """Tells whether a launcher has also set how many machines there are, if it does so at all."""
    return not known.count or bool(environment.get(known.count))


def _number(name: str, environment: Mapping[str, str]) -> int:
    value = environment[name]
    # torchrun's PET_NNODES may be a range, 1:4, of which a run takes one number.
    require(value.isdecimal(), f"the environment variable {name}={value!r} is no whole number: correct it")
    return int(value)


def first_of(names: str) -> str:
    """Returns the first of several machines, which blanks, lines or commas separate, or Slurm's brackets abbreviate.

    >>> first_of("10.0.0.1\\n10.0.0.2"), first_of("gpu[03-07,12],login"), first_of("rack[1-2]n[0,4]"), first_of("")
    ('10.0.0.1', 'gpu03', 'rack1n0', '')
    """
    first = re.split(r"[\s,](?![^\[]*\])", names.strip())[0]
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", first)


def _first_name(own_name: str, index: int) -> str:
    """Returns the name of the first of pods whose names end with their numbers, or "" where this one's does not.

    >>> _first_name("train-workers-0-3.train.default.svc.cluster.local", 3), _first_name("box", 3)
    ('train-workers-0-0.train.default.svc.cluster.local', '')
    """
    numbered = re.fullmatch(rf"([^.]*-){index}(\..*)?", own_name)
    return f"{numbered[1]}0{numbered[2] or ''}" if numbered else ""
