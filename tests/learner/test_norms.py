"""These tests hold that a norm by torch's kernel is the model's own norm, and that other norms stay as they are."""

from copy import deepcopy

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.t5.modeling_t5 import T5LayerNorm

from benchmarks.small_models import config_of
from grpo.learner.norms import fuse_norms, normalized
from grpo.learner.policy import Policy


def norms_of(name, dtype):
    model = AutoModelForCausalLM.from_config(config_of(name), dtype=dtype)
    return model, [module for module in model.modules() if type(module).__name__.endswith(("RMSNorm", "NormGated"))]


def fused(model):
    fuse_norms(model)
    return [module for module in model.modules() if getattr(module.forward, "__func__", None) is normalized]


def test_a_policy_has_torchs_norms():
    model, norms = norms_of("Llama", torch.bfloat16)
    language_model = Policy(model, 64).language_model
    forwards = [getattr(module.forward, "__func__", None) for module in language_model.modules()]
    assert norms and forwards.count(normalized) == len(norms)


def result(norm, hidden, upstream):
    hidden = hidden.clone().requires_grad_()
    output = norm(hidden)
    output.backward(upstream)
    return output.detach(), hidden.grad, norm.weight.grad


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_values_and_gradients_are_the_models_own_bit_by_bit(dtype):
    model, norms = norms_of("Qwen3", dtype)
    before = deepcopy(norms)
    assert fused(model) == norms and len(norms) == 17
    for norm, own in zip(norms, before, strict=True):
        torch.nn.init.normal_(own.weight)
        norm.load_state_dict(own.state_dict())
        hidden, upstream = torch.randn(2, 3, 70, len(norm.weight), dtype=dtype)
        results = result(norm, hidden, upstream), result(own, hidden, upstream)
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(*results, strict=True))


@pytest.mark.parametrize(("name", "kept"), [("Gemma 2", 17), ("OLMo 2", 17), ("gpt-oss", 9), ("Mamba 2", 4)])
def test_norms_that_round_elsewhere_or_have_a_gate_stay_as_they_are(name, kept):
    model, norms = norms_of(name, torch.bfloat16)
    assert len(norms) - len(fused(model)) == kept


def test_a_norm_that_rounds_float32_states_to_its_weight_stays_as_it_is():
    assert fused(torch.nn.Sequential(T5LayerNorm(64))) == []


def test_in_float64_models_compute_norms_themselves():
    """A model's own norm rounds to float32 there."""
    assert fused(norms_of("Llama", torch.float64)[0]) == []
