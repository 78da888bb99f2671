"""Attention over trees (see `grpo.algorithm.packing`), as an attention implementation of transformers.

A packed row is one sequence to every layer but this one: here each tree is cut out and attended alone, so
the cost is the sum over trees and not the square of the row. A tree of one completion is plain causal
attention, which torch gives its flash kernel; one of several takes a small mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from grpo.algorithm.packing import attention_mask
from grpo.types import Tree

NAME = "grpo_trees"


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens [start, end) of a row and their mask: None for plain causal attention, else additive
    [tokens, tokens] in the model's precision (0 or −inf)."""

    start: int
    end: int
    mask: Tensor | None


def spans(trees: Sequence[Tree], dtype: torch.dtype, device: torch.device) -> tuple[Span, ...]:
    """The masks of a row, made once and used by every layer."""
    result = []
    for tree in trees:
        mask = None
        if len(tree.branches) > 1:
            allowed = attention_mask(tree).to(device)
            mask = torch.zeros(allowed.shape, dtype=dtype, device=device).masked_fill_(~allowed, -torch.inf)
        result.append(Span(tree.start, tree.end, mask))
    return tuple(result)


def tree_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs,
) -> tuple[Tensor, None]:
    """Signature of transformers' attention functions; query [1, heads, tokens, width], output
    [1, tokens, heads, width]. `kwargs["tree_spans"]` comes from `spans`."""
    grouped = key.shape[1] != query.shape[1]
    outputs = [
        scaled_dot_product_attention(
            query[:, :, span.start : span.end],
            key[:, :, span.start : span.end],
            value[:, :, span.start : span.end],
            attn_mask=span.mask,
            is_causal=span.mask is None,
            scale=scaling,
            enable_gqa=grouped,
        )
        for span in kwargs["tree_spans"]
    ]
    return torch.cat(outputs, dim=2).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, tree_attention)
AttentionMaskInterface.register(NAME, lambda *args, **kwargs: None)
