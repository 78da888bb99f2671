"""The ports of a run: those of `hardware.first_port`, or others where another run of this machine has them."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import replace

from grpo.config import TrainConfig, UserError
from grpo.host.terminal import say
from grpo.launch.machines import Machine
from grpo.launch.seats import SERVER_PORTS

LAST_PORT = 32_000
"""Higher ones are those that connections take for themselves, see /proc/sys/net/ipv4/ip_local_port_range."""


def with_free_ports(config: TrainConfig, machines: Sequence[Machine]) -> TrainConfig:
    """The config, with another `hardware.first_port` where the run is on this machine alone and one of its ports is
    taken. Raises UserError where one is taken here and the run is on other machines too, or where none are free."""
    first = config.hardware.first_port
    taken = _taken(config, machines, first)
    if taken is None:
        return config
    if not all(machine.is_here for machine in machines):
        raise UserError(f"port {taken} of this machine is taken, perhaps by another run: change hardware.first_port")
    width = 2 * SERVER_PORTS
    for other in range(first + width, LAST_PORT, width):
        if _taken(config, machines, other) is None:
            say(f"grpo: port {taken} is taken, perhaps by another run: this one has those from {other} on")
            return replace(config, hardware=replace(config.hardware, first_port=other))
    raise UserError(f"no ports from {first} on are free: change hardware.first_port")


def _taken(config: TrainConfig, machines: Sequence[Machine], first: int) -> int | None:
    """The first of the run's ports that something listens on here."""
    servers = range(first + SERVER_PORTS, first + SERVER_PORTS + config.rollout.servers.replicas)
    needed = [(machines[0], first)]
    for index, machine in enumerate(machines[config.hardware.learner_nodes :]):
        needed += [(machine, port + index * len(servers)) for port in servers]
    return next((port for machine, port in needed if machine.is_here and not _free(machine.address, port)), None)


def _free(address: str, port: int) -> bool:
    try:
        socket.create_server((address, port)).close()
    except OSError:
        return False
    return True
