"""These tests compare kernels that only a GPU has with float64 on the CPU."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from grpo.algorithm.logprobs import PLAIN, LogitRule
from grpo.algorithm.loss import policy_loss
from grpo.algorithm.packing import Branch, LooseTree, attention_mask, pack
from grpo.config import ModelConfig, ObjectiveConfig
from grpo.learner import attention, fused_layers, varlen
from grpo.learner.fused_head import deviation
from grpo.learner.group_logprobs import to_device
from grpo.learner.loading import load_policy
from grpo.learner.norms import fuse_norms, normalized
from grpo.types import Completion, Tree
from tests.learner.models import files_of, tiny_llama

GPU = torch.device("cuda", 0)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")]

TREES = (Tree(0, 130, (200, 0, 63)), Tree(393, 17, (900,)), Tree(1310, 257, (1, 511, 300, 40), shared=100))
TOKENS, HEADS, GROUPS = 2319, 8, 2
BOUNDS = {torch.bfloat16: 1e-2, torch.float32: 1e-5}
KINDS = {"plain": {}, "window": {"sliding_window": 100}, "softcap": {"softcap": 20.0}}


def drawn(width):
    generator = torch.Generator().manual_seed(0)
    shapes = ((HEADS, width), (GROUPS, width), (GROUPS, width), (HEADS, width))
    return [torch.randn(1, heads, TOKENS, size, generator=generator, dtype=torch.float64) for heads, size in shapes]


def exact(query, key, value, options):
    """Returns attention over every tree under the tree's mask, computed in float64."""
    outputs = []
    for tree in TREES:
        here = slice(tree.start, tree.end)
        seen = [*range(tree.shared), *range(tree.start, tree.end)]
        keys, values = (shared[0, :, seen].repeat_interleave(HEADS // GROUPS, 0) for shared in (key, value))
        scores = query[0, :, here] @ keys.transpose(1, 2) * query.shape[-1] ** -0.5
        if softcap := options.get("softcap"):
            scores = softcap * (scores / softcap).tanh()
        mask = attention_mask(tree, options.get("sliding_window"))
        outputs.append(scores.masked_fill(~mask, -torch.inf).softmax(-1) @ values)
    return torch.cat(outputs, dim=1).transpose(0, 1)[None]


def off(ours, reference):
    return float((ours.double().cpu() - reference).norm() / reference.norm())


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("rule", [PLAIN, LogitRule(float32=True), LogitRule(scale=0.5, softcap=30.0)])
def test_compiled_functions_read_the_logits_of_a_large_vocabulary_as_single_steps_do(rule, dtype):
    assert deviation(rule, GPU, dtype, 151_936) == ""


@pytest.mark.parametrize("part", fused_layers.PARTS, ids=lambda part: part.name)
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_compiled_functions_compute_parts_of_layers_as_single_steps_do(dtype, part):
    assert fused_layers.deviation(part, GPU, dtype) == ""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("width", [64, 128])
def test_attention_and_its_gradients_are_those_of_float64(kind, dtype, width):
    *inputs, upstream = drawn(width)
    # Rounding of the inputs is no error of the kernel.
    inputs = [tensor.to(dtype).double().requires_grad_() for tensor in inputs]
    expected = exact(*inputs, KINDS[kind])
    expected.backward(upstream.transpose(1, 2))
    on_gpu = [tensor.detach().to(GPU, dtype).requires_grad_() for tensor in inputs]
    row = attention.TreeRow(TREES, dtype, GPU)
    output, _ = attention.tree_attention(torch.nn.Module(), *on_gpu, None, tree_row=row, **KINDS[kind])
    output.backward(upstream.transpose(1, 2).to(GPU, dtype))
    assert varlen.takes(on_gpu[0], on_gpu[2]) == (dtype == torch.bfloat16)
    errors = [off(output.detach(), expected.detach())]
    errors += [off(ours.grad, theirs.grad) for ours, theirs in zip(on_gpu, inputs, strict=True)]
    assert max(errors) < BOUNDS[dtype], errors


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_a_norm_and_its_gradients_are_those_of_float64(dtype):
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(2, 300, 1536, generator=generator).to(dtype).double()
    hidden, upstream = numbers[0].clone().requires_grad_(), numbers[1]
    weight = torch.randn(1536, generator=generator).to(dtype).double().requires_grad_()
    expected = weight * hidden * (hidden.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    expected.backward(upstream)
    norm = LlamaRMSNorm(1536, eps=1e-6).to(dtype)
    norm.weight.data.copy_(weight.detach())
    norm.to(GPU)
    fuse_norms(norm)
    assert norm.forward.__func__ is normalized
    ours = hidden.detach().to(GPU, dtype).requires_grad_()
    output = norm(ours)
    output.backward(upstream.to(GPU, dtype))
    pairs = (output.detach(), expected.detach()), (ours.grad, hidden.grad), (norm.weight.grad, weight.grad)
    assert max(off(*pair) for pair in pairs) < BOUNDS[dtype]


def test_float32_has_a_fused_kernel_too():
    query, key, value, _ = (tensor.to(GPU, torch.float32) for tensor in drawn(64))
    row = attention.TreeRow(TREES, torch.float32, GPU)
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]):
        fused, _ = attention.tree_attention(torch.nn.Module(), query, key, value, None, tree_row=row)
    chosen, _ = attention.tree_attention(torch.nn.Module(), query, key, value, None, tree_row=row)
    assert off(fused.detach(), chosen.detach().cpu()) < BOUNDS[torch.float32]


def test_the_host_never_waits_in_a_micro_batch(tmp_path):
    policy = load_policy(files_of(tiny_llama(tmp_path)), ModelConfig(), "bfloat16", 64).to(GPU)
    branches = [Branch(Completion((5,) * 40, (-1.0,) * 40, "", False), 0.5, 0.1) for _ in range(4)]
    trees = [LooseTree((3, 4, 5), tuple(branches))] * 3
    micro = to_device(pack(trees), GPU)
    for mode in ("default", "error"):
        # The first time kernels are loaded.
        torch.cuda.set_sync_debug_mode(mode)
        try:
            logprobs, entropies = policy(micro, 1.0)
            loss, _ = policy_loss(logprobs, entropies, micro, ObjectiveConfig())
            loss.backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert loss.isfinite() and all(parameter.grad.isfinite().all() for parameter in policy.parameters())
