"""Ports, addresses and interfaces of this machine."""

import socket

from grpo.network import free_port, interface_of, own_address


def test_a_free_port_can_be_taken():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port()))


def test_towards_itself_a_machine_is_its_loopback():
    assert own_address("127.0.0.1") == "127.0.0.1"
    assert interface_of("127.0.0.1").startswith("lo")
    assert interface_of("192.0.2.1") == ""  # an address for documentation, of no machine
