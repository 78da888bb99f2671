"""Which machine does what."""

import pytest

from grpo.config import UserError
from grpo.config.hydra import compose_config
from grpo.launch.seats import seat_table, seats_of
from grpo.launch.shells import hosts_of

TWO = ["experiment=gsm8k_qwen2_5_7b", "hardware=two_nodes", "hardware.hosts=[a,b]"]


def seats(words):
    config = compose_config(words)
    return seats_of(config, words, list(config.hardware.hosts))


def test_of_two_nodes_the_first_learns_and_the_second_serves():
    words = [*TWO, "rollout.servers.replicas=2"]
    server, learner = seats(words)
    assert (learner.name, learner.host, server.name, server.host) == ("learner-0", "a", "servers-0", "b")
    assert learner.command[-2:] == (
        "rollout.servers.host=a",
        "rollout.servers.urls=[http://b:29600,http://b:29601]",
    )
    assert {"--nproc-per-node=8", "--nnodes=1", "--master-addr=a"} <= set(learner.command)
    assert {"serve", "rollout.servers.host=b", "rollout.servers.port=29600"} <= set(server.command)
    assert seat_table(compose_config(words), [learner, server]) == [("a", "8 learner ranks"), ("b", "2 vLLM servers")]


def test_ranks_over_several_nodes_meet_on_the_first():
    words = [*TWO[:1], "hardware=node", "hardware.learner_nodes=3", "hardware.hosts=[a,b,c]", "hardware.shell=ssh"]
    found = seats(words)
    assert [seat.host for seat in found] == ["a", "b", "c"]
    assert [seat.command[4] for seat in found] == ["--nnodes=3"] * 3
    assert [seat.command[5] for seat in found] == ["--node-rank=0", "--node-rank=1", "--node-rank=2"]
    assert all("--master-addr=a" in seat.command for seat in found)
    assert all("rollout.servers.urls" not in " ".join(seat.command) for seat in found)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*TWO[:2], "hardware.hosts=[a]"], "need 2 machines, and there are 1 (a)"),
        ([*TWO, "rollout=vllm"], "hardware.server_nodes needs rollout=vllm_server"),
    ],
)
def test_what_does_not_fit_is_one_line(words, message):
    with pytest.raises(UserError) as caught:
        seats(words)
    assert message in str(caught.value)


def test_hosts_are_this_machine_those_named_or_those_of_the_allocation(monkeypatch):
    assert hosts_of([], "here", 2) == ["127.0.0.1", "127.0.0.1"]
    assert hosts_of(["a", "b"], "ssh", 2) == ["a", "b"]
    with pytest.raises(UserError, match=r"hardware\.shell=ssh"):
        hosts_of(["a"], "here", 1)
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    with pytest.raises(UserError, match="start it with sbatch"):
        hosts_of([], "srun", 2)
