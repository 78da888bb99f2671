"""This module finds the machines of a run: their names and their addresses."""

import ipaddress
import os
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from grpo.config import UserError
from grpo.host.network import LOOPBACK, interface_of, own_address


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine has a `name` for people, ssh and srun, and an `address` at which the run's other machines reach it."""

    name: str
    address: str

    @property
    def is_here(self) -> bool:
        """Says whether this process runs on the machine."""
        return _is_loopback(self.address) or bool(interface_of(self.address))


def machines_of(hosts: Sequence[str], shell: str, count: int) -> list[Machine]:
    """Returns the configured machines, those of the Slurm allocation, or this machine `count` times.

    Raises `UserError` when srun is configured outside of an allocation, when other machines are configured without a
    shell that reaches them, and for names without an address or addresses without a route.
    """
    if shell == "here":
        if set(hosts) - {LOOPBACK, "localhost"}:
            raise UserError("hardware.hosts names other machines: set hardware.shell=ssh to reach them")
        return [Machine(host, LOOPBACK) for host in hosts or [LOOPBACK] * count]
    if shell == "each":
        # The machines are known only once they have met, see `grpo.launch.meeting`.
        return [Machine(f"machine {index}", LOOPBACK) for index in range(count)]
    names = hosts or (_allocation() if shell == "srun" else [])
    addresses = [_address(name) for name in names]
    remote = [address for address in addresses if not _is_loopback(address)]
    # A machine's own name may mean its loopback interface (127.0.1.1 on Debian), where no other machine reaches it.
    here = _own_address(remote[0]) if remote else LOOPBACK
    return [
        Machine(name, here if _is_loopback(address) else address)
        for name, address in zip(names, addresses, strict=True)
    ]


def _allocation() -> list[str]:
    """Returns the names of the machines in the Slurm allocation."""
    allocation = os.environ.get("SLURM_JOB_NODELIST")
    if not allocation:
        raise UserError("hardware.shell=srun needs a Slurm allocation: start it with sbatch launch/slurm.sh")
    listed = subprocess.run(["scontrol", "show", "hostnames", allocation], capture_output=True, text=True)
    if listed.returncode:
        raise UserError(
            f"scontrol show hostnames {allocation} failed ({listed.stderr.strip()[:200]}): name the machines by "
            "hardware.hosts=[…] and hardware.shell=ssh"
        )
    return listed.stdout.split()


def _address(name: str) -> str:
    """Returns the address of a name or an address, of IPv4 if there is one, else of IPv6.

    Raises `UserError` when this machine cannot find one.
    """
    try:
        entries = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", "no name of a machine")
        raise UserError(
            f"hardware.hosts: this machine cannot find the address of {name!r} ({reason}): write the address "
            "instead, or add the name to /etc/hosts"
        ) from error
    # The ranks of DeepSpeed and torchrun meet over either, but other machines of a run may lack IPv6.
    *_, address = min(entries, key=lambda entry: entry[0] != socket.AF_INET)
    return str(address[0])


def _own_address(towards: str) -> str:
    """Returns the address from which this machine reaches `towards`. Raises `UserError` when it does not reach it."""
    try:
        return own_address(towards)
    except OSError as error:
        raise UserError(
            f"hardware.hosts: this machine has no route to {towards} ({error.strerror}): check the address and the "
            "network"
        ) from error


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback
