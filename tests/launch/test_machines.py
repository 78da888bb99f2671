"""These tests check what machines are called, and where they are reached."""

import socket

import pytest

from grpo.config import UserError
from grpo.launch.machines import Machine, machines_of

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
