"""What runs on which machine."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from grpo.config import TrainConfig, UserError

LEARNER, SERVER = "learner", "servers"
SERVER_PORTS = 100
"""From `hardware.first_port` on, ranks meet; servers listen this many ports higher."""


@dataclass(frozen=True, slots=True)
class Seat:
    """One machine's part: its command, and how long it may take to end once it is asked to."""

    role: str
    index: int
    host: str
    command: tuple[str, ...]
    grace_seconds: float

    @property
    def name(self) -> str:
        return f"{self.role}-{self.index}"


def seats_of(config: TrainConfig, words: Sequence[str], hosts: Sequence[str]) -> list[Seat]:
    """Servers and learners of a run whose overrides are `words`, over `hosts`: learners first.

    Raises `UserError` where there are too few or too many hosts, and for machines that serve a run without servers.
    """
    hardware, servers = config.hardware, config.rollout.servers
    needed = hardware.learner_nodes + hardware.server_nodes
    if len(hosts) != needed:
        raise UserError(
            f"hardware.learner_nodes={hardware.learner_nodes} and hardware.server_nodes={hardware.server_nodes} need "
            f"{needed} machines, and there are {len(hosts)} ({', '.join(hosts)}): change hardware.hosts or the numbers"
        )
    if hardware.server_nodes and (config.rollout.engine != "vllm_server" or servers.urls):
        raise UserError("hardware.server_nodes needs rollout=vllm_server and no rollout.servers.urls")
    learning, serving = hosts[: hardware.learner_nodes], hosts[hardware.learner_nodes :]
    ports = [hardware.first_port + SERVER_PORTS + index * servers.replicas for index in range(hardware.server_nodes)]
    urls = [
        f"http://{host}:{port + replica}"
        for host, port in zip(serving, ports, strict=True)
        for replica in range(servers.replicas)
    ]
    elsewhere = [f"rollout.servers.host={learning[0]}", f"rollout.servers.urls=[{','.join(urls)}]"] if urls else []
    grpo = (sys.executable, "-m", "grpo.cli")
    seats = [
        Seat(SERVER, index, host, (*grpo, "serve", *words, f"rollout.servers.host={host}", *_port(port)), 20.0)
        for index, (host, port) in enumerate(zip(serving, ports, strict=True))
    ]
    # A round and a checkpoint may come between the request to stop and the end.
    grace = config.rollout.deadline_seconds + config.learner.deadline_seconds
    for index, host in enumerate(learning):
        ranks = [
            *(sys.executable, "-m", "grpo.launch.ranks", f"--nproc-per-node={hardware.ranks_per_node}"),
            *(f"--nnodes={hardware.learner_nodes}", f"--node-rank={index}", f"--shutdown-timeout={grace:.0f}"),
            *(f"--master-addr={learning[0]}", f"--master-port={hardware.first_port}"),
        ]
        seats.append(Seat(LEARNER, index, host, (*ranks, *grpo[1:], "train", *words, *elsewhere), grace))
    return seats


def _port(port: int) -> list[str]:
    return [f"rollout.servers.port={port}", "rollout.servers.first_gpu=0"]


def seat_table(config: TrainConfig, seats: Sequence[Seat]) -> list[tuple[str, str]]:
    """Rows (machine, what it does)."""
    hardware, servers = config.hardware, config.rollout.servers
    spread = f" of {servers.tensor_parallel} GPUs each" if servers.tensor_parallel > 1 else ""
    serving = f"{servers.replicas} vLLM servers{spread}"
    inside = config.rollout.engine == "vllm_server" and not servers.urls and not hardware.server_nodes
    learning = f"{hardware.ranks_per_node} learner ranks" + (f", {serving} beside the first" if inside else "")
    return [(seat.host, learning if seat.role == LEARNER else serving) for seat in seats]
