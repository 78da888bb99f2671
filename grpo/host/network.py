"""This machine's ports, addresses and interfaces."""

from __future__ import annotations

import socket

import psutil

LOOPBACK = "127.0.0.1"
# A machine that answers nothing for so long, not even that a packet came, is gone.
GONE_SECONDS = 60


def listen(host: str = LOOPBACK) -> socket.socket:
    """A socket that listens on a free port of `host`'s interface."""
    found = socket.socket(_family(host))
    found.bind((host, 0))
    found.listen()
    return found


def free_port(host: str = LOOPBACK) -> int:
    """A port of `host`'s interface that nothing listens on."""
    with listen(host) as found:
        return found.getsockname()[1]


def watchful(info: tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple]) -> socket.socket:
    """A socket for a connection to what `socket.getaddrinfo` found, which fails when the machine there is gone."""
    family, kind, protocol, *_ = info
    found = socket.socket(family, kind, protocol)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, GONE_SECONDS // 3)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, GONE_SECONDS // 6)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, GONE_SECONDS * 1000)
    return found


def own_address(towards: str) -> str:
    """The address under which the machine `towards` knows this one. Raises OSError where no way leads there."""
    with socket.socket(_family(towards), socket.SOCK_DGRAM) as probe:
        # Chooses the interface; a datagram socket sends nothing by it. The port does not matter.
        probe.connect((towards, 9))
        return probe.getsockname()[0]


def interface_of(address: str) -> str:
    """The name of the interface that has `address`; "" for none of this machine."""
    owners = (name for name, own in psutil.net_if_addrs().items() if any(each.address == address for each in own))
    return next(owners, "")


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
