"""This module chooses a run's ports: from `hardware.first_port` on, or other ones if some of these are taken."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import replace

from grpo.config import TrainConfig, UserError
from grpo.host.network import family_of
from grpo.host.terminal import say
from grpo.launch.machines import Machine
from grpo.launch.seats import SERVER_PORTS

LAST_PORT = 32_000
"""Ports above this are given to outgoing connections (see /proc/sys/net/ipv4/ip_local_port_range)."""


def with_free_ports(config: TrainConfig, machines: Sequence[Machine]) -> TrainConfig:
    """Returns the config, with another `hardware.first_port` if one of the run's ports is taken.

    Only a run on this machine alone gets other ports, since the ports of other machines cannot be checked from here.
    Raises UserError when a port is taken here and the run uses other machines too, and when no free ports are left.
    """
    first = config.hardware.first_port
    port = _taken(config, machines, first)
    if port is None:
        return config
    if not all(machine.is_here for machine in machines):
        raise UserError(f"port {port} of this machine is taken, perhaps by another run: change hardware.first_port")
    width = 2 * SERVER_PORTS
    for start in range(first + width, LAST_PORT, width):
        if _taken(config, machines, start) is None:
            say(f"grpo: port {port} is taken, perhaps by another run: this run uses the ports from {start} on")
            return replace(config, hardware=replace(config.hardware, first_port=start))
    raise UserError(f"all ports from {first} on are taken: change hardware.first_port")


def _taken(config: TrainConfig, machines: Sequence[Machine], first: int) -> int | None:
    """Returns the first of the run's ports on this machine that is taken, or None if all are free."""
    servers = range(first + SERVER_PORTS, first + SERVER_PORTS + config.rollout.servers.replicas)
    machine_ports = [(machine, first) for machine in machines[:1]]
    for index, machine in enumerate(machines[config.hardware.learner_nodes :]):
        machine_ports += [(machine, port + index * len(servers)) for port in servers]
    return next((port for machine, port in machine_ports if machine.is_here and not _free(machine.address, port)), None)


def _free(address: str, port: int) -> bool:
    """Tells whether a server can listen on this port."""
    try:
        socket.create_server((address, port), family=family_of(address)).close()
    except OSError:
        return False
    return True
