"""Compiled functions compute parts of layers only where they compute what single steps compute.

Nothing is compiled here, which takes minutes on a CPU. tests/gpu/test_kernels.py does."""

from copy import deepcopy

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.small_models import config_of
from grpo.algorithm import fused
from grpo.learner import fused_layers
from grpo.learner.fused_layers import PARTS, choose_layers, deviation, fuse_all
from tests.learner.test_fused_head import CPU, wrong

DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture
def uncompiled(monkeypatch):
    monkeypatch.setattr(fused, "compiled", lambda function: function)


def saved_bytes(computation):
    """Returns how many bytes its backward pass keeps, each tensor counted once."""
    kept = {}
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: kept.setdefault(tensor.data_ptr(), tensor), lambda tensor: tensor
    ):
        _made = computation()
    return sum(tensor.numel() * tensor.element_size() for tensor in kept.values())


def small(name, dtype=torch.float32):
    return AutoModelForCausalLM.from_config(config_of(name), dtype=dtype)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
@pytest.mark.parametrize("dtype", DTYPES)
def test_their_formulas_are_those_of_single_steps_bit_by_bit(dtype, part, uncompiled, monkeypatch):
    monkeypatch.setattr(fused_layers, "LIMITS", dict.fromkeys(DTYPES, 0.0))
    assert deviation(part, CPU, dtype) == ""


@pytest.mark.parametrize(
    ("name", "change", "found"),
    [
        ("_product", lambda product: product * 1.01, "other values"),
        ("_product_slopes", lambda slopes: (slopes[0], slopes[1] + 0.1), "other gradients"),
        ("_product_slopes", lambda slopes: (slopes[0] * 0.9, slopes[1]), "other gradients"),
        ("_product_slopes", lambda slopes: (slopes[0] / 0, slopes[1]), "other gradients"),
        ("_product", lambda product: {}["no kernel"], "KeyError: 'no kernel'"),
        ("_rotation", lambda rotated: rotated.roll(1, -1), "other values"),
        ("_rotation_slopes", lambda slopes: -slopes, "other gradients"),
    ],
)
def test_a_wrong_term_is_noticed(name, change, found, monkeypatch):
    monkeypatch.setattr(fused, "compiled", wrong(name, change))
    part = PARTS["rotation" in name]
    for dtype in DTYPES:
        assert found in deviation(part, CPU, dtype)


def test_a_device_without_random_numbers_is_a_reason():
    assert "cuda" in deviation(PARTS[0], torch.device("cuda", 7), torch.float32).lower()


@pytest.mark.parametrize(
    ("name", "gated", "rotating"),
    [
        ("Llama, biases, dropout", 4, 4),
        ("Qwen3.5 (dense text)", 4, 2),
        ("OLMo 2", 4, 4),
        # It rotates pairs of neighbours, in float32.
        ("Cohere 2", 4, 0),
        # The gate has another function there, or is one matrix with the numbers that it gates.
        ("Gemma 2", 0, 4),
        ("Phi-3, window", 0, 4),
        ("GPT-2", 0, 0),
    ],
)
def test_layers_of_these_two_forms_are_taken_and_no_others(name, gated, rotating):
    model = small(name)
    assert [len(part.layers(model)) for part in PARTS] == [gated, rotating]


def test_a_layer_with_a_further_part_keeps_its_own_forward():
    model = small("Llama")
    first, *others = PARTS[0].layers(model)
    first.norm = torch.nn.Identity()
    assert PARTS[0].layers(model) == others


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "name",
    # Phi cuts off a part of each head before it rotates. OLMo 2 has cosines in float32.
    ["Qwen2", "Phi (output bias)", "OLMo 2"],
)
def test_a_whole_model_has_the_same_logits_and_gradients_bit_by_bit(name, dtype, uncompiled):
    model = small(name, dtype).eval()
    assert_same(model, dtype)


def assert_same(model, dtype):
    own = deepcopy(model)
    fuse_all(model)
    tokens = torch.arange(40)[None] % 31
    logits, expected = model(tokens).logits, own(tokens).logits
    assert torch.equal(logits, expected) and logits.dtype == dtype
    for logits_of in (logits, expected):
        logits_of.float().log_softmax(-1)[..., 3].sum().backward()
    for (name, weight), (_, same) in zip(model.named_parameters(), own.named_parameters(), strict=True):
        assert torch.equal(weight.grad, same.grad), name


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_model_that_rotates_a_part_of_each_head_keeps_its_own_function(dtype, uncompiled):
    config = config_of("Qwen3.5 (dense text)")
    assert config.rope_parameters["partial_rotary_factor"] < 1
    assert_same(AutoModelForCausalLM.from_config(config, dtype=dtype).eval(), dtype)


def test_the_rotation_is_computed_by_the_function_and_other_models_stay_as_they_are(uncompiled, monkeypatch):
    ran = []
    monkeypatch.setattr(fused, "compiled", lambda function: ran.append(function.__name__) or function)
    model, other = small("Llama"), small("Llama")
    fuse_all(model)
    tokens = torch.arange(9)[None]
    other(tokens)
    assert ran == []
    model(tokens).logits.sum().backward()
    assert [ran.count(name) for name in ("_rotation", "_rotation_slopes", "_product", "_product_slopes")] == [
        8,
        8,
        4,
        4,
    ]


def test_the_backward_pass_keeps_one_tensor_of_the_inner_width_fewer(uncompiled):
    model = small("Llama")
    layer = PARTS[0].layers(model)[0]
    hidden = torch.randn(100, layer.gate_proj.in_features, requires_grad=True)
    before = saved_bytes(lambda: layer(hidden))
    fuse_all(model)
    assert before - saved_bytes(lambda: layer(hidden)) == 100 * layer.gate_proj.out_features * 4


def test_layers_on_a_gpu_are_fused_as_a_trial_there_and_the_key_say(monkeypatch, capsys):
    reasons = iter(["", "no compiler"])
    monkeypatch.setattr(fused_layers, "deviation", lambda part, device, dtype: next(reasons))

    def chosen(name, device, setting):
        models = [small(name), small(name)]
        choose_layers(models, torch.device(device), torch.float32, setting)
        taken = ["forward" in vars(module) for model in models for module in model.modules()]
        return sum(taken), capsys.readouterr().err

    assert chosen("Llama", "cpu", "auto") == (0, "")
    assert chosen("Llama", "cuda", "never") == (0, "")
    assert chosen("GPT-2", "cuda", "auto") == (0, "")
    first = "grpo: feed-forward layers are computed by a compiled function\n"
    second = "grpo: rotary positions are computed step by step (no compiler)\n"
    assert chosen("Llama", "cuda", "auto") == (8, first + second)
