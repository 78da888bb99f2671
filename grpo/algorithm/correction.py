"""Truncated importance weights from the distribution that sampled to the one that learns.

Sampler and learner hold the same weights and still disagree: other kernels, other precision, or a staler
policy. Each token's loss is weighted by w = π_learner,old / π_sampler, cut at a cap.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grpo.algorithm.ratio import LOG_RATIO_LIMIT, per_sequence_sum


def importance_weights(old_logprobs: Tensor, sampler_logprobs: Tensor, level: str, sequence_index: Tensor) -> Tensor:
    """w [targets] before any cut: per token, or the product over each completion at all its tokens."""
    difference = (old_logprobs - sampler_logprobs).detach()
    if level == "sequence":
        difference = per_sequence_sum(difference, sequence_index)
    return difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def corrected(weights: Tensor, cap: float, mode: str) -> Tensor:
    """`weights` [targets] cut at `cap`: "truncate" gives min(w, cap), "mask" gives 0 above it."""
    if mode == "mask":
        return torch.where(weights > cap, torch.zeros_like(weights), weights)
    return weights.clamp(max=cap)
