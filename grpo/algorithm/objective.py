"""Surrogate objectives: ratio and advantage of each token → loss of each token.

Every function takes ratio, advantages, logprobs, all [targets], and the settings, and returns losses
[targets] to be minimized. To add one, write the function and name it in `OBJECTIVES`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from grpo.config import ObjectiveConfig


def clip(ratio: Tensor, advantages: Tensor, logprobs: Tensor, settings: ObjectiveConfig) -> Tensor:
    """PPO's clipped surrogate −min(ρÂ, clip(ρ, 1−ε_low, 1+ε_high)·Â), with a dual clip if asked for.

    Dual clip (arXiv:1912.09729): for Â < 0 the loss is at most c·|Â|, however large ρ grows.
    """
    clipped = ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    loss = torch.maximum(-ratio * advantages, -clipped * advantages)
    if settings.dual_clip:
        loss = torch.where(advantages < 0, torch.minimum(loss, -settings.dual_clip * advantages), loss)
    return loss


def cispo(ratio: Tensor, advantages: Tensor, logprobs: Tensor, settings: ObjectiveConfig) -> Tensor:
    """CISPO (arXiv:2506.13585): −sg[clip(ρ)]·Â·log π. Clips the weight, never the gradient."""
    weight = ratio.detach().clamp(1 - settings.clip_low, 1 + settings.clip_high)
    return -weight * advantages * logprobs


def unclipped(ratio: Tensor, advantages: Tensor, logprobs: Tensor, settings: ObjectiveConfig) -> Tensor:
    """−ρÂ. At ρ = 1 its gradient is REINFORCE's."""
    return -ratio * advantages


OBJECTIVES = {"clip": clip, "cispo": cispo, "unclipped": unclipped}


def clipped_low(ratio: Tensor, advantages: Tensor, settings: ObjectiveConfig) -> Tensor:
    """[targets] bool: the lower bound holds this token back (its ratio fell and its advantage is negative)."""
    return (ratio < 1 - settings.clip_low) & (advantages < 0)


def clipped_high(ratio: Tensor, advantages: Tensor, settings: ObjectiveConfig) -> Tensor:
    """[targets] bool: the upper bound holds this token back (its ratio rose and its advantage is positive)."""
    return (ratio > 1 + settings.clip_high) & (advantages > 0)
