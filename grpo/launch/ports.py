"""This module holds a run's ports: from `hardware.first_port` on, or other ones if some of these are taken."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from grpo.config import TrainConfig, UserError
from grpo.host.ports import HeldPort, held_ports
from grpo.host.terminal import say
from grpo.launch.machines import Machine
from grpo.launch.seats import SERVER_PORTS

LAST_PORT = 32_000
"""Ports above this are given to outgoing connections (see /proc/sys/net/ipv4/ip_local_port_range)."""


def with_held_ports(config: TrainConfig, machines: Sequence[Machine]) -> tuple[TrainConfig, list[HeldPort]]:
    """Holds the run's ports on this machine. Returns them with the config, which has another `hardware.first_port` if
    one of the ports is taken.

    Only a run on this machine alone gets other ports, since the ports of other machines cannot be held from here.
    Raises UserError when a port is taken here and the run uses other machines too, and when no free ports are left.
    """
    first, width = config.hardware.first_port, 2 * SERVER_PORTS
    taken = ""
    for start in (first, *range(first + width, LAST_PORT, width)):
        try:
            held = held_ports(_ports_here(config, machines, start))
        except OSError as error:
            if not all(machine.is_here for machine in machines):
                raise UserError(
                    f"port {error.filename} of this machine is taken, perhaps by another run: change "
                    "hardware.first_port"
                ) from error
            taken = taken or error.filename
            continue
        if start != first:
            say(f"grpo: port {taken} is taken, perhaps by another run: this run uses the ports from {start} on")
        return replace(config, hardware=replace(config.hardware, first_port=start)), held
    raise UserError(f"all ports from {first} on are taken: change hardware.first_port")


def _ports_here(config: TrainConfig, machines: Sequence[Machine], first: int) -> Iterator[tuple[str, int]]:
    """Yields address and number of each port that the run uses on this machine."""
    if config.hardware.learner_nodes > 1 and machines and machines[0].is_here:
        yield machines[0].address, first
    num_servers = config.rollout.servers.replicas
    for index, machine in enumerate(machines[config.hardware.learner_nodes :]):
        if machine.is_here:
            for replica in range(num_servers):
                yield machine.address, first + SERVER_PORTS + index * num_servers + replica
