"""This module turns rewards into advantages. One exponent α, the dial, covers GRPO, Dr. GRPO and DAPO.

    Â_i = (r_i − r̄) · σ^(−α) · 1{σ > σ_min}                                        (arXiv:2607.00152)

Here σ is the standard deviation of the group's rewards. α = 0 is Dr. GRPO, α = 1 is GRPO, and α = 1 with silent groups
refilled is DAPO.

For rewards in {0, 1} the group gradient (1/G)·Σ Â_i ∇log π(o_i) equals σ^(2−α)·(s̄₊ − s̄₋), where s̄₊ and s̄₋ are the
mean scores of correct and wrong completions. For large G it ascends ∫₀^p [q(1−q)]^(−α/2) dq. That is the pass rate p
itself at α = 0, 2·arcsin√p at α = 1, and the log-odds at α = 2.
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
    """Returns r_i − r̄. With `leave_one_out` it returns r_i minus the mean of the other rewards, which is G/(G−1) times
    as much."""
    distance = rewards - rewards.mean()
    count = rewards.numel()
    return distance * (count / (count - 1)) if leave_one_out else distance


def dial(std: Tensor, normalization: NormalizationConfig) -> Tensor:
    """Returns the factor σ^(−α) that multiplies a centered reward, with ε and σ_min as configured."""
    power = -normalization.exponent
    if normalization.epsilon_in == "variance":
        factor = (std.square() + normalization.epsilon) ** (power / 2)
    else:
        factor = (std + normalization.epsilon) ** power
    return torch.where(std > normalization.min_std, factor, torch.zeros_like(factor))


def advantages(
    rewards: Sequence[Tensor], normalization: NormalizationConfig, batch_std: Tensor | None = None
) -> list[Tensor]:
    """Computes the advantages of groups, which may differ in size. Returns one tensor [completions] per group.

    rewards     one float64 tensor [completions] per group
    batch_std   σ over all rewards of the optimizer step on all ranks; needed for scope "batch" only

    A group of one completion has advantage 0 under every setting, and so has a group whose rewards are equal up to
    rounding. This is checked before σ is used: .3 and .1 + .2 have a σ of 3e-17 by rounding alone, and dividing by
    σ^α with α ≥ 1 would make large advantages of it.
    """
    shared_std = batch_std if normalization.scope == "batch" else None
    if normalization.scope == "batch" and shared_std is None:
        raise ValueError("scope 'batch' needs batch_std")
    by_group = []
    for group in rewards:
        if alike(group.tolist()):
            by_group.append(torch.zeros_like(group))
            continue
        std = group.std(correction=normalization.ddof) if shared_std is None else shared_std
        by_group.append(centered(group, normalization.leave_one_out) * dial(std, normalization))
    return by_group
