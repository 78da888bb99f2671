"""This module corrects for the difference between the sampler's and the learner's distributions.

Sampler and learner hold the same model and still disagree, because of other kernels, another precision or an older
policy. Each token's loss is multiplied by the importance weight w = π_learner,old / π_sampler, which is kept between
a floor and a cap.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from grpo.algorithm.ratio import LOG_RATIO_LIMIT, per_sequence_mean, per_sequence_sum
from grpo.algorithm.shapes import Targets

if TYPE_CHECKING:
    from grpo.config import CorrectionConfig


def importance_weights(
    old_logprobs: Targets, sampler_logprobs: Targets, level: str, sequence_index: Targets
) -> Targets:
    """Returns the importance weights w before floor and cap are applied.

    There is one weight per token, or one per completion that is repeated at all its tokens:

    "token"           π_old(o_t) / π_sampler(o_t)
    "sequence"        the product of the token weights over the completion: unbiased, but far from 1 for long ones
    "sequence_mean"   the geometric mean of the token weights over the completion: its mismatch per token
    """
    difference = (old_logprobs - sampler_logprobs).detach()
    if level == "sequence":
        difference = per_sequence_sum(difference, sequence_index)
    elif level == "sequence_mean":
        difference = per_sequence_mean(difference, sequence_index)
    return difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def corrected(weights: Targets, correction: CorrectionConfig) -> Targets:
    """Applies the floor and the cap to importance `weights`.

    "truncate" sets a weight outside these bounds to the nearer bound (TIS). "mask" sets it to 0 (with a floor this is
    IcePop, arXiv:2510.18855).
    """
    if correction.mode == "mask":
        outside = (weights < correction.floor) | (weights > correction.cap)
        return weights.masked_fill(outside, 0.0)
    return weights.clamp(correction.floor, correction.cap)


def vetoed(old_logprobs: Targets, sampler_logprobs: Targets, veto: float, sequence_index: Targets) -> Targets:
    """Returns whether each token's completion contains a token with importance weight below `veto`.

    The learner would hardly ever write such a token, and so would hardly ever reach the tokens that follow, even if
    their weights are near 1. A vetoed completion still counts in the denominators of the loss, as masked tokens do.
    """
    difference = (old_logprobs - sampler_logprobs).detach()
    if not veto:
        return torch.zeros_like(difference, dtype=torch.bool)
    return per_sequence_sum((difference < math.log(veto)).double(), sequence_index) > 0
