"""This module computes attention over trees (see `grpo.algorithm.packing`) for the models of transformers.

All other layers see a packed row as one sequence. Attention is computed within each tree, so its cost is a sum over
trees and not the square of the row's length. On GPUs one call of a flash kernel computes the whole row, see
`grpo.learner.varlen`. On CPUs, and for attention that this kernel does not support, trees are computed one by one. A
tree with one completion is plain causal attention. A short tree with several completions takes a small mask. In a
long tree each completion attends the prompt and itself in a causal call of its own, which needs no mask in memory and
computes no pair of siblings.

A sliding window is counted by position: a completion's token sees the last tokens of its own completion and, as far as
the window reaches, of the prompt, however many siblings lie between them in the row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface

from grpo.algorithm.packing import attention_mask
from grpo.learner import varlen
from grpo.learner.sequence_parallel import SequenceGroup
from grpo.types import Tree

NAME = "grpo_trees"
# Longest tree attended under a mask: [tokens, tokens] of 2 MiB in bfloat16.
MASKED_TOKENS = 1024
# Queries of one block, where a kernel cannot skip the keys outside of a window.
BLOCK_TOKENS = 512


class TreeRow:
    """A tree row holds the trees that fill a row without gaps, and the masks that layers ask for. Each mask is made
    once."""

    def __init__(self, trees: Sequence[Tree], dtype: torch.dtype, device: torch.device):
        self._trees, self._dtype, self._device = trees, kernel_dtype(dtype, device), device
        self._masks: dict[tuple[int, ...], Tensor] = {}
        # The lengths of each tree's prompt and branches; a single branch continues its prompt without a seam.
        self.parts = [
            (tree.own_prompt_length, *tree.branches) if len(tree.branches) > 1 else (tree.end - tree.start,)
            for tree in trees
        ]
        # How many tokens of the row's beginning each tree attends besides its own.
        self.shared = [tree.shared for tree in trees]

    @property
    def lengths(self) -> list[int]:
        return [sum(parts) for parts in self.parts]

    @cached_property
    def spans(self) -> varlen.Spans:
        return varlen.spans_of(self.parts, self.shared, self._device)

    def tree_mask(self, index: int, window: int | None) -> Tensor:
        """Returns a tree's additive mask [tokens, shared + tokens]: 0 where a query (row) sees a key (column), else
        −inf."""
        key = (index, window or 0)
        if key not in self._masks:
            self._masks[key] = self._additive(attention_mask(self._trees[index], window, self._device))
        return self._masks[key]

    def causal_mask(self, queries: int, keys: int, window: int | None) -> Tensor:
        """Returns the additive mask [queries, keys] of the last `queries` of `keys` consecutive positions."""
        key = (queries, keys, window or 0)
        if key not in self._masks:
            place = torch.arange(keys, device=self._device)
            distance = place[keys - queries :, None] - place[None, :]
            allowed = distance >= 0 if window is None else (distance >= 0) & (distance < window)
            self._masks[key] = self._additive(allowed)
        return self._masks[key]

    def _additive(self, allowed: Tensor) -> Tensor:
        mask = torch.zeros(allowed.shape, dtype=self._dtype, device=self._device)
        return mask.masked_fill_(~allowed, -torch.inf)


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind holds the options of a layer's causal attention.

    scale     of the scores; None: one over the square root of the width
    window    positions that a query sees, its own included; None: all
    softcap   c of c·tanh(score/c) (Gemma 2); None: no cap
    sinks     [heads] a score that takes part in every softmax and has no value (gpt-oss); None: without
    """

    scale: float | None
    window: int | None
    softcap: float | None
    sinks: Tensor | None

    @property
    def has_kernel(self) -> bool:
        """Says whether torch's fused attention supports these options."""
        return self.softcap is None and self.sinks is None

    def masked(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        """Computes the attention of `query` [1, heads, queries, width] under an additive `mask` [queries, keys]."""
        if self.has_kernel:
            return _fused(query, key, value, self.scale, attn_mask=mask)
        return self._by_hand(query, key, value, mask)

    def causal(self, query: Tensor, key: Tensor, value: Tensor, row: TreeRow) -> Tensor:
        """Computes causal attention. The queries stand at the last of the positions that `key` and `value` have."""
        queries, keys = query.shape[2], key.shape[2]
        reach = keys if self.window is None else min(self.window, keys)
        if self.has_kernel and reach == keys:
            square = queries == keys
            options = {"is_causal": True} if square else {"attn_mask": causal_lower_right(queries, keys)}
            return _fused(query, key, value, self.scale, **options)
        outputs = []
        for first in range(keys - queries, keys, BLOCK_TOKENS):
            last = min(first + BLOCK_TOKENS, keys)
            visible = slice(max(0, first - reach + 1), last)
            block = query[:, :, first - (keys - queries) : last - (keys - queries)]
            mask = row.causal_mask(last - first, last - visible.start, self.window)
            pieces = block, key[:, :, visible], value[:, :, visible], mask
            # Scores by hand would be kept for the backward pass, all of them; so they are computed again there.
            outputs.append(
                self.masked(*pieces) if self.has_kernel else checkpoint(self.masked, *pieces, use_reentrant=False)
            )
        return torch.cat(outputs, dim=2)

    def _by_hand(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        """Computes attention without a kernel, with softmax in float32 at least. Consecutive query heads share a key
        head."""
        heads, groups = query.shape[1], key.shape[1]
        scale = query.shape[-1] ** -0.5 if self.scale is None else self.scale
        scores = query.unflatten(1, (groups, heads // groups)) @ key.unsqueeze(2).transpose(-1, -2) * scale
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        scores = scores + mask
        if self.sinks is not None:
            sinks = self.sinks.to(scores.dtype).view(1, groups, heads // groups, 1, 1)
            scores = torch.cat([scores, sinks.expand(*scores.shape[:-1], 1)], dim=-1)
        weights = scores.softmax(-1)[..., : key.shape[2]].to(value.dtype)
        return (weights @ value.unsqueeze(2)).flatten(1, 2)


def tree_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Computes attention over the trees of a packed row, with the signature of transformers' attention functions:
    query [1, heads, tokens, width], output [1, tokens, heads, width].

    `kwargs["tree_row"]` is the row's `TreeRow`. With a group of ranks in `kwargs["together"]`, inputs and output are
    this rank's share of the tokens. The model passes `sliding_window`, `softcap` and `s_aux` (sinks). Its other
    options are ignored, so `grpo.learner.proof` compares the result with the model's own attention.
    """
    together: SequenceGroup | None = kwargs.get("together")
    sinks = kwargs.get("s_aux")
    if together is not None:
        query, key, value = (together.tokens_to_heads(tensor) for tensor in (query, key, value))
        sinks = None if sinks is None else together.own_heads(sinks)
    kind = _Kind(scaling, kwargs.get("sliding_window"), kwargs.get("softcap"), sinks)
    row: TreeRow = kwargs["tree_row"]
    if kind.has_kernel and varlen.takes(query, value):
        output = varlen.attend(query, key, value, row.spans, kind.scale, kind.window)
    else:
        output = _tree_by_tree(query, key, value, kind, row)
    if together is not None:
        output = together.heads_to_tokens(output)
    return output.transpose(1, 2).contiguous(), None


def _tree_by_tree(query: Tensor, key: Tensor, value: Tensor, kind: _Kind, row: TreeRow) -> Tensor:
    dtype = kernel_dtype(query.dtype, query.device) if kind.has_kernel else query.dtype
    queries, keys, values = (tensor.to(dtype).split(row.lengths, dim=2) for tensor in (query, key, value))
    outputs = []
    for index, (parts, shared) in enumerate(zip(row.parts, row.shared, strict=True)):
        key, value = keys[index], values[index]
        if shared:
            key = torch.cat([keys[0][:, :, :shared], key], dim=2)
            value = torch.cat([values[0][:, :, :shared], value], dim=2)
        if len(parts) > 1 and shared + sum(parts) <= MASKED_TOKENS:
            outputs.append(kind.masked(queries[index], key, value, row.tree_mask(index, kind.window)))
        else:
            outputs.append(_branches(queries[index], key, value, parts, kind, row))
    return torch.cat(outputs, dim=2).to(query.dtype)


def kernel_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Returns the type to compute attention in: float32 for bfloat16 on a CPU, and else `dtype` itself. On a CPU
    torch's backward pass is three to five times as quick in float32, and more exact."""
    return torch.float32 if dtype == torch.bfloat16 and device.type == "cpu" else dtype


def _branches(query: Tensor, key: Tensor, value: Tensor, parts: Sequence[int], kind: _Kind, row: TreeRow) -> Tensor:
    """Computes causal attention, where the first part attends itself and each further part the first and itself. Keys
    before those of the parts belong to the first part."""
    own_prompt, *completions = parts
    prompt = key.shape[2] - query.shape[2] + own_prompt
    queries = query.split(list(parts), dim=2)
    keys, values = (tensor.split([prompt, *completions], dim=2) for tensor in (key, value))
    outputs = [kind.causal(queries[0], keys[0], values[0], row)]
    for own_query, own_key, own_value in zip(queries[1:], keys[1:], values[1:], strict=True):
        # A completion of one token has no inputs.
        if own_query.shape[2]:
            visible = torch.cat([keys[0], own_key], dim=2), torch.cat([values[0], own_value], dim=2)
            outputs.append(kind.causal(own_query, *visible, row))
    return torch.cat(outputs, dim=2)


def _fused(query: Tensor, key: Tensor, value: Tensor, scale: float | None, **masking: Any) -> Tensor:
    """Calls torch's fused attention. On GPUs it repeats key heads for the query heads that share them, because torch's
    kernels for the cases that come here (float32, or values of another width) support no shared heads. Without the
    repetition torch would use no fused kernel."""
    repeats = query.shape[1] // key.shape[1]
    if query.is_cuda and repeats > 1:
        key, value, repeats = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1), 1
    return scaled_dot_product_attention(query, key, value, scale=scale, enable_gqa=repeats > 1, **masking)


# cuDNN makes a plan for every shape, in tens of milliseconds, and nearly every packed row has a new shape. vLLM turns
# cuDNN off too, so results do not depend on whether vLLM was imported.
torch.backends.cuda.enable_cudnn_sdp(False)
# Without a mask of the same name transformers makes none, and does not look at positions for sequences to part.
AttentionInterface.register(NAME, tree_attention)
