"""Compiled functions compute parts of layers only where they compute what single steps compute.

Nothing is compiled here, which takes minutes on a CPU. tests/gpu/test_kernels.py does."""

from copy import deepcopy
from functools import partial
from types import SimpleNamespace

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


def test_a_device_that_is_not_there_is_a_reason():
    assert "cuda" in deviation(PARTS[0], torch.device("cuda", 7), torch.float32).lower()


@pytest.mark.parametrize(("dtype", "share"), [(torch.float32, 1e-4), (torch.bfloat16, 0.03)])
def test_a_difference_of_several_roundings_is_noticed(dtype, share, monkeypatch):
    monkeypatch.setattr(fused, "compiled", wrong("_product", lambda product: product * (1 + share)))
    assert "other values" in deviation(PARTS[0], CPU, dtype)


def test_torch_finds_the_operators_consistent(uncompiled):
    """Fake tensors have the shapes and strides of real ones, and gradients are registered rightly."""
    for part in PARTS:
        for given in part.drawn(torch.Generator().manual_seed(0), 5):
            inputs = [tensor.requires_grad_(place < part.learned) for place, tensor in enumerate(given)]
            checks = ("test_schema", "test_autograd_registration", "test_faketensor")
            torch.library.opcheck(part.compiled, inputs, test_utils=checks)


@pytest.mark.parametrize(
    ("name", "gated", "rotating"),
    [
        ("Llama, biases, dropout", 4, 4),
        # These rotate a part of each head, or all where cosines are as wide; by cosines in float32; and pairs of
        # neighbours.
        ("Qwen3.5 (dense text)", 4, 0),
        ("Phi-3, window", 0, 0),
        ("OLMo 2", 4, 0),
        ("Cohere 2", 4, 0),
        # The gate has another function.
        ("Gemma 2", 0, 4),
        ("GPT-2", 0, 0),
    ],
)
def test_layers_of_these_two_forms_are_taken_and_no_others(name, gated, rotating):
    model = small(name)
    assert [len(part.layers(model)) for part in PARTS] == [gated, rotating]


def test_a_layer_with_a_further_part_or_bounds_keeps_its_own_forward():
    model = small("Llama")
    first, second, *others = PARTS[0].layers(model)
    first.norm = torch.nn.Identity()
    second.__class__ = type("Bounded", (Bounded, type(second)), {})
    assert PARTS[0].layers(model) == others


class Bounded(torch.nn.Module):
    """This layer clamps its gate, as DeepSeek V4 does."""

    def forward(self, hidden):
        gate = self.act_fn(self.gate_proj(hidden)).clamp(max=7)
        return self.down_proj(gate * self.up_proj(hidden))


class Partial(torch.nn.Module):
    forward = partial(len)


def test_a_layer_that_a_look_at_it_cannot_read_is_left_alone():
    assert [part.layers(Partial()) for part in PARTS] == [[], []]


def apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1):
    return [x * cos.unsqueeze(unsqueeze_dim) + turned(x) * sin.unsqueeze(unsqueeze_dim) for x in (q, k)]


def turned(hidden):
    first, second = hidden.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


class Attention(torch.nn.Module):
    """This layer has heads in the third place, and a keyword of its own."""

    def forward(self, query, key, cos, sin, *, place=2):
        return apply_rotary_pos_emb(query, key, cos, sin, unsqueeze_dim=place)


@pytest.mark.parametrize("of_cosines", DTYPES)
def test_a_rotation_keeps_its_place_its_rows_and_its_precision(of_cosines, uncompiled):
    layer, numbers = Attention(), torch.Generator().manual_seed(0)
    query, key = (torch.randn(3, 5, heads, 8, generator=numbers).bfloat16() for heads in (4, 2))
    cos, sin = torch.randn(2, 3, 5, 8, generator=numbers).to(of_cosines)
    expected = layer(query, key, cos, sin)
    assert PARTS[1].layers(layer) == [layer]
    fuse_all(layer)
    assert all(map(torch.equal, layer(query, key, cos, sin), expected))
    assert layer(query, key, cos, sin)[0].dtype == torch.promote_types(torch.bfloat16, of_cosines)


@pytest.mark.parametrize("dtype", DTYPES)
# Phi cuts off a part of each head before it rotates.
@pytest.mark.parametrize("name", ["Qwen2", "Phi (output bias)"])
def test_a_whole_model_has_the_same_logits_and_gradients_bit_by_bit(name, dtype, uncompiled):
    model = small(name, dtype).eval()
    own = deepcopy(model)
    fuse_all(model)
    tokens = torch.arange(40)[None] % 31
    logits, expected = model(tokens).logits, own(tokens).logits
    assert torch.equal(logits, expected) and logits.dtype == dtype
    for logits_of in (logits, expected):
        logits_of.float().log_softmax(-1)[..., 3].sum().backward()
    for (name, weight), (_, same) in zip(model.named_parameters(), own.named_parameters(), strict=True):
        assert torch.equal(weight.grad, same.grad), name


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
    reasons = iter(["", "no compiler", "", ""])
    monkeypatch.setattr(fused_layers, "deviation", lambda part, device, dtype: next(reasons))
    elsewhere = SimpleNamespace(rank=0, maximum=lambda value: max(value, failed))
    failed = 0

    def chosen(name, device, setting):
        models = [small(name), small(name)]
        choose_layers(models, torch.device(device), setting, elsewhere)
        taken = ["forward" in vars(module) for model in models for module in model.modules()]
        return sum(taken), capsys.readouterr().err

    assert chosen("Llama", "cpu", "auto") == (0, "")
    assert chosen("Llama", "cuda", "never") == (0, "")
    assert chosen("GPT-2", "cuda", "auto") == (0, "")
    failed_here, failed_there = "step by step (no compiler)", "step by step (the trial failed on another rank)"
    said = "grpo: feed-forward layers are computed {}\ngrpo: rotary positions are computed {}\n".format
    assert chosen("Llama", "cuda", "auto") == (8, said("by a compiled function", failed_here))
    failed = 1
    assert chosen("Llama", "cuda", "auto") == (0, said(failed_there, failed_there))
