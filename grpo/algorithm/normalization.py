"""The dial: GRPO, Dr. GRPO and DAPO as one operation on the standard deviation of a group's rewards.

    Â_i = (r_i − r̄) · σ^(−α) · 1{σ > σ_min}                                        (arXiv:2607.00152)

For rewards in {0, 1} the group gradient (1/G)·Σ Â_i ∇log π(o_i) is then σ^(2−α)·(s̄₊ − s̄₋), where s̄₊ and
s̄₋ are the mean scores of correct and wrong completions: α = 0 is Dr. GRPO, α = 1 is GRPO, and α = 1 with
silent groups refilled is DAPO. As G grows it ascends ∫₀^p [q(1−q)]^(−α/2) dq: the pass rate itself at
α = 0, 2·arcsin√p at α = 1, the log-odds at α = 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from grpo.types import alike

if TYPE_CHECKING:
    from grpo.config import NormalizationConfig


def centered(rewards: Tensor, leave_one_out: bool) -> Tensor:
    """r_i − r̄, or r_i minus the mean of the others, which is the same times G/(G−1)."""
    distance = rewards - rewards.mean()
    count = rewards.numel()
    return distance * (count / (count - 1)) if leave_one_out else distance


def dial(std: Tensor, normalization: NormalizationConfig) -> Tensor:
    """σ^(−α) with ε and σ_min as configured: what a centered reward is multiplied by."""
    power = -normalization.exponent
    if normalization.epsilon_in == "variance":
        factor = (std.square() + normalization.epsilon) ** (power / 2)
    else:
        factor = (std + normalization.epsilon) ** power
    return torch.where(std > normalization.min_std, factor, torch.zeros_like(factor))


def advantages(
    rewards: Sequence[Tensor], normalization: NormalizationConfig, batch_std: Tensor | None = None
) -> list[Tensor]:
    """Advantages of groups of any sizes.

    rewards     one float64 tensor [completions] per group
    batch_std   σ over all rewards of the optimizer step, all ranks: needed for scope "batch" only

    A group of one completion, and a group of rewards that are equal but for rounding, has advantage 0 under every
    setting. That is asked first: rounding leaves .3 and .1 + .2 a σ of 3e-17, and a power α ≥ 1 of it would make
    advantages of nothing.
    """
    if normalization.scope == "batch" and batch_std is None:
        raise ValueError("scope 'batch' needs batch_std")
    result = []
    for group in rewards:
        if alike(group.tolist()):
            result.append(torch.zeros_like(group))
            continue
        std = batch_std if normalization.scope == "batch" else group.std(correction=normalization.ddof)
        result.append(centered(group, normalization.leave_one_out) * dial(std, normalization))
    return result
