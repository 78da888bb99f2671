"""Two runs of one machine do not get in each other's way."""

import socket

import pytest

from grpo.config import UserError
from grpo.config.hydra import compose_config
from grpo.host.network import LOOPBACK
from grpo.launch.machines import Machine
from grpo.launch.ports import with_free_ports
from grpo.launch.seats import SERVER_PORTS, seats_of

HERE, THERE = Machine("a", LOOPBACK), Machine("b", "192.0.2.7")
WORDS = ["experiment=gsm8k_qwen2_5_7b", "hardware=two_nodes", "rollout.servers.replicas=2"]


@pytest.fixture
def config():
    return compose_config([*WORDS, "hardware.first_port=21000"])


def ports(config):
    config = with_free_ports(config, [HERE, HERE])
    server, learner = seats_of(config, WORDS, [HERE, HERE])
    return config.hardware.first_port, " ".join(server.command), " ".join(learner.command)


def test_ports_that_are_free_are_taken_as_they_are(config, capsys):
    assert ports(config)[0] == 21000
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("taken", [21000, 21000 + SERVER_PORTS + 1])
def test_where_one_is_taken_the_run_has_others(taken, config, capsys):
    with socket.create_server((LOOPBACK, taken)):
        first, server, learner = ports(config)
    assert first == 21200
    assert "rollout.servers.port=21300" in server
    assert "--master-port=21200" in learner and "http://127.0.0.1:21301" in learner
    assert capsys.readouterr().err.startswith(f"grpo: port {taken} is taken, perhaps by another run")


def test_with_other_machines_it_is_one_line(config):
    with socket.create_server((LOOPBACK, 21000)), pytest.raises(UserError, match="21000 .* change hardware.first_port"):
        with_free_ports(config, [HERE, THERE])


def test_what_others_listen_on_is_not_looked_at_here(config):
    with socket.create_server((LOOPBACK, 21000 + SERVER_PORTS)):
        assert with_free_ports(config, [HERE, THERE]) is config


def test_without_machines_no_port_is_taken_and_the_seats_tell_what_is_missing():
    config = compose_config(["hardware=two_nodes"])
    assert with_free_ports(config, []) == config


def test_free_ports_are_found_at_an_address_of_ipv6(config):
    here = Machine("a", "::1")
    assert with_free_ports(config, [here, here]).hardware.first_port == 21000
