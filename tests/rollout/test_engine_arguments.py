"""These tests check which tokens end a completion, and with which settings servers are started on GPUs."""

import json
import re
from types import SimpleNamespace

import pytest
import torch

from grpo.config import TrainConfig, UserError
from grpo.config.hydra import compose_config
from grpo.config.parts import SamplerSettings
from grpo.config.placement import KEY_VARIABLE
from grpo.rollout import servers
from grpo.rollout.engine_arguments import engine_arguments
from grpo.rollout.replica import ServerProcess
from grpo.rollout.servers import server_arguments, server_environment, start_servers
from tests.learner.models import files_of


@pytest.mark.parametrize(
    ("generation", "config", "stops"),
    [
        ({"eos_token_id": [7, 9]}, {"eos_token_id": 5}, [2, 7, 9]),
        # Without a generation_config.json, transformers and vLLM read config.json too.
        (None, {"eos_token_id": [7, 9]}, [2, 7, 9]),
        (None, {"text_config": {"eos_token_id": 7}}, [2, 7]),
        (None, {"model_type": "llama"}, [2]),
        (None, None, [2]),
    ],
)
def test_a_completion_ends_at_the_tokenizers_and_the_models_own_tokens(tmp_path, generation, config, stops):
    for name, values in (("generation_config", generation), ("config", config)):
        if values is not None:
            (tmp_path / f"{name}.json").write_text(json.dumps(values))
    assert files_of(tmp_path, SimpleNamespace(eos_token_id=2)).stop_token_ids == stops


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"eos_token_id": "x"}', "eos_token_id=x is no token's number: correct it in generation_config.json"),
        ("{", "generation_config.json is damaged"),
    ],
)
def test_a_damaged_generation_config_is_one_line(tmp_path, text, message):
    (tmp_path / "generation_config.json").write_text(text)
    with pytest.raises(UserError, match=message):
        _ = files_of(tmp_path, SimpleNamespace(eos_token_id=2)).stop_token_ids


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
    assert [
        server_environment(config.rollout.servers, index, True)["CUDA_VISIBLE_DEVICES"] for index in (0, 1)
    ] == devices


@pytest.mark.parametrize("hardware", ["split", "two_nodes", "slurm"])
def test_servers_have_their_gpus_memory_to_themselves(hardware):
    config = compose_config(["experiment=bigmath_qwen2_5_7b", f"hardware={hardware}"])
    colocated = engine_arguments(SamplerSettings.of(config), "model", on_gpu=True)
    assert colocated["gpu_memory_utilization"] < 0.7
    assert (colocated | server_arguments(config.rollout.servers, on_gpu=True))["gpu_memory_utilization"] == 0.9
    assert "gpu_memory_utilization" not in server_arguments(config.rollout.servers, on_gpu=False)


def test_a_server_at_an_address_of_ipv6_is_asked_there(monkeypatch, tmp_path):
    monkeypatch.setattr(ServerProcess, "start", lambda self: None)
    monkeypatch.setenv(KEY_VARIABLE, "secret")
    config = TrainConfig()
    config.rollout.servers.host = "::1"
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    [url] = start_servers(SamplerSettings.of(config), files_of(tmp_path), torch.device("cuda", 0))
    assert re.fullmatch(r"http://\[::1\]:\d+", url)


@pytest.mark.parametrize("known", [{"enable_scale_out"}, set()])
def test_a_server_opens_its_route_of_tokens_by_a_flag_where_its_vllm_knows_one(known, monkeypatch):
    monkeypatch.setattr(servers, "known_arguments", lambda servers: known)
    assert ("enable_scale_out" in server_arguments(TrainConfig().rollout.servers, on_gpu=False)) == bool(known)
