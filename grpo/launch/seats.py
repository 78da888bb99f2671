"""What runs on which machine."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from grpo.config import TrainConfig, UserError
from grpo.launch.machines import Machine

LEARNER, SERVER = "learner", "servers"
SERVER_PORTS = 100
"""From `hardware.first_port` on, ranks meet; servers listen this many ports higher."""


@dataclass(frozen=True, slots=True)
class Seat:
    """One machine's part: its command, and how long it may take to end once it is asked to."""

    role: str
    index: int
    machine: Machine
    command: tuple[str, ...]
    grace_seconds: float

    @property
    def name(self) -> str:
        return f"{self.role}-{self.index}"


def seats_of(config: TrainConfig, words: Sequence[str], machines: Sequence[Machine]) -> list[Seat]:
    """Servers and learners of a run whose overrides are `words`, over `machines`: learners first.

    Raises `UserError` where there are too few or too many, and for machines that serve a run without servers.
    """
    hardware, servers = config.hardware, config.rollout.servers
    needed = hardware.learner_nodes + hardware.server_nodes
    if len(machines) != needed:
        raise UserError(
            f"hardware.learner_nodes={hardware.learner_nodes} and hardware.server_nodes={hardware.server_nodes} need "
            f"{needed} machines, and there are {len(machines)} ({', '.join(each.name for each in machines)}): change "
            "hardware.hosts or the numbers"
        )
    if hardware.server_nodes and (config.rollout.engine != "vllm_server" or servers.urls):
        raise UserError("hardware.server_nodes needs rollout=vllm_server and no rollout.servers.urls")
    learning, serving = machines[: hardware.learner_nodes], machines[hardware.learner_nodes :]
    ports = [hardware.first_port + SERVER_PORTS + index * servers.replicas for index in range(hardware.server_nodes)]
    urls = [
        f"http://{machine.address}:{port + replica}"
        for machine, port in zip(serving, ports, strict=True)
        for replica in range(servers.replicas)
    ]
    first = learning[0].address
    elsewhere = [f"rollout.servers.host={first}", f"rollout.servers.urls=[{','.join(urls)}]"] if urls else []
    grpo = (sys.executable, "-m", "grpo.cli")
    seats = [
        Seat(SERVER, index, machine, (*grpo, "serve", *words, *_at(machine.address, port)), 20.0)
        for index, (machine, port) in enumerate(zip(serving, ports, strict=True))
    ]
    # A round and a checkpoint may come between the request to stop and the end.
    grace = config.rollout.deadline_seconds + config.learner.deadline_seconds
    for index, machine in enumerate(learning):
        ranks = [
            *(sys.executable, "-m", "grpo.launch.ranks", f"--nproc-per-node={hardware.ranks_per_node}"),
            *(f"--nnodes={hardware.learner_nodes}", f"--node-rank={index}", f"--shutdown-timeout={grace:.0f}"),
            *(f"--master-addr={first}", f"--master-port={hardware.first_port}"),
        ]
        seats.append(Seat(LEARNER, index, machine, (*ranks, *grpo[1:], "train", *words, *elsewhere), grace))
    return seats


def _at(address: str, port: int) -> list[str]:
    return [f"rollout.servers.host={address}", f"rollout.servers.port={port}", "rollout.servers.first_gpu=0"]


def seat_table(config: TrainConfig, seats: Sequence[Seat]) -> list[tuple[str, str]]:
    """Rows (machine, what it does)."""
    hardware, servers = config.hardware, config.rollout.servers
    spread = f" of {servers.tensor_parallel} GPUs each" if servers.tensor_parallel > 1 else ""
    serving = f"{servers.replicas} vLLM servers{spread}"
    inside = config.rollout.engine == "vllm_server" and not servers.urls and not hardware.server_nodes
    learning = f"{hardware.ranks_per_node} learner ranks" + (f", {serving} beside the first" if inside else "")
    return [(seat.machine.name, learning if seat.role == LEARNER else serving) for seat in seats]
