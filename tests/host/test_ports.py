"""These tests hold ports for servers that listen later, against other holders and other programs."""

import socket

import pytest

from grpo.config import UserError
from grpo.host.network import LOOPBACK, listen
from grpo.host.ports import RESERVED_VARIABLE, ReservedPort, require_ports, reserve_ports
from tests.forks import Forked


class ReservedNumber(ReservedPort):
    def __str__(self):
        return str(self.port)


def test_a_reserved_port_is_kept_from_other_holders_and_left_to_its_server():
    reserved = ReservedPort(LOOPBACK)
    with pytest.raises(OSError, match="in use"):
        ReservedPort(LOOPBACK, reserved.port)
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
