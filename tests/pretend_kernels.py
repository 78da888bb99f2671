"""This module has stand-ins for kernels that only a GPU has. They compute on the CPU what torch documents."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.varlen import _varlen_attn, _varlen_attn_backward

aten = torch.ops.aten


def _product(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    return left.to(dtype) @ right.to(dtype)


def _runs(query_ends: Tensor, key_ends: Tensor) -> Iterator[tuple[slice, slice]]:
    ends = (pairwise(tensor.tolist()) for tensor in (query_ends, key_ends))
    return ((slice(*queries), slice(*keys)) for queries, keys in zip(*ends, strict=True))


def _weights(query: Tensor, key: Tensor, scale: float | None, left: int | None) -> Tensor:
    """Returns a run's softmax [heads, queries, keys] in float32. Queries are aligned with the last keys."""
    queries, keys = len(query), len(key)
    distance = torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)
    reach = keys if left is None or left < 0 else left
    scores = torch.einsum("qhw,khw->hqk", query, key) * (query.shape[-1] ** -0.5 if scale is None else scale)
    hidden = (distance < 0) | (distance > reach)
    return scores.masked_fill(hidden, -torch.inf).softmax(-1)


def _wide(*tensors: Tensor, heads: int) -> list[Tensor]:
    return [tensor.float().repeat_interleave(heads // tensor.shape[1], 1) for tensor in tensors]


def _flash(query, key, value, query_ends, key_ends, most_queries, most_keys, dropout, causal, debug, **options):
    """Computes what `aten::_flash_attention_forward` does for sequences of many lengths, and checks what it takes."""
    for tensor in (query, key, value):
        assert tensor.dtype in (torch.bfloat16, torch.float16) and tensor.stride(-1) == 1, "flash takes 16 bits"
        assert tensor.shape[-1] == query.shape[-1] <= 256 and tensor.shape[-1] % 8 == 0, "flash takes even widths"
    assert query_ends.dtype == key_ends.dtype == torch.int32 and options["window_size_right"] == 0
    wide, output = _wide(query, key, value, heads=query.shape[1]), torch.empty_like(query)
    for queries, keys in _runs(query_ends, key_ends):
        assert queries.stop - queries.start <= most_queries and keys.stop - keys.start <= most_keys
        weights = _weights(wide[0][queries], wide[1][keys], options.get("scale"), options["window_size_left"])
        output[queries] = torch.einsum("hqk,khw->qhw", weights, wide[2][keys]).to(output.dtype)
    unused = torch.empty(0)
    return output, query.new_empty(query.shape[1], len(query), dtype=torch.float32), unused, unused, unused


def _flash_backward(
    gradient, query, key, value, output, logs, query_ends, key_ends, most_queries, most_keys, dropout, causal, *rest,
    scale=None, window_size_left=None, window_size_right=None,
):  # fmt: skip
    """Computes what `aten::_flash_attention_backward` does."""
    heads = query.shape[1]
    upstream, queries, keys, values = _wide(gradient, query, key, value, heads=heads)
    by_query, by_key, by_value = map(torch.zeros_like, (queries, keys, values))
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    for asking, asked in _runs(query_ends, key_ends):
        weights = _weights(queries[asking], keys[asked], scale, window_size_left)
        by_value[asked] = torch.einsum("hqk,qhw->khw", weights, upstream[asking])
        wanted = torch.einsum("qhw,khw->hqk", upstream[asking], values[asked])
        scores = weights * (wanted - (wanted * weights).sum(-1, keepdim=True)) * factor
        by_query[asking] = torch.einsum("hqk,khw->qhw", scores, keys[asked])
        by_key[asked] = torch.einsum("hqk,qhw->khw", scores, queries[asking])
    shared = (by.unflatten(1, (key.shape[1], -1)).sum(2) for by in (by_key, by_value))
    return tuple(by.to(query.dtype) for by in (by_query, *shared))


def _norm(hidden, shape, weight, epsilon):
    """Computes what `aten::_fused_rms_norm` does without a weight."""
    assert list(shape) == [hidden.shape[-1]] and weight is None
    inverse = hidden.float().square().mean(-1, keepdim=True).add(epsilon).rsqrt()
    return (hidden.float() * inverse).to(hidden.dtype), inverse


def _norm_backward(gradient, hidden, shape, inverse, weight, wanted):
    """Computes what `aten::_fused_rms_norm_backward` does without a weight."""
    assert weight is None and list(wanted) == [True, False]
    upstream, scaled = gradient.float(), hidden.float() * inverse
    return (inverse * (upstream - scaled * (scaled * upstream).mean(-1, keepdim=True))).to(hidden.dtype), None


FUSED = "_fused_rms_norm", "_fused_rms_norm_backward"
"""A device has these kernels, or torch computes norms step by step."""

# Torch's own functions around the kernels run as they are, and of attention's kernels the one of plain operations.
WHOLE: Mapping[Any, Callable[..., Any]] = {
    torch.ops.torch_attn._varlen_attn.default: _varlen_attn._init_fn,
    torch.ops.torch_attn._varlen_attn_backward.default: _varlen_attn_backward._init_fn,
    aten._fused_sdp_choice.default: lambda *arguments, **named: torch.nn.attention.SDPBackend.MATH.value,
}
STAND_INS: Mapping[Any, Callable[..., Any]] = {
    aten.mm.dtype: _product,
    aten.histc.default: lambda values, *bins: torch.histc(values.float(), *bins).to(values.dtype),
    aten._fused_rms_norm.default: _norm,
    aten._fused_rms_norm_backward.default: _norm_backward,
    aten._flash_attention_forward.default: _flash,
    aten._flash_attention_backward.default: _flash_backward,
}
