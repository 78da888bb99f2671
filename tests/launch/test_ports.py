"""Two runs of one machine do not get in each other's way."""

import re
import socket

import pytest

from grpo.config import UserError
from grpo.config.hydra import compose_config
from grpo.host.network import LOOPBACK
from grpo.host.ports import ReservedPort
from grpo.launch.machines import Machine
from grpo.launch.seats import SERVER_PORTS, seats_of
from grpo.launch.shells import with_reserved_ports
from tests.forks import Forked

HERE, THERE = Machine("a", LOOPBACK), Machine("b", "192.0.2.7")
WORDS = ["experiment=gsm8k_qwen2_5_7b", "hardware=two_nodes", "rollout.servers.replicas=2", "hardware.learner_nodes=2"]


@pytest.fixture
def config():
    return compose_config([*WORDS, "hardware.first_port=14000"])


def ports(config):
    config, _ = with_reserved_ports(config, [HERE] * 3)
    server, learner, _ = seats_of(config, WORDS, [HERE] * 3)
    return config.hardware.first_port, " ".join(server.command), " ".join(learner.command)


def test_ports_that_are_free_are_taken_as_they_are(config, capsys):
    assert ports(config)[0] == 14000
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("taken", [14000, 14000 + SERVER_PORTS + 1])
def test_where_one_is_taken_the_run_has_others(taken, config, capsys):
    with socket.create_server((LOOPBACK, taken)):
        first, server, learner = ports(config)
    assert first == 14200
    assert "rollout.servers.port=14300" in server
    assert "--master-port=14200" in learner and "http://127.0.0.1:14301" in learner
    assert capsys.readouterr().err.startswith(f"grpo: port {taken} is taken, perhaps by another run")


@pytest.mark.slow
def test_runs_that_are_launched_at_the_same_moment_have_ports_of_their_own(config):
    """A run holds its ports from the moment it chooses them, long before its servers listen."""

    def chosen():
        own_config, reserved = with_reserved_ports(config, [HERE] * 3)
        return own_config.hardware.first_port, reserved

    launches = [Forked(chosen) for _ in range(20)]
    first_ports = [int(re.match(r"\((\d+),", launch.answer())[1]) for launch in launches]
    for launch in launches:
        launch.end()
    assert len(set(first_ports)) == 20


def test_ranks_of_one_machine_need_no_port_that_others_know():
    config = compose_config(["experiment=tiny", "hardware.ranks_per_node=2"])
    assert with_reserved_ports(config, [HERE]) == (config, [])
    [seat] = seats_of(config, [], [HERE])
    assert not [word for word in seat.command if word.startswith("--master")]


def test_with_other_machines_it_is_one_line(config):
    with socket.create_server((LOOPBACK, 14000)), pytest.raises(UserError, match="14000 .* change hardware.first_port"):
        with_reserved_ports(config, [HERE, HERE, THERE])


def test_ports_of_other_machines_are_not_checked_here(config):
    with socket.create_server((LOOPBACK, 14000 + SERVER_PORTS)):
        chosen, reserved = with_reserved_ports(config, [HERE, HERE, THERE])
    assert (chosen, [port.port for port in reserved]) == (config, [14000])


def test_without_machines_no_port_is_taken_and_the_seats_tell_what_is_missing():
    config = compose_config(["hardware=two_nodes"])
    assert with_reserved_ports(config, []) == (config, [])


def test_free_ports_are_found_at_an_address_of_ipv6(config):
    here = Machine("a", "::1")
    chosen, reserved = with_reserved_ports(config, [here] * 3)
    assert chosen.hardware.first_port == 14000
    with pytest.raises(OSError, match="in use"):
        ReservedPort("::1", 14000)
    assert [port.port for port in reserved] == [14000, 14100, 14101]
