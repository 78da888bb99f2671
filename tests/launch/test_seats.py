"""These tests check which machine does what."""

import pytest

from grpo.config import UserError
from grpo.config.hydra import compose_config
from grpo.launch.machines import Machine
from grpo.launch.seats import seat_table, seats_of

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
        "rollout.servers.urls=[http://10.0.0.2:29600,http://10.0.0.2:29601]",
    )
    assert {"--nproc-per-node=8", "--nnodes=1"} <= set(learner.command)
    # Once asked to stop, it may still finish its round.
    assert learner.grace_seconds == 7800 and "--shutdown-timeout=7800" in learner.command
    assert {"serve", "rollout.servers.host=10.0.0.2", "rollout.servers.port=29600"} <= set(server.command)
    assert seat_table(compose_config(words), [learner, server]) == [("a", "8 learner ranks"), ("b", "2 vLLM servers")]


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
        ([*TWO[:2], "hardware.hosts=[a]"], "need 2 machines, but there are 1 (a)"),
        ([*TWO, "model.max_length=0"], "servers on other machines do not read the problems, so they need model.max_"),
        ([*TWO, "rollout=vllm"], "hardware.server_nodes needs rollout=vllm_server"),
    ],
)
def test_seats_that_do_not_fit_are_one_line(words, message):
    with pytest.raises(UserError) as caught:
        seats(words)
    assert message in str(caught.value)
