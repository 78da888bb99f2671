"""These tests look up addresses and interfaces of this machine, and hold ports for servers that listen later."""

import socket
from urllib.parse import urlsplit

import pytest

from grpo.config import UserError
from grpo.host.network import LOOPBACK, free_port, interface_of, listen, own_address, url_of, watchful, without_address
from grpo.host.ports import RESERVED_VARIABLE, ReservedPort, require_ports, reserve_ports
from tests.forks import Forked


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


class ReservedNumber(ReservedPort):
    def __str__(self):
        return str(self.port)


def test_a_name_without_an_address_is_known():
    assert without_address("http://nowhere.invalid:8000") and not without_address("http://[::1]:8000/v1")


def test_a_reserved_port_is_kept_from_other_holders_and_left_to_its_server():
    reserved = ReservedPort(LOOPBACK)
    with pytest.raises(OSError, match="in use"):
        ReservedPort(LOOPBACK, reserved.port)
    with pytest.raises(OSError, match="in use"):
        ReservedPort("0.0.0.0", reserved.port)
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((LOOPBACK, reserved.port))
    with listen(LOOPBACK, reserved.port) as server:
        assert server.getsockname() == (LOOPBACK, reserved.port)
        reserved.close()
        with pytest.raises(OSError, match="in use"):
            ReservedPort(LOOPBACK, reserved.port)
    ReservedPort(LOOPBACK, reserved.port).close()


def test_several_ports_are_reserved_together_or_not_at_all():
    with listen() as server:
        free, taken = ReservedPort(LOOPBACK), server.getsockname()[1]
        free.close()
        with pytest.raises(OSError) as caught:
            reserve_ports([(LOOPBACK, free.port), (LOOPBACK, taken)])
        assert caught.value.filename == str(taken)
    ReservedPort(LOOPBACK, free.port).close()


def test_a_process_can_reserve_a_port_that_its_starter_holds_for_it(monkeypatch):
    reserved = ReservedPort(LOOPBACK)
    monkeypatch.setenv(RESERVED_VARIABLE, f"1 {reserved.port}")
    again = ReservedPort(LOOPBACK, reserved.port)
    assert again.port == reserved.port
    again.close()


def test_a_hold_ends_with_its_process():
    holder = Forked(lambda: ReservedNumber(LOOPBACK))
    port = int(holder.answer())
    with pytest.raises(OSError, match="in use"):
        ReservedPort(LOOPBACK, port)
    holder.end()
    ReservedPort(LOOPBACK, port).close()


@pytest.mark.parametrize(
    ("host", "message"),
    [
        (LOOPBACK, r"^rollout\.servers\.port=\d+ cannot be used at 127\.0\.0\.1 \(Address already in use\): choose"),
        ("192.0.2.1", r"^rollout\.servers\.host=192\.0\.2\.1 is no address of this machine \(.*\): correct it$"),
    ],
)
def test_servers_whose_ports_cannot_be_reserved_are_one_line(host, message):
    with listen() as server, pytest.raises(UserError, match=message):
        require_ports(host, [server.getsockname()[1]], "rollout.servers")


def test_a_free_port_that_somebody_holds_at_another_address_is_passed_over(monkeypatch):
    hold, refused = ReservedPort._hold, []

    def hold_at_second_try(reserved, host, port):
        hold(reserved, host, port)
        if not refused:
            refused.append(reserved.port)
            raise OSError(98, "Address already in use")

    monkeypatch.setattr(ReservedPort, "_hold", hold_at_second_try)
    reserved = ReservedPort(LOOPBACK)
    reserved.close()
    assert refused and reserved.port
    refused.clear()
    with pytest.raises(OSError, match="in use"):
        ReservedPort(LOOPBACK, reserved.port)
