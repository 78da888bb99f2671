"""These tests hold ports for servers that listen later, against other holders and other programs."""

import socket

import pytest

from grpo.config import UserError
from grpo.host.network import LOOPBACK, listen
from grpo.host.ports import RESERVED_VARIABLE, ReservedPort, require_ports, reserve_ports
from tests.forks import Forked


class HeldNumber(ReservedPort):
    def __str__(self):
        return str(self.port)


def test_a_held_port_is_kept_from_other_holders_and_left_to_its_server():
    held = ReservedPort(LOOPBACK)
    with pytest.raises(OSError, match="in use"):
        ReservedPort(LOOPBACK, held.port)
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((LOOPBACK, held.port))
    with listen(LOOPBACK, held.port) as server:
        assert server.getsockname() == (LOOPBACK, held.port)
        held.close()
        with pytest.raises(OSError, match="in use"):
            ReservedPort(LOOPBACK, held.port)
    ReservedPort(LOOPBACK, held.port).close()


def test_of_several_ports_all_are_held_or_none():
    with listen() as server:
        free, taken = ReservedPort(LOOPBACK), server.getsockname()[1]
        free.close()
        with pytest.raises(OSError) as caught:
            reserve_ports([(LOOPBACK, free.port), (LOOPBACK, taken)])
        assert caught.value.filename == str(taken)
    ReservedPort(LOOPBACK, free.port).close()


def test_a_port_that_the_starter_of_a_process_holds_for_it_can_be_held_there(monkeypatch):
    held = ReservedPort(LOOPBACK)
    monkeypatch.setenv(RESERVED_VARIABLE, f"1 {held.port}")
    again = ReservedPort(LOOPBACK, held.port)
    assert again.port == held.port
    again.close()


def test_a_hold_ends_with_its_process():
    holder = Forked(lambda: HeldNumber(LOOPBACK))
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
def test_servers_whose_ports_cannot_be_held_are_one_line(host, message):
    with listen() as server, pytest.raises(UserError, match=message):
        require_ports(host, [server.getsockname()[1]], "rollout.servers")
