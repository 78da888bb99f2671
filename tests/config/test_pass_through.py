"""Settings for vLLM, DeepSpeed and transformers reach them, and those that the run sets itself are refused by name."""

import json
import shutil
from types import SimpleNamespace

import pytest

from grpo.config import UserError
from grpo.config.hydra import compose_config
from grpo.config.parts import SamplerSettings
from grpo.config.pass_through import ENGINE_ARGS, SAMPLING, check_pass_through, check_training
from grpo.learner.engine import deepspeed_config
from grpo.models import resolve
from grpo.models.resolve import with_config
from grpo.rollout import known_arguments
from grpo.rollout.engine_arguments import command_line, engine_arguments, sampling_arguments, sleep_arguments
from grpo.rollout.known_arguments import check_engine_arguments
from grpo.rollout.servers import server_arguments


def config(*words):
    return compose_config(["experiment=tiny", "rollout=vllm", "rollout.precision=float32", *words])


def test_engines_get_vllms_own_arguments_in_process_and_as_servers():
    chosen = config(
        "+rollout.engine_args={kv_cache_dtype: fp8, max_num_batched_tokens: 16384, "
        "speculative_config: {method: ngram, num_speculative_tokens: 4}}"
    )
    arguments = engine_arguments(SamplerSettings.of(chosen), "model", on_gpu=True)
    assert arguments["kv_cache_dtype"] == "fp8" and arguments["max_num_batched_tokens"] == 16384
    words = command_line(arguments)
    assert json.loads(words[words.index("--speculative-config") + 1]) == {
        "method": "ngram",
        "num_speculative_tokens": 4,
    }
    with pytest.raises(
        UserError, match=r"rollout.engine_args.max_num_batched_tokens is set by the run itself on a CPU"
    ):
        engine_arguments(SamplerSettings.of(chosen), "model", on_gpu=False)
    with pytest.raises(UserError, match=r"engine_args.block-size is set by the run itself on a CPU"):
        engine_arguments(SamplerSettings.of(config("+rollout.engine_args={block-size: 16}")), "model", on_gpu=False)


def test_one_argument_can_be_given_as_a_key_of_its_own():
    chosen = config("+rollout.engine_args.async_scheduling=true", "+learner.deepspeed.wall_clock_breakdown=true")
    assert engine_arguments(SamplerSettings.of(chosen), "model", on_gpu=True)["async_scheduling"] is True
    assert deepspeed_config(chosen.learner)["wall_clock_breakdown"] is True


def test_deepspeed_gets_its_own_settings_beside_those_of_the_run():
    chosen = config(
        "learner.zero_stage=2",
        "+learner.deepspeed={communication_data_type: fp32, zero_optimization: {reduce_bucket_size: 1000}}",
    )
    made = deepspeed_config(chosen.learner)
    assert made["communication_data_type"] == "fp32"
    assert made["zero_optimization"] | {"stage": 2, "reduce_bucket_size": 1000} == made["zero_optimization"]


def test_sampling_gets_vllms_own_settings_and_training_refuses_what_changes_probabilities():
    chosen = config("+rollout.sampling.extra={ignore_eos: true}")
    check_training(chosen)
    assert sampling_arguments(chosen.rollout.sampling, [2], 1)["ignore_eos"] is True
    with pytest.raises(
        UserError, match=r"rollout.sampling.extra.min_p: training takes ignore_eos alone, .* `grpo eval` takes it"
    ):
        check_training(config("+rollout.sampling.extra={min_p: 0.1}"))


def test_an_entry_without_a_plus_is_the_entry_with_one():
    for word in ("rollout.engine_args={kv_cache_dtype: fp8}", "+rollout.engine_args={kv_cache_dtype: fp8}"):
        assert config(word).rollout.engine_args == {"kv_cache_dtype": "fp8"}


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("+rollout.engine_args={gpu_memory_utilization: 0.9}", "use rollout.gpu_memory_fraction"),
        ("+rollout.engine_args={logprobs_mode: raw_logprobs}", "leave it out"),
        # `vllm serve` takes names with hyphens, and the last of two flags counts.
        ("+rollout.engine_args={logprobs-mode: raw_logprobs}", "engine_args.logprobs-mode is set by the run itself"),
        ("+rollout.engine_args={max-model-len: 10}", "use model.max_length"),
        ("+rollout.sampling.extra={top_p: 0.9}", "use rollout.sampling.top_p"),
        ("+learner.deepspeed={zero_optimization: {stage: 3}}", "use learner.zero_stage"),
        ("+learner.deepspeed={gradient_accumulation_steps: 4}", "leave it out"),
        ("+learner.deepspeed={gradient_allreduce_op: sum}", "leave it out"),
        ("+learner.deepspeed={zero_optimization: {compute_grad_norm: false}}", "leave it out"),
        ("+model.config={torch_dtype: float16}", "use learner.precision"),
        ("+rollout.engine_args={speculative_config: {method: eagle, model: draft}}", "use rollout=vllm_server"),
    ],
)
def test_settings_that_the_run_makes_itself_are_refused_by_name(word, expected):
    with pytest.raises(UserError, match=expected) as refused:
        check_pass_through(config(word))
    assert word.partition("=")[0].removeprefix("+") in str(refused.value)
    assert "\n" not in str(refused.value)


def test_everything_that_the_run_hands_to_vllm_is_its_own():
    chosen = config()
    on_gpu = engine_arguments(SamplerSettings.of(chosen), "model", on_gpu=True) | sleep_arguments(speculates=True)
    assert set(on_gpu | server_arguments(chosen.rollout.servers, on_gpu=True)) <= set(ENGINE_ARGS)
    assert set(sampling_arguments(chosen.rollout.sampling, [2], 1)) <= set(SAMPLING)


def test_a_model_with_another_config_is_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "cache"))
    model = tmp_path / "model"
    model.mkdir()
    settings = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "vocab_size": 64}
    (model / "config.json").write_text(json.dumps(settings))
    (model / "model.safetensors").write_bytes(b"weights")
    assert with_config(model, {}) == model
    folder = with_config(model, {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}})
    assert folder == with_config(model, {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}) != model
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    assert json.loads((folder / "config.json").read_text()) == {
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0},
        "vocab_size": 64,
    }
    assert json.loads((model / "config.json").read_text()) == settings
    assert with_config(model, {"vocab_size": 96}) != folder
    # transformers reads no rope_theta beside rope_parameters.
    older = json.loads((with_config(model, {"rope_theta": 77.0}) / "config.json").read_text())
    assert older == settings | {"rope_parameters": {"rope_type": "default", "rope_theta": 77.0}}
    # Phi, GLM and Nemotron hold the rotated share twice, and transformers takes the inner one.
    rotated = json.loads((with_config(model, {"partial_rotary_factor": 0.25}) / "config.json").read_text())
    assert rotated["rope_parameters"] == settings["rope_parameters"] | {"partial_rotary_factor": 0.25}
    layers = {"rope_parameters": {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}}
    (model / "config.json").write_text(json.dumps(layers))
    with pytest.raises(UserError, match="rope_theta is one value, and this model has one for each kind of layer"):
        with_config(model, {"rope_theta": 77.0})
    assert folder.stat().st_mode == folder.parent.stat().st_mode, "whoever may read the cache may read the folder"


def test_slower_processes_take_the_folder_of_the_quickest_that_changes_the_same_model(tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "cache"))
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": "qwen2"}))

    def too_late(made, folder):
        shutil.copytree(made, folder)
        raise OSError("Directory not empty")

    monkeypatch.setattr(resolve.os, "rename", too_late)
    folder = with_config(model, {"vocab_size": 96})
    assert json.loads((folder / "config.json").read_text())["vocab_size"] == 96
    assert list(folder.parent.iterdir()) == [folder]


def test_a_setting_that_a_model_does_not_have_is_refused_with_the_one_that_is_meant(tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "cache"))
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": "qwen2", "own_switch": 1}))
    for name in ("max_position_embeddings", "rope_scaling", "rope_theta", "rope_parameters", "own_switch"):
        assert with_config(model, {name: {}}) != model
    with pytest.raises(UserError, match="no setting of qwen2 models; did you mean max_position_embeddings?"):
        with_config(model, {"max_position_embedings": 512})
    # A class of the model's own may read anything.
    (model / "config.json").write_text(json.dumps({"model_type": "of_its_own"}))
    assert with_config(model, {"max_position_embedings": 512}) != model


def test_an_argument_that_vllm_does_not_know_is_refused_with_the_one_that_is_meant():
    check_engine_arguments(config("+rollout.engine_args={kv_cache_dtype: fp8}").rollout)
    with pytest.raises(UserError, match="engine_args.kv_cache_dtyp is no argument .*; did you mean kv_cache_dtype?"):
        check_engine_arguments(config("+rollout.engine_args={kv_cache_dtyp: fp8}").rollout)
    # Of servers alone.
    word = "+rollout.engine_args={max-log-len: 9}"
    check_engine_arguments(config("rollout=vllm_server", word).rollout)
    with pytest.raises(UserError, match="max-log-len is no argument of the installed vLLM"):
        check_engine_arguments(config(word).rollout)
    # Only flags have two signs.
    hyphens = "+rollout.engine_args={kv-cache-dtype: fp8}"
    check_engine_arguments(config("rollout=vllm_server", hyphens).rollout)
    with pytest.raises(UserError, match="did you mean kv_cache_dtype?"):
        check_engine_arguments(config(hyphens).rollout)


@pytest.mark.parametrize("vllm", ["not installed", "with its source elsewhere"])
def test_where_the_names_of_arguments_cannot_be_read_none_is_refused(vllm, monkeypatch, tmp_path):
    elsewhere = None if vllm == "not installed" else SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(known_arguments, "find_spec", lambda name: elsewhere)
    check_engine_arguments(config("+rollout.engine_args={anything: 1}").rollout)


@pytest.mark.parametrize(
    "word",
    [
        "rollout.sampling.top_p=0.9",
        "rollout.sampling.top_k=5",
        "rollout.sampling.stop=[Question]",
        "evaluation.top_p=0.9",
        "evaluation.top_k=5",
    ],
)
def test_settings_that_transformers_cannot_sample_with_are_refused_by_the_words_alone(word):
    key, value = word.split("=")
    with pytest.raises(UserError, match=rf"^{key}=\W*{value.strip('[]')}\W* is vLLM's, and rollout.engine is transf"):
        check_pass_through(compose_config(["experiment=tiny", "rollout=transformers", word]))
    check_pass_through(config(word))
    off = ["rollout.sampling.top_p=1", "evaluation.top_p=1", "evaluation.top_k=0", "rollout.sampling.stop=[]"]
    check_pass_through(compose_config(["experiment=tiny", "rollout=transformers", *off]))


def test_a_switch_of_the_sampler_that_is_text_is_refused():
    with pytest.raises(UserError, match=r"^rollout.sampling.extra.ignore_eos=yes please: it takes true or false$"):
        check_pass_through(config("rollout.sampling.extra.ignore_eos='yes please'"))
