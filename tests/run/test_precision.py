"""These tests check which number formats are chosen on which hardware."""

import pytest
import torch

from grpo.config import TrainConfig, UserError
from grpo.run.preparing import with_precision


@pytest.fixture
def old_gpu(monkeypatch):
    """Makes torch see a GPU without bfloat16, such as a T4 or a V100, which emulates it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)


def test_a_gpu_that_only_emulates_bfloat16_computes_in_float32(old_gpu):
    config = with_precision(TrainConfig(device="cuda"))
    assert (config.learner.precision, config.rollout.precision) == ("float32", "float32")
    assert config.model.head_precision == "float32"


def test_a_bfloat16_sampler_is_refused_on_such_a_gpu(old_gpu):
    config = TrainConfig(device="cuda")
    config.rollout.precision = "bfloat16"
    with pytest.raises(UserError, match=r"compute capability 8.0 or newer: set rollout.precision=float32$"):
        with_precision(config)


def test_a_learner_on_such_a_gpu_may_have_bfloat16_servers_elsewhere_and_export_what_they_sampled_for(old_gpu):
    config = TrainConfig(device="cuda")
    config.rollout.precision = "bfloat16"
    exported = with_precision(config, samples=False)
    assert (exported.learner.precision, exported.rollout.precision) == ("float32", "bfloat16")
    config.rollout.engine = "vllm_server"
    with pytest.raises(UserError, match=r"compute capability 8.0 or newer"):
        with_precision(config)
    config.rollout.servers.urls = ["http://10.0.0.5:8000"]
    assert (with_precision(config).learner.precision, with_precision(config).rollout.precision) == (
        "float32",
        "bfloat16",
    )


def test_a_gpu_that_is_not_here_is_taken_for_a_new_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    config = with_precision(TrainConfig(device="cuda"))
    assert (config.learner.precision, config.rollout.precision) == ("bfloat16", "bfloat16")


@pytest.mark.parametrize(
    ("instructions", "chosen"), [((True, False), "bfloat16"), ((False, True), "bfloat16"), ((False, False), "float32")]
)
def test_a_cpu_computes_in_bfloat16_where_it_has_instructions_for_it(monkeypatch, instructions, chosen):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: instructions[0])
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: instructions[1])
    config = with_precision(TrainConfig(device="cpu"))
    assert (config.learner.precision, config.rollout.precision, config.model.head_precision) == (
        chosen,
        chosen,
        "model",
    )
