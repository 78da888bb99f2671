"""These tests compute by hand what a run will take."""

import pytest

from grpo.config.hydra import compose_config
from grpo.run.tables import price, price_rows
from grpo.types import MachineConstants

MACHINE = MachineConstants("CPU", 1000, ((8, 100.0), (64, 400.0)), 500.0, 0.5, 1.5)
WORDS = [
    *("experiment=tiny", "num_steps=20", "dynamics.prompts_per_step=8", "dynamics.group_size=8"),
    *("rollout.sampling.max_tokens=10", "task.prompt.max_tokens=20", "learner.layout=shared", "rollout=vllm"),
]


def priced(*words, parameters=1000, ranks=1, machine=MACHINE):
    return price(compose_config([*WORDS, *words]), parameters, ranks, machine)


def test_a_run_takes_its_tokens_over_what_was_measured():
    run = priced()
    # 64 completions of 10 tokens; 8 prompts of 20 tokens stand once before their completions.
    assert (run.rounds, run.sampled, run.learned) == (20, 640, 800)
    assert run.seconds == (640 / 400, 800 / 500, 2.0)
    assert run.round_seconds == pytest.approx(5.2)
    assert run.device_hours == pytest.approx(20 * 5.2 / 3600)


def test_a_larger_model_takes_longer_and_more_ranks_share_the_work():
    assert priced(parameters=3000).seconds == pytest.approx((3 * 1.6, 3 * 1.6, 3.0))
    run = priced(ranks=8)
    assert run.seconds == pytest.approx((80 / 100, 100 / 500, 2.0))  # 8 completions at once on each
    assert run.devices == 8


def test_a_longer_interval_and_more_passes_take_what_they_sample_and_learn():
    assert (priced("dynamics.refresh_interval=4").sampled, priced("dynamics.refresh_interval=4").rounds) == (2560, 5)
    twice = priced("dynamics.refresh_interval=4", "dynamics.passes=2")
    assert (twice.sampled, twice.learned) == (1280, 3200)


def test_servers_have_devices_of_their_own_and_may_sample_meanwhile():
    run = priced("rollout=vllm_server", "rollout.servers.replicas=2", "pipeline=one_round")
    assert run.devices == 3
    assert run.round_seconds == pytest.approx(max(*run.seconds[:2]) + run.seconds[2])
    on_machines = ["rollout=vllm_server", "rollout.servers.replicas=8", "hardware.server_nodes=2"]
    machines = priced(*on_machines, ranks=8)
    assert machines.devices == 8 + 2 * 8


def test_the_table_holds_what_is_known_and_no_more():
    assert [row[0] for row in price_rows(priced(machine=None), 2.0)] == [
        "completion tokens to sample, at most",
        "packed tokens to learn from, at most",
    ]
    rows = price_rows(priced("num_steps=36000"), 2.5)
    assert rows[-2:] == [
        ("device hours, on 1", "", "52.00"),
        ("device hours × hardware.price_per_hour=2.5", "", "130.00"),
    ]
