"""This module turns rewards into advantages. Two exponents, the dials, cover GRPO, Dr. GRPO, DAPO and MaxRL.

    Â_i = (r_i − r̄) · σ^(−α) · r̄^(−β) · 1{σ > σ_min}                               (arXiv:2607.00152, 2602.02710)

Here r̄ and σ are the mean and the standard deviation of the group's rewards. α = 0 is Dr. GRPO, α = 1 is GRPO, and
α = 1 with silent groups refilled is DAPO. α = 0 with β = 1 is MaxRL, which divides by the mean.

For rewards in {0, 1} the group gradient (1/G)·Σ Â_i ∇log π(o_i) equals σ^(2−α)·r̄^(−β)·(s̄₊ − s̄₋), where s̄₊ and s̄₋ are
the mean scores of correct and wrong completions. For large G it ascends ∫ q^(−α/2−β)·(1−q)^(−α/2) dq. That is the pass
rate p itself at (0, 0), 2·arcsin√p at (1, 0), the log-odds at (2, 0), and log p at (0, 1).

Every normalization takes the rewards of one group, the moments of all rewards of the optimizer step, and
the settings. It returns the advantages. To add one, write the function and enter it in `NORMALIZATIONS`;
a function outside this module is named by its import path.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from grpo.algorithm.lookup import member
from grpo.algorithm.shapes import Completions, Scalar
from grpo.types import alike
from grpo.types.values import ROUNDING

if TYPE_CHECKING:
    from grpo.config import NormalizationConfig


@dataclass(frozen=True, slots=True)
class Moments:
    """These are mean and standard deviation over all rewards of the optimizer step, on all ranks."""

    mean: float
    std: float


Normalization = Callable[[Completions, Moments, "NormalizationConfig"], Completions]


def centered(rewards: Completions, leave_one_out: bool) -> Completions:
    """Returns r_i − r̄. With `leave_one_out` it returns r_i minus the mean of the other rewards, which is G/(G−1) times
    as much."""
    distance = rewards - rewards.mean()
    count = rewards.numel()
    return distance * (count / (count - 1)) if leave_one_out else distance


def scaled(values: Completions, std: float | Scalar, settings: NormalizationConfig) -> Completions:
    """Returns values · σ^(−α), with ε and σ_min as configured."""
    std = torch.as_tensor(std, dtype=values.dtype)
    power = -settings.exponent
    if settings.epsilon_in == "variance":
        factor = (std.square() + settings.epsilon) ** (power / 2)
    else:
        factor = (std + settings.epsilon) ** power
    return values * torch.where(std > settings.min_std, factor, torch.zeros_like(factor))


def dial(rewards: Completions, step: Moments, settings: NormalizationConfig) -> Completions:
    """Returns (r_i − r̄)·σ^(−α)·r̄^(−β), where σ is the group's, or the step's with scope "batch".

    A group of one completion has advantage 0 under every setting, and so has a group whose rewards are equal up to
    rounding. This is checked before σ is used: .3 and .1 + .2 have a σ of 3e-17 by rounding alone, and dividing by
    σ^α with α ≥ 1 would make large advantages of it. With β ≠ 0, a group whose mean is not above 0 has advantage 0.
    """
    if alike(rewards.tolist()):
        return torch.zeros_like(rewards)
    std = step.std if settings.scope == "batch" else rewards.std(correction=settings.ddof)
    values = scaled(centered(rewards, settings.leave_one_out), std, settings)
    if settings.mean_exponent:
        mean = rewards.mean()
        return values * mean**-settings.mean_exponent if mean > 0 else torch.zeros_like(values)
    return values


def pass_at_k(rewards: Completions, step: Moments, settings: NormalizationConfig) -> Completions:
    """Returns the advantages of pass@k training (arXiv:2508.10751), for any real rewards.

    Each subset of k completions of the group is scored by its best reward. A completion's advantage is the mean score
    of the subsets that hold it, minus the mean score of all subsets, times σ^(−α) of these scores. A closed form covers
    all C(G, k) subsets. k = 1 is the dial. A group in which fewer than k completions are wrong has no gradient, since
    every subset then holds a right one.
    """
    size, k = rewards.numel(), settings.k
    if size < k or alike(rewards.tolist()):
        return torch.zeros_like(rewards)
    ascending, order = rewards.sort()
    # These are the shares of the subsets of k of n whose best is the j-th lowest: C(j, k−1) with j counted from 0.
    best = _share(size, k - 1, math.comb(size, k), like=rewards)
    mean = best @ ascending
    # Among the subsets that hold i, a higher j is the best of C(j−1, k−2) of them. In the others i itself is the best.
    holders = math.comb(size - 1, k - 1)
    above = _share(size, k - 2, holders, like=rewards, shift=-1) * ascending
    share_as_best = _share(size, k - 1, holders, like=rewards) * ascending
    holding = share_as_best + above.flip(0).cumsum(0).flip(0) - above
    variance = best @ (ascending - mean).square()
    if math.isclose(float(variance), 0.0, abs_tol=1e-24 * float(ascending.square().max())):
        return torch.zeros_like(rewards)
    advantages = torch.empty_like(rewards)
    advantages[order] = scaled(holding - mean, variance.sqrt(), settings)
    return advantages


def _share(size: int, k: int, of: int, like: Completions, shift: int = 0) -> Completions:
    """Returns C(j + shift, k) / `of` for j = 0 … size − 1, and 0 where that is not defined. Such whole numbers of large
    groups have no room in a tensor."""
    return like.new_tensor([math.comb(j + shift, k) / of if k >= 0 and j + shift >= 0 else 0.0 for j in range(size)])


def reinforce_plus_plus(rewards: Completions, step: Moments, settings: NormalizationConfig) -> Completions:
    """Returns REINFORCE++'s advantages (r_i − mean)·σ^(−α) with mean and σ of the whole step (arXiv:2501.03262).

    Groups play no part, so a group with equal rewards is learned from too. verl weighs the moments by tokens; here
    each completion counts once. A step whose rewards are all equal up to rounding has no advantages.
    """
    if step.std <= ROUNDING * abs(step.mean):
        return torch.zeros_like(rewards)
    return scaled(rewards - step.mean, step.std, settings)


NORMALIZATIONS: Mapping[str, Normalization] = {
    "dial": dial,
    "pass_at_k": pass_at_k,
    "reinforce_plus_plus": reinforce_plus_plus,
}

GROUP_RELATIVE = ("dial", "pass_at_k")
"""Under these normalizations a group of equal rewards has no advantages. Others may learn from such a group."""


def silent(rewards: Completions, included: Sequence[bool], settings: NormalizationConfig) -> bool:
    """Says whether all `included` completions of a group with these rewards have advantage 0, whatever the step's other
    groups are.

    Such groups have no included completion, equal rewards, or a σ that is not above σ_min, or under `pass_at_k` fewer
    than k completions below the best. The answer holds for the normalizations in `GROUP_RELATIVE` only.
    """
    # With scope "batch" the step's σ is the same for all groups, so any that is above σ_min tells.
    values = NORMALIZATIONS[settings.name](rewards, Moments(0.0, settings.min_std + 1), settings)
    return not values[torch.tensor(included, dtype=torch.bool)].any()


def advantages(rewards: Sequence[Completions], settings: NormalizationConfig, step: Moments) -> list[Completions]:
    """Computes the advantages of groups, which may differ in size. Returns one tensor per group.

    rewards   one float64 tensor per group
    step      the moments of the rewards of all groups on all ranks
    """
    normalize = member(NORMALIZATIONS, settings.name)
    return [normalize(group, step, settings) for group in rewards]
