import weakref
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from grpo.algorithm import fused
from grpo.algorithm.logprobs import PLAIN, LogitRule, logprobs_alone, token_logprobs

RULES = {
    "plain": PLAIN,
    "scaled": LogitRule(scale=0.3),
    "capped": LogitRule(softcap=1.5),
    "both": LogitRule(scale=0.5, softcap=2.0),
}


def plain(hidden, weight, bias, targets, temperature, rule):
    logits = rule.scale * (hidden @ weight.T + bias)
    logits = logits if rule.softcap is None else rule.softcap * (logits / rule.softcap).tanh()
    logs = (logits / temperature).log_softmax(-1)
    return logs.gather(-1, targets[:, None]).squeeze(-1), -(logs.exp() * logs).sum(-1)


@pytest.mark.parametrize("chunk", [1, 4, 100])
@pytest.mark.parametrize("uses", ["logprobs", "entropies", "both"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("way", ["step by step", "fused"])
def test_values_and_gradients_equal_those_of_the_whole_logit_matrix(chunk, uses, rule, way, monkeypatch):
    """The functions of the second way are not compiled here."""
    monkeypatch.setattr(fused, "compiled", lambda function: function)
    own_rule = replace(RULES[rule], compiled=way == "fused")
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(9, 6, generator=generator)
    weight, bias = torch.randn(13, 6, generator=generator), torch.randn(13, generator=generator)
    targets = torch.randint(13, (9,), generator=generator)
    scale = torch.randn(2, 9, generator=generator)
    use = {"logprobs": (1, 0), "entropies": (0, 1), "both": (1, 1)}[uses]

    def gradients(function, dtype):
        inputs = [tensor.to(dtype, copy=True).requires_grad_() for tensor in (hidden, weight, bias)]
        values = function(*inputs)
        loss = sum(flag * (row * value).sum() for flag, row, value in zip(use, scale, values, strict=True))
        loss.backward()
        return [*values, *(tensor.grad for tensor in inputs)]

    exact = gradients(lambda h, w, b: plain(h, w, b, targets, 0.7, RULES[rule]), torch.float64)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        ours = gradients(lambda h, w, b: token_logprobs(h, w, targets, 0.7, chunk, b, own_rule), dtype)
        for value, reference in zip(ours, exact, strict=True):
            torch.testing.assert_close(value, reference.to(dtype), rtol=tolerance, atol=tolerance)


def test_a_head_in_float32_keeps_what_bfloat16_would_round_off():
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(64, 32, generator=generator).bfloat16()
    weight = torch.randn(500, 32, generator=generator).bfloat16()
    targets = torch.randint(500, (64,), generator=generator)
    exact, _ = plain(hidden.double(), weight.double(), 0.0, targets, 1.0, PLAIN)
    rounded, _ = token_logprobs(hidden, weight, targets, 1.0, 16)
    kept, _ = token_logprobs(hidden, weight, targets, 1.0, 16, rule=LogitRule(float32=True))
    assert (kept - exact).abs().max() < 1e-5
    assert (rounded - exact).abs().mean() > 1e-3


def test_no_targets_give_zero_gradients():
    hidden, weight = torch.zeros(0, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    logprobs, _ = token_logprobs(hidden, weight, torch.zeros(0, dtype=torch.long), 1.0, 8)
    logprobs.sum().backward()
    assert weight.grad.abs().max() == 0


class Alive(TorchDispatchMode):
    """Records the largest number of tensors with `size` elements that are alive at once, among those made under it."""

    def __init__(self, size):
        super().__init__()
        self.size, self.made, self.most = size, [], 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.numel() == self.size:
            self.made.append((weakref.ref(made), made.data_ptr()))
            self.most = max(self.most, len({place for tensor, place in self.made if tensor() is not None}))
        return made


@pytest.mark.parametrize("uses_entropy", [False, True])
def test_two_matrices_as_wide_as_the_vocabulary_are_there_at_once(uses_entropy):
    hidden, weight = torch.randn(8, 3, requires_grad=True), torch.randn(500, 3, requires_grad=True)
    with Alive(4 * 500) as alive_before:
        logprobs, entropies = token_logprobs(hidden, weight, torch.arange(8), 0.7, 4)
    loss = logprobs.sum() + entropies.sum() if uses_entropy else logprobs.sum()
    with Alive(4 * 500) as alive:
        loss.backward()
    assert alive_before.most == alive.most == 2


@pytest.mark.parametrize("chunk", [4, 100])
@pytest.mark.parametrize("rule", RULES)
def test_alone_log_probabilities_are_the_same_bit_by_bit(chunk, rule):
    generator = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(9, 6, generator=generator), torch.randn(13, 6, generator=generator)
    given = hidden, weight.requires_grad_(), torch.arange(9), 0.7, chunk, None, RULES[rule]
    alone = logprobs_alone(*given)
    assert torch.equal(alone, token_logprobs(*given)[0]) and not alone.requires_grad
    assert len(logprobs_alone(hidden[:0], weight, torch.arange(0), 1.0, chunk)) == 0


class Passes(TorchDispatchMode):
    """Counts the operations that read or write matrices of `size` numbers, without views of them."""

    def __init__(self, size):
        super().__init__()
        self.size, self.count = size, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        tensors = [value for value in (*args, made) if isinstance(value, torch.Tensor)]
        self.count += not function.is_view and any(tensor.numel() == self.size for tensor in tensors)
        return made


def test_few_passes_over_all_logits_are_made():
    """Each of them reads or writes gigabytes: product, log-softmax, gathering, and for entropies exp, product, sum. The
    backward pass computes the product, a softmax and its entry at each target again, and two products of them."""
    hidden, weight = torch.randn(8, 3, requires_grad=True), torch.randn(500, 3, requires_grad=True)
    with Passes(4 * 500) as forward:
        logprobs, _ = token_logprobs(hidden, weight, torch.arange(8), 1.0, 4)
    with Passes(4 * 500) as backward:
        logprobs.sum().backward()
    with Passes(4 * 500) as alone:
        logprobs_alone(hidden, weight, torch.arange(8), 1.0, 4)
    # There are two chunks.
    assert (forward.count, backward.count, alone.count) == (2 * 6, 2 * 5, 2 * 3)
