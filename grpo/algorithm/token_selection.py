"""This module chooses tokens among all tokens of an optimizer step, on all ranks, and changes their loss.

A choice depends on the whole step: on means over its tokens, or on a token's place in the order of all of them. So the
step's tokens are first computed without gradient, the choice is made over all ranks, and then the step is taken. The
choice is the same for every number of ranks and micro-batches.

Each selection takes the tokens of this rank, a function that sums numbers over ranks, and the settings. It returns one
number per token, which `apply_selection` applies to the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

import torch

from grpo.algorithm.shapes import Targets
from grpo.algorithm.token_losses import Tokens, clipped

if TYPE_CHECKING:
    from grpo.config import ObjectiveConfig

# Values that differ by less count as equal, in nats, or as a share of values above 1. Float32 rounds by some 1e-6.
# Bfloat16 moves an entropy by up to .2 nats. No width makes up for that, since the tokens at its own edge then differ
# (benchmarks/results/exactness.md).
ALIKE = 1e-5

Total = Callable[[Sequence[float]], list[float]]
"""A function of this type sums each number over all ranks, so that each token of the step counts once."""

Selection = Callable[[Tokens, Total, "ObjectiveConfig"], Targets]


def clip_cov(tokens: Tokens, total: Total, settings: ObjectiveConfig) -> Targets:
    """Returns the share of its gradient that each token keeps under Clip-Cov (arXiv:2505.22617).

    The paper removes `share` of all tokens, drawn at random among those that are not clipped and whose covariance lies
    between `low` and `high`. Here all tokens that could be drawn keep the same share, so the gradient of a step is the
    expectation of the paper's gradient over the draws. No random number is needed.
    """
    choice = settings.selection
    covariance, count = _covariance(tokens, total)
    low, high = clipped(tokens, settings)
    eligible = (covariance > choice.low) & (covariance < choice.high) & ~low & ~high
    [num_eligible] = total([float(eligible.sum())])
    removed_share = min(1.0, _number(choice.share, count) / num_eligible) if num_eligible else 0.0
    return 1 - removed_share * eligible.to(covariance.dtype)


def kl_cov(tokens: Tokens, total: Total, settings: ObjectiveConfig) -> Targets:
    """Returns 1 for the `share` of all tokens with the largest covariance, else 0: KL-Cov (arXiv:2505.22617).

    Tokens that are equal at the limit share what is left, see `largest`.
    """
    covariance, count = _covariance(tokens, total)
    return largest(covariance, _number(settings.selection.share, count), total, ALIKE)


def top_entropy(tokens: Tokens, total: Total, settings: ObjectiveConfig) -> Targets:
    """Returns 1 for the `share` of all tokens with the highest entropy, else 0 (arXiv:2506.01939, the 80/20 rule).

    Tokens that are equal at the limit share what is left, see `largest`.
    """
    [count] = total([tokens.entropies.numel()])
    return largest(tokens.entropies, _number(settings.selection.share, count), total, ALIKE)


SELECTIONS: Mapping[str, Selection] = {"clip_cov": clip_cov, "kl_cov": kl_cov, "top_entropy": top_entropy}


def select(micro_batches: Sequence[Tokens], total: Total, settings: ObjectiveConfig) -> list[Targets]:
    """Chooses among the tokens of all micro-batches of all ranks. Returns the configured selection's numbers, one
    tensor per micro-batch of this rank. Collective."""
    all_tokens = Tokens(
        *(
            torch.cat([getattr(tokens, name).detach() for tokens in micro_batches])
            for name in ("logprobs", "old_logprobs", "ratio", "advantages", "entropies", "sequence_index")
        )
    )
    weights = SELECTIONS[settings.selection.name](all_tokens, total, settings)
    return list(weights.split([tokens.logprobs.numel() for tokens in micro_batches]))


def apply_selection(losses: Targets, tokens: Tokens, weights: Targets, settings: ObjectiveConfig) -> Targets:
    """Applies a choice that `select` made to the losses, and returns them.

    KL-Cov adds penalty·|log π − log π_old| to the loss of the chosen tokens. A change below `ALIKE` adds nothing, since
    rounding decides its sign, and so its gradient, where the policy has not moved. The other selections multiply each
    token's loss by the share that it keeps.
    """
    if settings.selection.name == "kl_cov":
        change = torch.threshold((tokens.logprobs - tokens.old_logprobs).abs(), ALIKE, 0.0)
        return losses + settings.selection.penalty * weights * change
    return losses * weights


def largest(values: Targets, number: int, total: Total, alike: float = 0.0) -> Targets:
    """Returns for each value how much of it is among the `number` largest of all ranks, from 0 to 1.

    The sum over all ranks is `number`. Values equal to the smallest of the largest ones share what the larger values
    leave, since nothing says which of them to take: this is the expectation of a draw among them. Equal are also
    values that differ by at most `alike`, or by that share of a value above 1.

    The completions of a prompt have equal values as long as they have the same tokens. Layouts and kernels round these
    differently, and must not decide which of them is chosen.

    That smallest value is found by bisection over integer keys, made from the bits of float32 and ordered as the
    numbers are. The bisection takes 32 sums of one count over the ranks, whatever the number of tokens.
    """
    bits = values.float().view(torch.int32).long()
    keys = torch.where(bits < 0, -(2**31) - bits, bits)
    low, high = -(2**31), 2**31 - 1
    while low < high:
        middle = (low + high + 1) // 2
        [count] = total([float((keys >= middle).sum())])
        low, high = (middle, high) if count >= number else (low, middle - 1)
    smallest = torch.tensor(low if low >= 0 else -(2**31) - low, dtype=torch.int32).view(torch.float32).item()
    width = alike * max(1.0, abs(smallest))
    above = (keys > low) & (values > smallest + width)
    equal = ~above & ((keys >= low) | (values >= smallest - width))
    num_above, num_equal = total([float(above.sum()), float(equal.sum())])
    share = (number - num_above) / num_equal if num_equal else 0.0
    return above.to(values.dtype) + share * equal.to(values.dtype)


def _number(share: float, count: float) -> int:
    """Returns how many of `count` tokens a share is, rounded down, but at least 1.

    The share is taken as it is written, since floats would round 0.29 · 100 down to 28.
    """
    return max(1, int(Fraction(str(share)) * round(count)))


def _covariance(tokens: Tokens, total: Total) -> tuple[Targets, float]:
    """Returns (Â − mean)·(log π − mean) of each token, with means over the step, and the number of tokens."""
    logprobs, advantages = tokens.logprobs.double(), tokens.advantages.double()
    sums = [float(logprobs.numel()), float(advantages.sum()), float(logprobs.sum())]
    count, advantage, logprob = total(sums)
    count = max(count, 1.0)
    return (advantages - advantage / count) * (logprobs - logprob / count), count
