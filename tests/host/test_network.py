"""These tests look up ports, addresses and interfaces of this machine."""

import socket
from urllib.parse import urlsplit

import pytest

from grpo.host.network import free_port, interface_of, listen, own_address, url_of, watchful


def test_a_free_port_is_one_that_nothing_listens_on():
    with listen() as listening:
        port, taken = free_port(), listening.getsockname()[1]
        assert port != taken
        with socket.create_server(("127.0.0.1", port)) as server:
            assert server.getsockname() == ("127.0.0.1", port)


def test_a_connection_is_watched_for_a_minute():
    with (
        listen() as listening,
        watchful(socket.getaddrinfo(*listening.getsockname(), type=socket.SOCK_STREAM)[0]) as end,
    ):
        end.connect(listening.getsockname())
        assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        timers = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_USER_TIMEOUT)
        assert [end.getsockopt(socket.IPPROTO_TCP, timer) for timer in timers] == [20, 10, 60_000]


def test_towards_itself_a_machine_is_its_loopback():
    assert own_address("127.0.0.1") == "127.0.0.1"
    assert interface_of("127.0.0.1").startswith("lo")
    assert interface_of("192.0.2.1") == ""  # an address for documentation, of no machine


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "fe80::1"])
def test_a_url_names_the_host_and_port_of_a_server(host):
    """rollout.servers.host may be an address of IPv6, which has colons of its own."""
    address = urlsplit(url_of(host, 8000))
    assert (address.hostname, address.port) == (host, 8000)
