"""Importance weights from the distribution that sampled to the one that learns, within bounds.

Sampler and learner hold the same weights and still disagree: other kernels, other precision, or a staler
policy. Each token's loss is weighted by w = π_learner,old / π_sampler, which is kept between a floor and a cap.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from grpo.algorithm.ratio import LOG_RATIO_LIMIT, per_sequence_mean, per_sequence_sum

if TYPE_CHECKING:
    from grpo.config import CorrectionConfig


def importance_weights(old_logprobs: Tensor, sampler_logprobs: Tensor, level: str, sequence_index: Tensor) -> Tensor:
    """w [targets] before any cut: per token, or per completion at all its tokens.

    "token"           π_old(o_t) / π_sampler(o_t)
    "sequence"        their product over the completion: unbiased, and far from 1 for long ones
    "sequence_mean"   their geometric mean: how far the completion is off per token
    """
    difference = (old_logprobs - sampler_logprobs).detach()
    if level == "sequence":
        difference = per_sequence_sum(difference, sequence_index)
    elif level == "sequence_mean":
        difference = per_sequence_mean(difference, sequence_index)
    return difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def corrected(weights: Tensor, correction: CorrectionConfig) -> Tensor:
    """`weights` [targets] within the bounds: "truncate" moves those outside to the nearer one (TIS), "mask" makes them
    0 (with a floor IcePop, arXiv:2510.18855)."""
    if correction.mode == "mask":
        outside = (weights < correction.floor) | (weights > correction.cap)
        return weights.masked_fill(outside, 0.0)
    return weights.clamp(correction.floor, correction.cap)


def vetoed(old_logprobs: Tensor, sampler_logprobs: Tensor, veto: float, sequence_index: Tensor) -> Tensor:
    """[targets] bool: whether the token's completion has a token with w < `veto`.

    Such a token is one that the learner would hardly ever write: what follows it is off the learner's path, whatever
    the weights of the other tokens are. A completion that is left out still counts in the denominators of the loss, as
    masked tokens do.
    """
    difference = (old_logprobs - sampler_logprobs).detach()
    if not veto:
        return torch.zeros_like(difference, dtype=torch.bool)
    return per_sequence_sum((difference < math.log(veto)).double(), sequence_index) > 0
