"""These tests check the tables that are printed before a run starts: sizes of models, and what a run will take."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoConfig, GPT2Config, LlamaConfig

from grpo.config import ModelConfig, TrainConfig, UserError
from grpo.config.hydra import compose_config
from grpo.config.memory_estimate import memory_estimate, offloaded_bytes
from grpo.config.validate import validate
from grpo.host import device_memory, main_memory
from grpo.prove import bench
from grpo.prove.sizes import SIZES
from grpo.run import tables
from grpo.run.tables import (
    gpu_gib,
    in_short,
    mean_lengths,
    model_shape,
    price,
    price_rows,
    print_price,
    print_tables,
    shape_of,
    too_much_memory,
    too_small_a_share,
)
from grpo.types import MachineConstants, Problem
from tests.learner.models import files_of

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
    shape = model_shape(files_of(tmp_path))
    assert (shape.layers, shape.width, shape.inner_width, shape.vocabulary) == (2, 32, inner, 64)
    settings = TrainConfig(device="cpu")
    settings.learner.precision = settings.rollout.precision = "float32"
    print_tables(settings, files_of(tmp_path))
    printed = " ".join(capsys.readouterr().out.split())
    assert "M parameters, float32" in printed and "warmup" not in printed


@pytest.mark.parametrize("dry", [True, False])
def test_a_run_says_in_three_lines_what_a_dry_run_shows_in_tables(dry, tmp_path, capsys):
    LlamaConfig(**SMALL, intermediate_size=64).save_pretrained(tmp_path)
    words = ["experiment=tiny", "rollout=transformers", "device=cpu", "task.prompt.max_tokens=24"]
    precision = ["learner.precision=float32", "rollout.precision=float32"]
    print_tables(compose_config([*words, *precision, "num_steps=3", f"dry_run={dry}"]), files_of(tmp_path))
    printed = capsys.readouterr().out
    if dry:
        return [printed.index(title) for title in ("Placement", "Batches", "Memory, tiny, 0.0 M parameters, float32")]
    place, batch, run = printed.splitlines()
    assert place.startswith("learner ranks on 1 × CPU: tiny, 0.0 M parameters, float32; about ")
    assert batch == "each step: 16 prompts × 8 completions of at most 6 tokens; micro-batches: about 1 at that length"
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
    settings.learner.warmup_steps = 80_000
    settings.learner.precision = settings.rollout.precision = "float32"
    print_tables(settings, files_of(tmp_path))
    warning = "learner.warmup_steps=80000 is above num_steps=20: the learning rate ends at 0.025% of learner.learning_"
    assert warning in " ".join(capsys.readouterr().out.split())


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
    print_tables(config, files_of(tmp_path))
    printed = " ".join(capsys.readouterr().out.split())
    assert f"on {ranks} ranks" in printed and row in printed
    print_price(config, files_of(tmp_path), None)
    # A launcher says how many there are.
    monkeypatch.setenv("LOCAL_RANK", "0")
    print_tables(config, files_of(tmp_path))
    assert "on 1 rank " in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("words", "local", "num_gpus", "line"),
    [
        ([], 1, 2, "1 of the 2 GPUs here is unused: `grpo launch … hardware=node hardware.ranks_per_node=2` learns"),
        (["hardware=split"], 4, 8, ""),
        (
            ["hardware=split", "rollout.servers.replicas=2"],
            4,
            8,
            "2 of the 8 GPUs here are unused: `grpo launch … hard",
        ),
        ([], 1, 1, ""),
        ([], 1, 0, ""),
    ],
)
def test_gpus_that_nothing_uses_are_named_with_the_words_that_use_them(words, local, num_gpus, line):
    said = tables.idle_gpus(compose_config(["experiment=gsm8k_qwen2_5_7b", *words]), local, num_gpus)
    assert said.startswith(line) and bool(said) == bool(line)


def test_a_run_on_one_of_eight_gpus_says_so(tmp_path, monkeypatch, capsys):
    LlamaConfig(**LLAMA, num_attention_heads=4, num_key_value_heads=4).save_pretrained(tmp_path)
    for name, value in {"is_available": True, "device_count": 8}.items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    for name in ("device_gib", "available_gib"):
        monkeypatch.setattr(device_memory, name, lambda device: 79.6)
    small = ["experiment=tiny", "device=cuda", "learner.precision=bfloat16", "rollout.precision=bfloat16"]
    print_tables(compose_config(small), files_of(tmp_path))
    assert "7 of the 8 GPUs here are unused: `grpo launch … hardware=node`" in capsys.readouterr().out


def test_a_share_of_a_gpu_that_does_not_hold_the_samplers_weights_is_reported(tmp_path, monkeypatch, capsys):
    LlamaConfig(**LLAMA, num_attention_heads=4, num_key_value_heads=4).save_pretrained(tmp_path)
    # 32.8 B parameters take 61 GiB in bfloat16, and 0.4 of 79.6 GiB is 31.8.
    large = replace(model_shape(files_of(tmp_path)), parameters=32_763_876_352)
    monkeypatch.setattr(tables, "model_shape", lambda *arguments: large)
    monkeypatch.setattr(device_memory, "device_gib", lambda config: 79.6)
    config = TrainConfig(device="cuda")
    config.learner.precision = config.rollout.precision = "bfloat16"
    config.rollout.gpu_memory_fraction, warning = 0.4, "is 31.8 GiB of a GPU, and the sampler's weights alone take 61.0"
    # The GPU of another machine may be a larger one.
    print_tables(config, files_of(tmp_path))
    assert warning in capsys.readouterr().out
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UserError, match=warning):
        print_tables(config, files_of(tmp_path))
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
    shape = model_shape(files_of(tmp_path))
    message = too_much_memory(config, shape, 1, 1)
    assert bool(message) == bool(asked)
    if asked:
        assert f"sampler {asked}." in message and "and this machine has 23.5: lower rollout.kv_cache_gib" in message
        with pytest.raises(UserError, match="this machine has 23.5"):
            print_tables(config, files_of(tmp_path))


def test_a_dry_run_for_gpus_elsewhere_takes_as_many_as_its_servers_need(tmp_path, monkeypatch, capsys):
    LlamaConfig(**LLAMA, num_attention_heads=4, num_key_value_heads=4).save_pretrained(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    small = ["experiment=tiny", "device=cuda", "learner.precision=bfloat16", "rollout.precision=bfloat16"]
    servers = ["rollout=vllm_server", "rollout.servers.first_gpu=1", "rollout.servers.replicas=50", "dry_run=true"]
    print_tables(compose_config([*small, *servers]), files_of(tmp_path))
    printed = " ".join(capsys.readouterr().out.split())
    assert "no GPU here, so this is for another machine: the tables are those of one with 51 GPUs" in printed
    # A learner holds more than a GPU has.
    large = replace(model_shape(files_of(tmp_path)), parameters=32_763_876_352)
    config = compose_config([*small, "dry_run=true"])
    assert "weights, gradients and optimizer take 549.2 GiB of each GPU, which has 80.0" in too_much_memory(
        config, large, 1, 1
    )


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


def test_a_run_is_priced_by_the_lengths_that_solve_rates_measured():
    def problems(*lengths):
        rows = [dict(zip(("prompt_tokens", "completion_tokens"), pair, strict=False)) for pair in lengths]
        return [Problem(str(at), "q", "a", metadata=row) for at, row in enumerate(rows)]

    assert mean_lengths(problems((10, 4.0), (14, 6.5), (), (12, 7.4))) == (12, 6)
    assert mean_lengths(problems((10, 4.0), ("10", 4.0))) is None and mean_lengths([]) is None
    config = compose_config(WORDS)
    run = price(config, 1000, 1, MACHINE, (12, 6))
    # 64 completions of 6 tokens behind 8 prompts of 12.
    assert (run.sampled, run.learned, config.task.prompt.max_tokens) == (384, 480, 20)
    # The run's own limit on completions is 10 tokens.
    assert price(config, 1000, 1, MACHINE, (12, 60)).sampled == 640
    assert price_rows(run, 0.0)[0] == ("completion tokens to sample, as measured", "384", "7,680")


def test_the_table_holds_what_is_known_and_no_more():
    assert [row[0] for row in price_rows(priced(machine=None), 2.0)] == [
        "completion tokens to sample, at most",
        "packed tokens to learn from, at most",
    ]
    # Silent groups are replaced by more samples, and nobody knows beforehand by how many.
    refilled = priced("rollout.refill.enabled=true", machine=None)
    assert price_rows(refilled, 2.0)[0][0] == "completion tokens to sample, without refills"
    rows = price_rows(priced("num_steps=36000"), 2.5)
    assert rows[-2:] == [
        ("device hours, on 1", "", "52.00"),
        ("device hours × hardware.price_per_hour=2.5", "", "130.00"),
    ]


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


@pytest.mark.parametrize(
    ("experiment", "size", "sampling", "learning"),
    [("gsm8k_qwen2_5_7b_24gb", "7b", 21.6, 19.8), ("gsm8k_qwen2_5_1_5b_24gb", "1.5b", 20.4, 16.9)],
)
def test_the_recipes_for_a_card_of_24_gb_fit_on_one(experiment, size, sampling, learning, tmp_path):
    config = compose_config([f"experiment={experiment}", f"output_dir={tmp_path}/run"])
    validate(config, 1)
    config.learner.precision = config.rollout.precision = "bfloat16"
    shape = shape_of(bench.config_of(SIZES[size].shape), adapted=config.model)
    # Such a card has 23.6 GiB.
    in_all = memory_estimate(config, shape, 1, 23.6)[-1][1:]
    assert in_all == pytest.approx((sampling, learning), abs=0.05) and max(in_all) < 23.6
    # A refresh that sends all weights has them on the GPU twice, and no card of 24 GB holds 7B twice.
    config.rollout.merge_adapters = True
    assert (memory_estimate(config, shape, 1, 23.6)[-1][1] > 23.6) == (size == "7b")


def test_a_dry_run_computes_for_a_card_that_is_not_here(tmp_path, monkeypatch, capsys):
    LlamaConfig(**SMALL, intermediate_size=64).save_pretrained(tmp_path)
    small = ["experiment=tiny", "device=cuda", "learner.precision=bfloat16", "rollout.precision=bfloat16"]
    config = compose_config([*small, "hardware.gpu_memory_gib=24", "dry_run=true"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    print_tables(config, files_of(tmp_path))
    printed = " ".join(capsys.readouterr().out.split())
    # vLLM's share of it is 0.4.
    assert "GPUs of 24 GiB" in printed and "sampler's KV cache and graphs │ 9.6 GiB" in printed
    assert gpu_gib(replace(config, dry_run=False)) == 80 and gpu_gib(replace(config, device="cpu")) == 0


def test_sizes_are_found_where_layers_differ_and_where_there_is_no_attention(tmp_path):
    def shape(model_type, **settings):
        common = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 64}
        AutoConfig.for_model(model_type, **common, **settings).save_pretrained(tmp_path / model_type)
        return model_shape(files_of(tmp_path / model_type))

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
