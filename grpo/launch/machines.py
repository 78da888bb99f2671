"""The machines of a run: what they are called, and where they are reached."""

from __future__ import annotations

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
    """`name` is for people, ssh and srun; at `address` the run's other machines reach it."""

    name: str
    address: str

    @property
    def is_here(self) -> bool:
        return _is_loopback(self.address) or bool(interface_of(self.address))


def machines_of(hosts: Sequence[str], shell: str, count: int) -> list[Machine]:
    """The machines: as configured, those of the Slurm allocation, or this one `count` times.

    Raises `UserError` outside of an allocation, for machines elsewhere that only this one's shell is given for, and for
    names that mean nothing here or lead nowhere.
    """
    if shell == "here":
        if set(hosts) - {LOOPBACK, "localhost"}:
            raise UserError("hardware.hosts are other machines: set hardware.shell=ssh")
        return [Machine(host, LOOPBACK) for host in hosts or [LOOPBACK] * count]
    names = hosts or (_allocation() if shell == "srun" else [])
    addresses = [_address(name) for name in names]
    elsewhere = [address for address in addresses if not _is_loopback(address)]
    # A machine's own name may mean its loopback interface (127.0.1.1 on Debian), where no other machine reaches it.
    own = _own_address(elsewhere[0]) if elsewhere else LOOPBACK
    return [
        Machine(name, own if _is_loopback(address) else address) for name, address in zip(names, addresses, strict=True)
    ]


def _allocation() -> list[str]:
    allocation = os.environ.get("SLURM_JOB_NODELIST")
    if not allocation:
        raise UserError("hardware.shell=srun needs a Slurm allocation: start it with sbatch launch/slurm.sh")
    shown = subprocess.run(["scontrol", "show", "hostnames", allocation], capture_output=True, text=True, check=True)
    return shown.stdout.split()


def _address(name: str) -> str:
    try:
        return socket.gethostbyname(name)
    except OSError as error:
        raise UserError(
            f"hardware.hosts: this machine knows no address of {name!r} ({error.strerror}): write its address, or add "
            "the name to /etc/hosts"
        ) from error


def _own_address(towards: str) -> str:
    try:
        return own_address(towards)
    except OSError as error:
        raise UserError(f"hardware.hosts: no way leads from this machine to {towards} ({error.strerror})") from error


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback
