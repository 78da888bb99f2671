"""A model's folder is refused where its files would make another model, before anything is loaded."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, T5Config, ViTConfig, WhisperConfig

import grpo
from benchmarks.small_models import ARCHITECTURES, config_of
from grpo.config import TrainConfig, UserError
from grpo.config.hydra import compose_config
from grpo.run.model_folder import model_files
from tests.learner.models import tiny_llama

WEIGHTS = "model.safetensors"


def run_with(path, engine="transformers", **model):
    config = TrainConfig()
    config.rollout.engine = engine
    return replace(config, model=replace(config.model, path=str(path), **model))


def refusal(path, engine="transformers", learns=True, **model):
    with pytest.raises(UserError) as caught:
        model_files(run_with(path, engine, **model), learns)
    line, start = str(caught.value), f"model.path={path}"
    assert "\n" not in line and line.startswith(start)
    return line.removeprefix(start)


def with_weights(path, change):
    weights = load_file(path / WEIGHTS)
    save_file(change(weights), path / WEIGHTS, metadata={"format": "pt"})


def with_settings(path, **settings):
    file = path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_weights_that_every_kind_of_model_lacks_are_named_and_whole_ones_are_not(name, tmp_path):
    AutoModelForCausalLM.from_config(config_of(name)).save_pretrained(tmp_path)
    assert model_files(run_with(tmp_path)).path == tmp_path
    lost = sorted(load_file(tmp_path / WEIGHTS))[5]
    with_weights(tmp_path, lambda weights: {key: value for key, value in weights.items() if key != lost})
    assert refusal(tmp_path).startswith(f": its files lack 1 of the model's weights, which would be random: {lost}")


def test_missing_weights_are_counted_and_only_the_first_are_named(tmp_path):
    tiny_llama(tmp_path, tied=False)
    with_weights(
        tmp_path, lambda weights: {k: v for k, v in weights.items() if "layers.1" not in k and k != "lm_head.weight"}
    )
    assert refusal(tmp_path) == (
        ": its files lack 10 of the model's weights, which would be random: lm_head.weight, "
        "model.layers.1.input_layernorm.weight, model.layers.1.mlp.down_proj.weight and 7 more; copy the files again, "
        "or correct its config.json"
    )


def test_a_head_is_missing_only_where_it_is_not_tied(tmp_path):
    tiny_llama(tmp_path, tied=True)
    assert model_files(run_with(tmp_path)).path == tmp_path
    assert "lack 1 of the model's weights, which would be random: lm_head.weight;" in refusal(
        tmp_path, config={"tie_word_embeddings": False}
    )


def test_weights_under_other_names_are_named_with_the_missing_ones(tmp_path):
    tiny_llama(tmp_path)
    with_weights(tmp_path, lambda weights: {k.replace("self_attn", "attn"): v for k, v in weights.items()})
    assert ", and have 8 that it does not have: model.layers.0.attn.k_proj.weight, " in refusal(tmp_path)


def test_weights_that_are_not_used_are_named_in_one_line(tmp_path, capsys):
    tiny_llama(tmp_path, layers=3)
    model_files(run_with(tmp_path, config={"num_hidden_layers": 2}))
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and "its files have 9 weights that the model of its config.json does not have" in line
    model_files(run_with(tmp_path))
    assert not capsys.readouterr().err


def test_files_with_more_layers_than_the_configuration_are_refused_where_vllm_reads_them(tmp_path):
    with_settings(tiny_llama(tmp_path, layers=2), num_hidden_layers=1)
    said = refusal(tmp_path, engine="vllm")
    assert (
        ": its files have weights of layer 1, and its configuration says 1 layers, counted from 0, which vLLM" in said
    )


def test_an_expert_that_is_missing_is_named_as_in_the_files(tmp_path):
    AutoModelForCausalLM.from_config(config_of("Mixtral, window")).save_pretrained(tmp_path)
    lost = "model.layers.1.block_sparse_moe.experts.3.w2.weight"
    assert lost in load_file(tmp_path / WEIGHTS)
    with_weights(tmp_path, lambda weights: {key: value for key, value in weights.items() if key != lost})
    assert f"lack 1 of the model's weights, which would be random: {lost};" in refusal(tmp_path)


def test_weights_that_do_not_fit_their_configuration_are_reported(tmp_path):
    tiny_llama(tmp_path)
    with_settings(tmp_path, intermediate_size=192)
    assert "weights have other shapes than its config.json says: correct model.config" in refusal(tmp_path)


def test_weights_that_are_whole_numbers_are_refused(tmp_path):
    tiny_llama(tmp_path)
    with_weights(tmp_path, lambda weights: {name: value.mul(99).to(torch.int8) for name, value in weights.items()})
    assert "of its weights are whole numbers (model.embed_tokens.weight" in refusal(tmp_path)


def test_a_built_model_whose_config_is_changed_is_checked_too(tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path))
    monkeypatch.setattr("grpo.models.tiny.NUM_STEPS", 0)
    config = compose_config(["experiment=tiny", "+model.config.num_hidden_layers=3"])
    with pytest.raises(UserError, match=r"model.source=tiny: its files lack 9 of the model's weights"):
        model_files(config)


def test_no_weights_are_needed_where_only_the_configuration_is_read(tmp_path):
    AutoConfig.for_model("llama").save_pretrained(tmp_path)
    assert model_files(run_with(tmp_path), needs_weights=False).path == tmp_path


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", " has a damaged config.json: copy it again"),
        ("[]", " has a damaged config.json, which is no object: copy it again"),
        ("[" * 3000, " has a damaged config.json: copy it again (its brackets are nested deeper than 40)"),
        ("{}", ": its config.json has no model_type, which says what kind of model it is"),
        ('{"model_type": "lama9"}', " is a model of type lama9, and the installed transformers "),
        ('{"model_type": "own", "auto_map": {"AutoConfig": "own.Config"}}', "it brings its own code; if you"),
        ('{"model_type": "llama", "hidden_size": "wide"}', ": transformers cannot read its config.json: correct it ("),
        ('{"model_type": "llama", "rms_norm_eps": NaN}', ": its config.json says rms_norm_eps=NaN, which is no number"),
        ('{"model_type": "t5"}', " is a model of type t5, of which transformers makes no language model that "),
    ],
)  # fmt: skip
def test_a_configuration_that_makes_no_model_is_one_line(text, complaint, tmp_path):
    tiny_llama(tmp_path)
    (tmp_path / "config.json").write_text(text)
    assert complaint in refusal(tmp_path)


@pytest.mark.parametrize(("text", "said"), [("{", r"is damaged \(.*\)"), ("[3]", "is damaged: .* no JSON object")])
def test_a_damaged_file_of_ends_is_named(text, said, tmp_path):
    tiny_llama(tmp_path)
    (tmp_path / "generation_config.json").write_text(text)
    with pytest.raises(UserError, match=f"generation_config.json {said}: restore it from a copy"):
        model_files(run_with(tmp_path))


@pytest.mark.parametrize("method", ["gptq", "awq", "bitsandbytes", "torchao", "compressed-tensors", "bitnet"])
def test_a_quantized_model_is_not_trained_and_vllm_alone_measures_it(method, tmp_path):
    tiny_llama(tmp_path)
    with_settings(tmp_path, quantization_config={"quant_method": method, "bits": 4})
    for engine in ("vllm", "vllm_server", "transformers"):
        assert refusal(tmp_path, engine).startswith(f" is quantized ({method}), and only plain weights are trained")
    assert refusal(tmp_path, learns=False).startswith(f" is quantized ({method})")
    assert model_files(run_with(tmp_path, "vllm"), learns=False).path == tmp_path


def test_weights_that_transformers_widens_are_widened_everywhere(tmp_path):
    path = tiny_llama(tmp_path / "plain")
    plain = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)

    def narrow(weights):
        result = dict(weights)
        for name, value in weights.items():
            if value.dim() == 2 and "embed" not in name:
                result[name] = value.to(torch.float8_e4m3fn)
                result[name.replace(".weight", ".weight_scale_inv")] = torch.full((1, 1), 2.0)
        return result

    with_weights(path, narrow)
    with_settings(path, quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]})
    assert "vLLM would keep it so, while the learner trains and sends plain weights" in refusal(path, "vllm")
    widened = AutoModelForCausalLM.from_pretrained(model_files(run_with(path)).path, dtype=torch.float32)
    name = "model.layers.1.mlp.down_proj.weight"
    value = widened.get_parameter(name)
    assert value.dtype == torch.float32
    expected = plain.get_parameter(name).to(torch.float8_e4m3fn).float() * 2
    assert torch.equal(value, expected)


def test_every_command_finds_its_model_here():
    sources = Path(grpo.__file__).parent.rglob("*.py")
    assert sorted(file.name for file in sources if re.search(r"(?<!def )\bresolve\(config", file.read_text())) == [
        "model_folder.py"
    ]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"num_hidden_layers": 10**9}, ": its config.json says num_hidden_layers=1,000,000,000, which no model has"),
        ({"dtype": "int8"}, ": its config.json says dtype=int8, and weights are floating-point numbers: correct it"),
        ({"num_hidden_layers": -3}, ": its config.json says num_hidden_layers=-3, which no model has: correct it"),
        ({"text_config": {"num_experts": 10**6}}, ": its config.json says num_experts=1,000,000, which no model has"),
        (
            {"max_position_embeddings": 0},
            ": its config.json says max_position_embeddings=0, which no model has: correct",
        ),
        (
            {"rope_scaling": {"rope_type": "linear", "factor": "2"}},
            ": its config.json says factor='2', which is no num",
        ),
        ({"rope_scaling": {"factor": 8.0}}, ": its config.json has rope_scaling with a factor and without a rope_type"),
        (
            {"rope_scaling": {"rope_type": "stretch", "factor": 8.0}},
            ": its config.json scales positions by rope_type=stretch, which transformers does not know: choose one of",
        ),
        (
            {"architectures": ["LlamaForSequenceClassification"]},
            ": its config.json says LlamaForSequenceClassification, which scores texts and continues none: give a",
        ),
        ({"is_encoder_decoder": True}, " is a model of type llama, whose encoder reads what its decoder then answers"),
    ],
)
def test_a_model_that_cannot_be_one_is_refused_before_it_is_made(settings, complaint, tmp_path):
    tiny_llama(tmp_path)
    with_settings(tmp_path, **settings)
    assert refusal(tmp_path).startswith(complaint)


def test_as_many_experts_as_doge_has_are_no_mistake(tmp_path):
    tiny_llama(tmp_path)
    with_settings(tmp_path, num_experts=16_384)
    assert model_files(run_with(tmp_path)).path == tmp_path


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        (ViTConfig(), " is a model of type vit, of which transformers makes no language model that continues a text"),
        (T5Config(), " is a model of type t5, of which transformers makes no language model"),
        (WhisperConfig(), " is a model of type whisper, whose encoder reads what its decoder then answers"),
    ],
)
def test_a_model_that_does_not_continue_texts_is_refused(config, complaint, tmp_path):
    config.save_pretrained(tmp_path)
    (tmp_path / WEIGHTS).touch()
    with pytest.raises(UserError) as caught:
        model_files(run_with(tmp_path), needs_weights=False)
    assert str(caught.value).startswith(f"model.path={tmp_path}{complaint}")
