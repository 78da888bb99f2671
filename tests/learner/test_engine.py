"""These tests check the settings that DeepSpeed gets on GPUs and on CPUs, and those that are passed on to it."""

import inspect
import logging
import socket
from datetime import timedelta

import deepspeed
import pytest
import torch
from deepspeed.runtime import base_optimizer
from deepspeed.runtime.config import DeepSpeedConfig
from torch import nn
from torch.distributed import distributed_c10d

from grpo.config import LearnerConfig, UserError
from grpo.learner import engine
from grpo.learner.collective import TorchCollective
from grpo.learner.engine import check_passed_on, deepspeed_config


@pytest.fixture
def on_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


@pytest.mark.parametrize(("stage", "overlaps"), [(0, False), (1, False), (2, True), (3, True)])
def test_exchange_overlaps_computation_where_deepspeed_allows_it(stage, overlaps, on_gpu):
    made = engine.deepspeed_config(LearnerConfig(zero_stage=stage))
    assert made["zero_optimization"]["overlap_comm"] is overlaps
    # Which it does from stage 2 on, where it leaves gradient accumulation alone.
    assert made["managed_gradient_accumulation"] is False


@pytest.mark.parametrize(("stage", "size"), [(0, 1_000_000), (1, 1_000_000), (2, 1_000_000), (3, None)])
def test_a_cpu_reduces_few_gradients_at_once(stage, size, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    made = engine.deepspeed_config(LearnerConfig(zero_stage=stage))
    assert made["zero_optimization"].get("reduce_bucket_size") == size


def test_a_gpu_reduces_as_many_gradients_at_once_as_deepspeed_chooses(on_gpu):
    assert "reduce_bucket_size" not in engine.deepspeed_config(LearnerConfig())["zero_optimization"]


@pytest.mark.parametrize(("offload", "threads"), [(True, [6]), (False, [])])
def test_an_optimizer_in_main_memory_has_its_ranks_share_of_the_cores(offload, threads, on_gpu, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(48))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    chosen = []
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    monkeypatch.setattr(engine, "_initialized", lambda **arguments: arguments)
    engine.start_engine(nn.Linear(2, 2), LearnerConfig(learning_rate=1e-6, offload_optimizer=offload))
    assert chosen == threads


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_groups_that_deepspeed_and_vllm_make_have_the_deadline_of_the_run(backend, monkeypatch):
    """ZeRO exchanges in a group that DeepSpeed makes without a deadline. With NCCL torch gives it ten minutes."""
    for name in ("default_pg_timeout", "default_pg_nccl_timeout"):
        monkeypatch.setattr(distributed_c10d, name, timedelta(minutes=10))
    own = []
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda backend, timeout: own.append(timeout))
    monkeypatch.setattr(deepspeed, "init_distributed", lambda *arguments, **named: None)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    engine.init_distributed(torch.device("cpu"), 7200)
    assert own == [distributed_c10d._get_default_timeout(backend)] == [timedelta(hours=2)]


def test_ranks_that_cannot_meet_end_with_one_line(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: False)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for name, value in {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 2, "MASTER_PORT": port}.items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
        with pytest.raises(UserError, match=rf"cannot meet at 127.0.0.1:{port} .*EADDRINUSE"):
            engine.init_distributed(torch.device("cpu"), 5)


def test_the_group_of_another_thread_has_the_deadline_that_it_asks_for(monkeypatch):
    made = []
    monkeypatch.setattr(torch.distributed, "new_group", lambda **options: made.append(options))
    collective = TorchCollective(torch.device("cpu"))
    collective.world_size = 2
    collective.apart(7200.0)
    assert made == [{"backend": "gloo", "timeout": timedelta(hours=2)}]


def test_only_warnings_of_tensor_parallelism_and_of_other_optimizers_are_passed_over():
    text = "MPU is not provided, setting tp size to 1 in checkpoint loading."
    untested = "**** You are using ZeRO with an untested optimizer, proceed with caution *****"
    assert text in inspect.getsource(base_optimizer), "DeepSpeed says it in these words"
    assert untested in inspect.getsource(deepspeed.runtime.engine)
    for message, concerns in ((text, False), (untested, False), ("a gradient overflowed", True)):
        record = logging.LogRecord("DeepSpeed", logging.WARNING, "", 1, message, None, None)
        assert engine.concerns_a_run(record) is concerns


def test_a_passed_on_setting_that_an_engine_refuses_is_one_line(monkeypatch):
    def refuses(**arguments):
        raise AssertionError("supports ZeRO overlap_comm only\nwith ZeRO stage 2")

    monkeypatch.setattr(engine, "_initialized", refuses)
    passed = {"zero_optimization": {"overlap_comm": True}}
    with pytest.raises(
        UserError, match=r"'overlap_comm': True}} is refused: supports ZeRO overlap_comm only with ZeRO"
    ):
        engine.start_engine(nn.Linear(2, 2), LearnerConfig(learning_rate=1e-6, zero_stage=1, deepspeed=passed))


KNOWN = {
    "zero_optimization": {"reduce_bucket_size": 12_345, "overlap_comm": True},
    "communication_data_type": "fp32",
    "wall_clock_breakdown": True,
    "flops_profiler": {"enabled": False},
    "wandb": {"enabled": False},
    "activation_checkpointing": {"profile": False},
    "comms_logger": {"enabled": False},
    "optimizer": {"type": "NAdam"},
}


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_settings_that_deepspeed_knows_reach_it(stage):
    learner = LearnerConfig(zero_stage=stage, precision="float32", deepspeed=KNOWN)
    check_passed_on(learner)
    read = DeepSpeedConfig(deepspeed_config(learner))
    assert (read.zero_config.reduce_bucket_size, read.zero_config.overlap_comm) == (12_345, True)
    assert (read.communication_data_type, read.wall_clock_breakdown) == (torch.float32, True)


@pytest.mark.parametrize(
    ("passed", "expected"),
    [
        ({"zero_optimisation": {"stage": 2}}, "learner.deepspeed.zero_optimisation is no setting of DeepSpeed"),
        ({"zero_optimization": {"overlap_com": True}}, "overlap_com Extra inputs are not permitted"),
        ({"zero_optimization": {"overlap_comm": "perhaps"}}, "overlap_comm Input should be a valid boolean"),
    ],
)
def test_settings_that_deepspeed_does_not_know_or_refuses_are_one_line(passed, expected):
    with pytest.raises(UserError) as refused:
        check_passed_on(LearnerConfig(precision="float32", deepspeed=passed))
    assert expected in str(refused.value) and "\n" not in str(refused.value)
