"""This module finds ports, addresses and interfaces of this machine."""

import socket
from urllib.parse import urlsplit

import psutil

LOOPBACK = "127.0.0.1"
# A machine that acknowledges no packet for this many seconds is lost.
GONE_SECONDS = 60


def listen(host: str = LOOPBACK, port: int = 0) -> socket.socket:
    """Opens a socket that listens on a port of `host`'s interface, by default on a free one."""
    return socket.create_server((host, port), family=family_of(host))


def free_port(host: str = LOOPBACK) -> int:
    """Returns a port of `host`'s interface that nothing listens on."""
    with listen(host) as listener:
        return listener.getsockname()[1]


def url_of(host: str, port: int) -> str:
    """Returns the address of a server as a URL, in which an address of IPv6 stands in brackets.

    >>> url_of("10.0.0.5", 8000), url_of("::1", 8000)
    ('http://10.0.0.5:8000', 'http://[::1]:8000')
    """
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def without_address(url: str) -> bool:
    """Tells whether this machine finds no address of the machine that a URL names.

    >>> without_address("http://127.0.0.1:8000")
    False
    """
    try:
        socket.getaddrinfo(urlsplit(url).hostname, None)
    except OSError:
        return True
    return False


def watchful(info: tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple]) -> socket.socket:
    """Makes a socket whose connection fails within `GONE_SECONDS` when the other machine is lost.

    `info` is an entry of what `socket.getaddrinfo` returns for the other machine.
    """
    family, kind, protocol, *_ = info
    connection = socket.socket(family, kind, protocol)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, GONE_SECONDS // 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, GONE_SECONDS // 6)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, GONE_SECONDS * 1000)
    return connection


def own_address(towards: str) -> str:
    """Returns the address from which this machine reaches the machine `towards`. Raises `OSError` without a route."""
    with socket.socket(family_of(towards), socket.SOCK_DGRAM) as probe:
        # Connecting a datagram socket chooses the interface but sends nothing. The port does not matter.
        probe.connect((towards, 9))
        return probe.getsockname()[0]


def interface_of(address: str) -> str:
    """Returns the name of the interface that has `address`, or "" when no interface of this machine has it."""
    owners = (
        name for name, entries in psutil.net_if_addrs().items() if any(entry.address == address for entry in entries)
    )
    return next(owners, "")


def family_of(host: str) -> socket.AddressFamily:
    """Returns the family of an address: IPv6 or IPv4."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET
