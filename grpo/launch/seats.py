"""This module decides which command runs on which machine."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from grpo.config import TrainConfig, UserError
from grpo.config.placement import require_length
from grpo.host.network import url_of
from grpo.launch.machines import Machine

LEARNER, SERVER = "learner", "servers"
SERVER_PORTS = 100
"""Servers listen on ports this much above `hardware.first_port`, at which the ranks meet."""


@dataclass(frozen=True, slots=True)
class Seat:
    """A seat is one machine's part of a run: its command, and the seconds it may take to end when asked to stop."""

    role: str
    index: int
    machine: Machine
    command: tuple[str, ...]
    grace_seconds: float

    @property
    def name(self) -> str:
        """Returns the name of the seat in messages and log files, such as ``"learner-0"``."""
        return f"{self.role}-{self.index}"


def seats_of(config: TrainConfig, words: Sequence[str], machines: Sequence[Machine]) -> list[Seat]:
    """Assigns the servers and learners of a run to `machines`. `words` are the overrides of the run.

    The first machines are learners. In the returned list, servers come first, since they are started first. Raises
    `UserError` when there are too few or too many machines, and when machines should serve a run that uses no servers.
    """
    hardware, servers = config.hardware, config.rollout.servers
    needed = hardware.learner_nodes + hardware.server_nodes
    if not machines:
        raise UserError(f"the run needs {needed} machines: name them, as in hardware.hosts=[a,b]")
    if len(machines) != needed:
        raise UserError(
            f"hardware.learner_nodes={hardware.learner_nodes} and hardware.server_nodes={hardware.server_nodes} need "
            f"{needed} machines, but there are {len(machines)} ({', '.join(machine.name for machine in machines)}): "
            "change hardware.hosts or these numbers"
        )
    if hardware.server_nodes and (config.rollout.engine != "vllm_server" or servers.urls):
        raise UserError("hardware.server_nodes needs rollout=vllm_server and no rollout.servers.urls")
    if hardware.server_nodes:
        require_length(config.model)
    learning, serving = machines[: hardware.learner_nodes], machines[hardware.learner_nodes :]
    ports = [hardware.first_port + SERVER_PORTS + index * servers.replicas for index in range(hardware.server_nodes)]
    urls = [
        url_of(machine.address, port + replica)
        for machine, port in zip(serving, ports, strict=True)
        for replica in range(servers.replicas)
    ]
    first = learning[0].address
    elsewhere = [f"rollout.servers.host={first}", f"rollout.servers.urls={json.dumps(urls)}"] if urls else []
    grpo = (sys.executable, "-m", "grpo.cli")
    seats = [
        Seat(SERVER, index, machine, (*grpo, "serve", *words, *_at(machine.address, port)), 20.0)
        for index, (machine, port) in enumerate(zip(serving, ports, strict=True))
    ]
    # After a request to stop, a learner still finishes its round and saves a checkpoint.
    grace = config.checkpoint.grace_seconds or config.rollout.deadline_seconds + config.learner.deadline_seconds
    for index, machine in enumerate(learning):
        ranks = [
            *(sys.executable, "-m", "grpo.launch.torchrun", f"--nproc-per-node={hardware.ranks_per_node}"),
            *(f"--nnodes={hardware.learner_nodes}", f"--shutdown-timeout={grace:.0f}"),
        ]
        if hardware.learner_nodes > 1:
            ranks += [f"--node-rank={index}", f"--master-addr={first}", f"--master-port={hardware.first_port}"]
        seats.append(Seat(LEARNER, index, machine, (*ranks, *grpo[1:], "train", *words, *elsewhere), grace))
    return seats


def _at(address: str, port: int) -> list[str]:
    """Returns the overrides that make servers listen at `address`, on ports from `port` on."""
    return [f"rollout.servers.host={address}", f"rollout.servers.port={port}", "rollout.servers.first_gpu=0"]


def seat_table(config: TrainConfig, seats: Sequence[Seat]) -> list[tuple[str, str]]:
    """Returns rows (machine, what it does), one for each seat."""
    hardware, servers = config.hardware, config.rollout.servers
    spread = f" of {servers.tensor_parallel} GPUs each" if servers.tensor_parallel > 1 else ""
    serving = f"{servers.replicas} vLLM servers{spread}"
    inside = config.rollout.engine == "vllm_server" and not servers.urls and not hardware.server_nodes
    learning = f"{hardware.ranks_per_node} learner ranks" + (f", {serving} beside the first" if inside else "")
    return [(seat.machine.name, learning if seat.role == LEARNER else serving) for seat in seats]
