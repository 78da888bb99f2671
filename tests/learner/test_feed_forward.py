"""A compiled function computes feed-forward layers only where it computes what single steps compute.

Nothing is compiled here, which takes minutes on a CPU. tests/gpu/test_kernels.py does."""

from copy import deepcopy

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.small_models import config_of
from grpo.algorithm import fused
from grpo.learner import feed_forward
from grpo.learner.feed_forward import choose_feed_forward, deviation, fuse, gated_layers
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


@pytest.mark.parametrize("dtype", DTYPES)
def test_its_formulas_are_those_of_single_steps(dtype, uncompiled, monkeypatch):
    monkeypatch.setattr(feed_forward, "LIMITS", dict.fromkeys(DTYPES, 0.0))
    assert deviation(CPU, dtype) == ""


@pytest.mark.parametrize(
    ("name", "change", "found"),
    [
        ("_plain_product", lambda product: product * 1.01, "other products"),
        ("_plain_slopes", lambda slopes: (slopes[0], slopes[1] + 0.1), "other gradients"),
        ("_plain_slopes", lambda slopes: (slopes[0] * 0.9, slopes[1]), "other gradients"),
        ("_plain_slopes", lambda slopes: (slopes[0] / 0, slopes[1]), "other gradients"),
        ("_plain_product", lambda product: {}["no kernel"], "KeyError: 'no kernel'"),
    ],
)
def test_a_wrong_term_is_noticed(name, change, found, monkeypatch):
    monkeypatch.setattr(fused, "compiled", wrong(name, change))
    for dtype in DTYPES:
        assert found in deviation(CPU, dtype)


@pytest.mark.parametrize(
    ("name", "layers"),
    [("Qwen3", 4), ("Llama, biases, dropout", 4), ("Gemma 2", 0), ("Phi-3, window", 0), ("GPT-2", 0)],
)
def test_layers_are_taken_that_multiply_silu_of_a_gate_and_nothing_else(name, layers):
    assert len(gated_layers(small(name))) == layers


def test_a_layer_with_a_further_part_keeps_its_own_forward():
    model = small("Llama")
    first, *others = gated_layers(model)
    first.norm = torch.nn.Identity()
    assert gated_layers(model) == others


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_whole_model_has_the_same_logits_and_gradients_bit_by_bit(dtype, uncompiled):
    model = small("Qwen3", dtype)
    own = deepcopy(model)
    for layer in gated_layers(model):
        fuse(layer)
    tokens = torch.arange(40)[None] % 31
    logits, expected = model(tokens).logits, own(tokens).logits
    assert torch.equal(logits, expected)
    for logits_of in (logits, expected):
        logits_of.float().log_softmax(-1)[..., 3].sum().backward()
    for (name, weight), (_, same) in zip(model.named_parameters(), own.named_parameters(), strict=True):
        assert torch.equal(weight.grad, same.grad), name


def test_the_backward_pass_keeps_one_tensor_of_the_inner_width_fewer(uncompiled):
    layer = gated_layers(small("Llama"))[0]
    hidden = torch.randn(100, layer.gate_proj.in_features, requires_grad=True)
    before = saved_bytes(lambda: layer(hidden))
    fuse(layer)
    assert before - saved_bytes(lambda: layer(hidden)) == 100 * layer.gate_proj.out_features * 4


def test_layers_on_a_gpu_are_fused_as_a_trial_there_and_the_key_say(monkeypatch, capsys):
    reasons = iter(["", "no compiler"])
    monkeypatch.setattr(feed_forward, "deviation", lambda device, dtype: next(reasons))

    def chosen(name, device, setting):
        models = [small(name), small(name)]
        choose_feed_forward(models, torch.device(device), torch.float32, setting)
        fused_layers = ["forward" in vars(module) for model in models for module in model.modules()]
        return sum(fused_layers), capsys.readouterr().err

    assert chosen("Llama", "cpu", "auto") == (0, "")
    assert chosen("Llama", "cuda", "never") == (0, "")
    assert chosen("Gemma 2", "cuda", "auto") == (0, "")
    assert chosen("Llama", "cuda", "auto") == (8, "grpo: feed-forward layers are computed by a compiled function\n")
    assert chosen("Llama", "cuda", "auto") == (
        0,
        "grpo: feed-forward layers are computed step by step (no compiler)\n",
    )
