"""These tests check with which settings servers are started on GPUs."""

import re

import pytest
import torch

from grpo.config import TrainConfig
from grpo.config.hydra import compose_config
from grpo.config.placement import KEY_VARIABLE
from grpo.rollout.engine_arguments import engine_arguments
from grpo.rollout.replica import ServerProcess
from grpo.rollout.servers import server_arguments, server_environment, start_servers


@pytest.mark.parametrize(
    ("shown", "first_gpu", "tensor_parallel", "devices"),
    [
        (None, 4, 1, ["4", "5"]),
        ("4,5,6,7", 2, 1, ["6", "7"]),
        ("GPU-aa, GPU-bb,GPU-cc,GPU-dd", 0, 2, ["GPU-aa,GPU-bb", "GPU-cc,GPU-dd"]),
    ],
)
def test_servers_have_gpus_among_those_that_the_run_was_given(shown, first_gpu, tensor_parallel, devices, monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, "secret")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if shown:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    config = TrainConfig()
    config.rollout.servers.first_gpu, config.rollout.servers.tensor_parallel = first_gpu, tensor_parallel
    assert [server_environment(config, index, True)["CUDA_VISIBLE_DEVICES"] for index in (0, 1)] == devices


@pytest.mark.parametrize("hardware", ["split", "two_nodes", "slurm"])
def test_servers_have_their_gpus_memory_to_themselves(hardware):
    config = compose_config(["experiment=bigmath_qwen2_5_7b", f"hardware={hardware}"])
    colocated = engine_arguments(config, "model", on_gpu=True)
    assert colocated["gpu_memory_utilization"] < 0.7
    assert (colocated | server_arguments(config, on_gpu=True))["gpu_memory_utilization"] == 0.9
    assert "gpu_memory_utilization" not in server_arguments(config, on_gpu=False)


def test_a_server_at_an_address_of_ipv6_is_asked_there(tmp_path, monkeypatch):
    monkeypatch.setattr(ServerProcess, "start", lambda self: None)
    monkeypatch.setenv(KEY_VARIABLE, "secret")
    config = TrainConfig()
    config.rollout.servers.host = "::1"
    # A server keeps what its model's config says, so that only a run with the same model claims it.
    (tmp_path / "config.json").write_text("{}")
    [url] = start_servers(config, str(tmp_path), torch.device("cuda", 0))
    assert re.fullmatch(r"http://\[::1\]:\d+", url)
