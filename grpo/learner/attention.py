"""Attention over trees (see `grpo.algorithm.packing`), as an attention implementation of transformers.

A packed row is one sequence to every layer but this one: here each tree is cut out and attended alone, so
the cost is the sum over trees and not the square of the row. A tree of one completion is plain causal
attention, which torch gives its flash kernel. A short one of several takes a small mask; in a long one each
completion attends the prompt and itself in a causal call of its own, which needs no mask in memory and
computes no pair of siblings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from grpo.algorithm.packing import attention_mask
from grpo.learner.sequence_parallel import SequenceGroup
from grpo.types import Tree

NAME = "grpo_trees"
# Longest tree attended under a mask: [tokens, tokens] of 2 MiB in bfloat16.
MASKED_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class Span:
    """A tree of a row: the lengths of its prompt and branches, and its mask, additive [tokens, tokens] in the
    model's precision (0 or −inf). Without a mask each branch is attended alone."""

    parts: tuple[int, ...]
    mask: Tensor | None

    @property
    def length(self) -> int:
        return sum(self.parts)


def spans(trees: Sequence[Tree], dtype: torch.dtype, device: torch.device) -> tuple[Span, ...]:
    """The trees of a row, which they fill without gaps; made once and used by every layer."""
    result = []
    for tree in trees:
        if len(tree.branches) <= 1:
            result.append(Span((tree.end - tree.start,), None))
        elif tree.end - tree.start > MASKED_TOKENS:
            result.append(Span((tree.prompt_length, *tree.branches), None))
        else:
            allowed = attention_mask(tree).to(device)
            mask = torch.zeros(allowed.shape, dtype=dtype, device=device).masked_fill_(~allowed, -torch.inf)
            result.append(Span((tree.prompt_length, *tree.branches), mask))
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
    [1, tokens, heads, width]. `kwargs["tree_spans"]` comes from `spans`; with a group of ranks in `kwargs["together"]`
    tokens and output are this rank's share."""
    together: SequenceGroup | None = kwargs.get("together")
    if together is not None:
        query, key, value = (together.tokens_to_heads(tensor) for tensor in (query, key, value))
    options = {"scale": scaling, "enable_gqa": key.shape[1] != query.shape[1]}
    row = kwargs["tree_spans"]
    pieces = zip(*(tensor.split([span.length for span in row], dim=2) for tensor in (query, key, value)), strict=True)
    outputs = [
        _branches(*piece, span.parts, **options)
        if span.mask is None
        else scaled_dot_product_attention(*piece, attn_mask=span.mask, **options)
        for span, piece in zip(row, pieces, strict=True)
    ]
    output = torch.cat(outputs, dim=2)
    if together is not None:
        output = together.heads_to_tokens(output)
    return output.transpose(1, 2).contiguous(), None


def _branches(query: Tensor, key: Tensor, value: Tensor, parts: Sequence[int], **options) -> Tensor:
    """Causal attention of the first part, and of every further part over the first and itself."""
    queries, keys, values = (tensor.split(list(parts), dim=2) for tensor in (query, key, value))
    outputs = [scaled_dot_product_attention(queries[0], keys[0], values[0], is_causal=True, **options)]
    for own, own_key, own_value in zip(queries[1:], keys[1:], values[1:], strict=True):
        # A completion of one token has no inputs.
        if own.shape[2]:
            seen = torch.cat([keys[0], own_key], dim=2), torch.cat([values[0], own_value], dim=2)
            mask = causal_lower_right(own.shape[2], seen[0].shape[2])
            outputs.append(scaled_dot_product_attention(own, *seen, attn_mask=mask, **options))
    return torch.cat(outputs, dim=2)


AttentionInterface.register(NAME, tree_attention)
AttentionMaskInterface.register(NAME, lambda *args, **kwargs: None)
