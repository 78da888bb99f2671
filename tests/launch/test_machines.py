"""These tests check what machines are called, how they are reached, which does what, and which ports they use."""

import re
import socket

import pytest

from grpo.config import UserError
from grpo.config.hydra import compose_config
from grpo.host.network import LOOPBACK
from grpo.host.ports import ReservedPort
from grpo.launch.machines import Machine, machines_of
from grpo.launch.seats import SERVER_PORTS, seat_table, seats_of
from grpo.launch.shells import LAST_PORT, with_reserved_ports
from tests.forks import Forked

NAMES = {"a": "127.0.1.1", "b": "10.0.0.2", "c": "10.0.0.3"}


@pytest.fixture
def on_debian(monkeypatch):
    """Makes this machine look like one whose own name means 127.0.1.1, and whose address for others is 10.0.0.1."""

    def look_up(name, port, type):
        if name not in NAMES:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        kind = socket.SOCK_STREAM
        return [(socket.AF_INET6, kind, 6, "", ("fd00::9", 0, 0, 0)), (socket.AF_INET, kind, 6, "", (NAMES[name], 0))]

    monkeypatch.setattr("socket.getaddrinfo", look_up)
    monkeypatch.setattr("grpo.launch.machines.own_address", {"10.0.0.2": "10.0.0.1"}.__getitem__)


def test_this_machine_as_often_as_it_is_needed():
    assert machines_of([], "here", 2) == [Machine("127.0.0.1", "127.0.0.1")] * 2
    assert machines_of([], "here", 1)[0].is_here
    with pytest.raises(UserError, match=r"hardware\.shell=ssh"):
        machines_of(["a"], "here", 1)


def test_others_reach_this_machine_at_its_own_address(on_debian):
    machines = machines_of(["a", "b", "c"], "ssh", 3)
    assert machines == [Machine("a", "10.0.0.1"), Machine("b", "10.0.0.2"), Machine("c", "10.0.0.3")]


def test_names_that_are_this_machine_stay_on_it(on_debian):
    assert machines_of(["a", "a"], "ssh", 2) == [Machine("a", "127.0.0.1")] * 2


def test_a_name_without_an_address_is_one_line(on_debian):
    with pytest.raises(UserError, match="cannot find the address of 'gpu7' .*: write the address instead, or add"):
        machines_of(["b", "gpu7"], "ssh", 2)


def test_a_word_that_is_no_name_of_a_machine_is_one_line():
    with pytest.raises(UserError, match="cannot find the address of 'a..b' .no name of a machine.: write the address"):
        machines_of(["127.0.0.1", "a..b"], "ssh", 2)


def test_machines_that_have_addresses_of_ipv6_only_are_reached_there(monkeypatch):
    monkeypatch.setattr("grpo.launch.machines.own_address", {"fd00::2": "fd00::1"}.__getitem__)
    assert machines_of(["::1", "fd00::2"], "ssh", 2) == [Machine("::1", "fd00::1"), Machine("fd00::2", "fd00::2")]


def test_an_address_that_leads_nowhere_is_one_line(on_debian, monkeypatch):
    def unreachable(towards):
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr("grpo.launch.machines.own_address", unreachable)
    with pytest.raises(UserError, match=r"this machine has no route to 10\.0\.0\.2 \(Network is unreachable\)"):
        machines_of(["a", "b"], "ssh", 2)


def test_slurm_names_the_machines_of_its_allocation(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    with pytest.raises(UserError, match="start it with sbatch"):
        machines_of([], "srun", 2)


TWO = ["experiment=gsm8k_qwen2_5_7b", "hardware=two_nodes", "hardware.hosts=[a,b]"]
ADDRESSES = {"a": "10.0.0.1", "b": "10.0.0.2", "c": "10.0.0.3"}


def seats(words):
    config = compose_config(words)
    return seats_of(config, words, [Machine(host, ADDRESSES[host]) for host in config.hardware.hosts])


def test_the_first_of_two_nodes_learns_and_the_second_serves():
    words = [*TWO, "rollout.servers.replicas=2", "rollout.deadline_seconds=7200", "learner.deadline_seconds=600"]
    server, learner = seats(words)
    assert (learner.name, learner.machine.name, server.name, server.machine.name) == (
        "learner-0",
        "a",
        "servers-0",
        "b",
    )
    assert learner.command[-2:] == (
        "rollout.servers.host=10.0.0.1",
        'rollout.servers.urls=["http://10.0.0.2:29600", "http://10.0.0.2:29601"]',
    )
    assert {"--nproc-per-node=8", "--nnodes=1"} <= set(learner.command)
    # Once asked to stop, it may still finish its round.
    assert learner.grace_seconds == 7800 and "--shutdown-timeout=7800" in learner.command
    assert {"serve", "rollout.servers.host=10.0.0.2", "rollout.servers.port=29600"} <= set(server.command)
    assert seat_table(compose_config(words), [learner, server]) == [("a", "8 learner ranks"), ("b", "2 vLLM servers")]


def test_learners_can_read_addresses_of_servers_in_ipv6():
    config = compose_config(TWO)
    machines = [Machine("a", "fd00::1"), Machine("b", "fd00::2")]
    _, learner = seats_of(config, TWO, machines)
    assert compose_config(list(learner.command[-2:])).rollout.servers.urls[0] == "http://[fd00::2]:29600"


def test_parts_get_the_time_that_the_machines_leave():
    assert {seat.grace_seconds for seat in seats([*TWO, "checkpoint.grace_seconds=90"])} == {20.0, 90.0}


def test_ranks_over_several_nodes_meet_on_the_first():
    words = [*TWO[:1], "hardware=node", "hardware.learner_nodes=3", "hardware.hosts=[a,b,c]", "hardware.shell=ssh"]
    learners = seats(words)
    assert [seat.machine.name for seat in learners] == ["a", "b", "c"]
    assert [seat.command[4] for seat in learners] == ["--nnodes=3"] * 3
    assert [seat.command[6] for seat in learners] == ["--node-rank=0", "--node-rank=1", "--node-rank=2"]
    assert all({"--master-addr=10.0.0.1", "--master-port=29500"} <= set(seat.command) for seat in learners)
    assert all("rollout.servers.urls" not in " ".join(seat.command) for seat in learners)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (TWO[:2], "the run needs 2 machines: name them, as in hardware.hosts=[a,b]"),
        ([*TWO[:2], "hardware.hosts=[a]"], "need 2 machines, but there are 1 (a)"),
        ([*TWO, "model.max_length=0"], "servers on other machines do not read the problems, so they need model.max_"),
        ([*TWO, "rollout=vllm"], "hardware.server_nodes needs rollout=vllm_server"),
    ],
)
def test_seats_that_do_not_fit_are_one_line(words, message):
    with pytest.raises(UserError) as caught:
        seats(words)
    assert message in str(caught.value)


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


def test_a_first_port_among_those_of_outgoing_connections_is_replaced_by_lower_ones():
    config = compose_config([*WORDS, "hardware.first_port=40000"])
    with socket.create_server((LOOPBACK, 40000)):
        chosen, reserved = with_reserved_ports(config, [HERE] * 3)
    assert LAST_PORT // 2 <= chosen.hardware.first_port < LAST_PORT and len(reserved) == 3


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
