"""These tests check the tables that are printed before a run starts."""

from dataclasses import replace

import pytest
import torch
from transformers import GPT2Config, LlamaConfig

from grpo.config import TrainConfig, UserError
from grpo.config.hydra import compose_config
from grpo.host import device_memory, main_memory
from grpo.run import tables
from grpo.run.tables import (
    in_short,
    model_shape,
    print_price,
    print_tables,
    surprises,
    too_much_memory,
    too_small_a_share,
)

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 64}
LLAMA = {"hidden_size": 48, "num_hidden_layers": 2, "vocab_size": 64}


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


@pytest.mark.parametrize("dry", [True, False])
def test_a_run_says_in_three_lines_what_a_dry_run_shows_in_tables(dry, tmp_path, capsys):
    LlamaConfig(**SMALL, intermediate_size=64).save_pretrained(tmp_path)
    words = ["experiment=tiny", "rollout=transformers", "device=cpu", "task.prompt.max_tokens=24"]
    precision = ["learner.precision=float32", "rollout.precision=float32"]
    print_tables(compose_config([*words, *precision, "num_steps=3", f"dry_run={dry}"]), tmp_path)
    printed = capsys.readouterr().out
    if dry:
        return [printed.index(title) for title in ("Placement", "Batches", "Memory, 0.0 M parameters, float32")]
    place, batch, run = printed.splitlines()
    assert place.startswith("learner ranks on 1 × CPU: 0.0 M parameters, float32; about ")
    assert batch == "each step: 16 prompts × 8 completions of at most 6 tokens; micro-batches: 1 or fewer"
    assert run == "the run: 3 optimizer steps in 3 rounds; dry_run=true shows all this as tables, with its price"


def test_a_run_names_the_first_and_the_last_of_many_places():
    places = [(f"learner rank {rank}", f"GPU {rank}") for rank in range(8)]
    line = next(in_short(compose_config(["experiment=tiny"]), 8, places, [("in all", 0.5, 2.0)], "1 M parameters"))
    assert line == (
        "learner rank 0 on GPU 0, …, learner rank 7 on GPU 7: 1 M parameters; about 512 MiB while sampling and 2.0 GiB "
        "while learning"
    )


def test_a_warm_up_longer_than_the_run_is_reported(tmp_path, capsys):
    LlamaConfig(**SMALL).save_pretrained(tmp_path)
    settings = TrainConfig(device="cpu", num_steps=20)
    settings.learner.warmup_steps = 80
    settings.learner.precision = settings.rollout.precision = "float32"
    print_tables(settings, tmp_path)
    warning = "learner.warmup_steps=80 is above num_steps=20: the learning rate ends at 25% of learner.learning_rate"
    assert warning in " ".join(capsys.readouterr().out.split())


def test_a_schedule_that_begins_outside_its_own_bounds_is_reported():
    def said(*words):
        return [*surprises(compose_config(["dynamics=adaptive", "dynamics.group_size=4", *words]))]

    [warning] = said("dynamics.adaptive.smallest_group=6")
    assert "begins with dynamics.group_size=4, and the schedule chooses groups of 6 to 64 only" in warning
    assert said("dynamics.adaptive.smallest_group=4") == []
    assert said("dynamics=fixed", "dynamics.adaptive.smallest_group=6") == []


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


def test_a_share_of_a_gpu_that_does_not_hold_the_samplers_weights_is_reported(tmp_path, monkeypatch, capsys):
    LlamaConfig(**LLAMA, num_attention_heads=4, num_key_value_heads=4).save_pretrained(tmp_path)
    # 32.8 B parameters take 61 GiB in bfloat16, and 0.4 of 79.6 GiB is 31.8.
    large = replace(model_shape(tmp_path), parameters=32_763_876_352)
    monkeypatch.setattr(tables, "model_shape", lambda *arguments: large)
    monkeypatch.setattr(device_memory, "device_gib", lambda config: 79.6)
    config = TrainConfig(device="cuda")
    config.learner.precision = config.rollout.precision = "bfloat16"
    config.rollout.gpu_memory_fraction, warning = 0.4, "is 31.8 GiB of a GPU, and the sampler's weights alone take 61.0"
    # The GPU of another machine may be a larger one.
    print_tables(config, tmp_path)
    assert warning in capsys.readouterr().out
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UserError, match=warning):
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
    monkeypatch.setattr(main_memory, "total_gib", lambda: 23.5)
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
    # A learner holds more than a GPU has.
    large = replace(model_shape(tmp_path), parameters=32_763_876_352)
    config = compose_config([*small, "dry_run=true"])
    assert "weights, gradients and optimizer take 549.2 GiB of each GPU, which has 80.0" in too_much_memory(
        config, large, 1, 1
    )
