"""This module holds ports of this machine for servers that begin to listen only after many seconds of imports.

A reserved port is given neither to another process that holds ports, of whatever user, nor to a program that asks for
any free one. The server itself can listen there. A hold ends with the process that has it, even if that is killed.
"""

import errno
import os
import socket
from collections.abc import Iterable
from contextlib import ExitStack, closing

from grpo.config.errors import UserError
from grpo.host.network import family_of

RESERVED_VARIABLE = "GRPO_HELD_PORTS"
"""This environment variable names ports, with spaces between, that the process which started this one holds for it."""


MOST_TRIES = 8
"""The search for a free port makes at most this many tries."""


class ReservedPort:
    """A reserved port is a socket that is bound and does not listen, and a lock. Servers bind beside such a socket,
    since they set SO_REUSEADDR as it does. The lock keeps other holders away."""

    def __init__(self, host: str, port: int = 0):
        """Holds `port` at `host`, an address of this machine, and keeps it from holders at all other addresses. Port 0
        stands for any free one. Raises `OSError`."""
        # The kernel may choose a port that somebody holds at another address.
        for tries_left in reversed(range(1 if port else MOST_TRIES)):
            self._bound = socket.socket(family_of(host))
            # The kernel keeps these names apart from files, gives all users one set of them, and forgets those of
            # processes that have ended. Containers share them where they share ports.
            self._lock = socket.socket(socket.AF_UNIX)
            try:
                self._hold(host, port)
                return
            except OSError:
                self.close()
                if not tries_left:
                    raise

    def _hold(self, host: str, port: int) -> None:
        # A port that a server left a moment ago counts as free.
        self._bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._bound.bind((host, port))
        self.port: int = self._bound.getsockname()[1]
        if str(self.port) not in os.environ.get(RESERVED_VARIABLE, "").split():
            self._lock.bind(f"\0grpo holds {self.port}")

    def close(self) -> None:
        """Ends the hold."""
        self._bound.close()
        self._lock.close()


def reserve_ports(addresses: Iterable[tuple[str, int]]) -> list[ReservedPort]:
    """Holds ports, given as (host, port), all of them or none. Raises `OSError`, whose `filename` is the first port
    that cannot be held."""
    with ExitStack() as reserved:
        ports = []
        for host, port in addresses:
            try:
                ports.append(reserved.enter_context(closing(ReservedPort(host, port))))
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(port)) from error
        reserved.pop_all()
        return ports


def require_ports(host: str, ports: Iterable[int], key: str) -> list[ReservedPort]:
    """Holds the ports of servers. Raises `UserError` when this machine has no interface with the address `host`, or
    something else holds a port or listens there.

    `key` is the section of the configuration that holds `host` and `port`.
    """
    try:
        return reserve_ports((host, port) for port in ports)
    except OSError as error:
        taken = error.errno in (errno.EADDRINUSE, errno.EACCES)
        raise UserError(
            f"{key}.port={error.filename} cannot be used at {host} ({error.strerror}): choose another port"
            if taken
            else f"{key}.host={host} is no address of this machine ({error.strerror}): correct it"
        ) from error
