"""This module holds the surrogate objectives, which turn ratio and advantage of each token into its loss.

Every objective takes ratio, advantages and logprobs, all [targets], and the settings. It returns losses [targets] to be
minimized. To add one, write the function and name it in `OBJECTIVES`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from grpo.config import ObjectiveConfig


def clip(ratio: Tensor, advantages: Tensor, logprobs: Tensor, settings: ObjectiveConfig) -> Tensor:
    """Returns PPO's clipped loss −min(ρÂ, clip(ρ, 1−ε_low, 1+ε_high)·Â), with a dual clip if configured.

    The dual clip (arXiv:1912.09729) bounds the loss for Â < 0 by c·|Â|, however large ρ grows.
    """
    clipped = ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    loss = torch.maximum(-ratio * advantages, -clipped * advantages)
    if settings.dual_clip:
        loss = torch.where(advantages < 0, torch.minimum(loss, -settings.dual_clip * advantages), loss)
    return loss


def cispo(ratio: Tensor, advantages: Tensor, logprobs: Tensor, settings: ObjectiveConfig) -> Tensor:
    """Returns CISPO's loss −sg[clip(ρ)]·Â·log π (arXiv:2506.13585), where sg stops the gradient.

    It clips the weight of a token but never removes the token's gradient.
    """
    weight = ratio.detach().clamp(1 - settings.clip_low, 1 + settings.clip_high)
    return -weight * advantages * logprobs


def unclipped(ratio: Tensor, advantages: Tensor, logprobs: Tensor, settings: ObjectiveConfig) -> Tensor:
    """Returns the loss −ρÂ without clipping. At ρ = 1 its gradient is that of REINFORCE."""
    return -ratio * advantages


OBJECTIVES = {"clip": clip, "cispo": cispo, "unclipped": unclipped}


def clipped_low(ratio: Tensor, advantages: Tensor, settings: ObjectiveConfig) -> Tensor:
    """Returns [targets] bool: whether the lower bound clips the token. Its ratio fell and its advantage is
    negative."""
    return (ratio < 1 - settings.clip_low) & (advantages < 0)


def clipped_high(ratio: Tensor, advantages: Tensor, settings: ObjectiveConfig) -> Tensor:
    """Returns [targets] bool: whether the upper bound clips the token. Its ratio rose and its advantage is
    positive."""
    return (ratio > 1 + settings.clip_high) & (advantages > 0)
