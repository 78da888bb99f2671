"""This module holds the surrogate objectives, which turn ratio and advantage of each token into its loss.

Every objective takes the tokens of a micro-batch and the settings, and returns their losses, which are
minimized. It may read all tokens of a completion, but nothing of other completions, since these may lie in another
micro-batch or on another rank. To add one, write the function and enter it in `OBJECTIVES`. A function outside this
module is named by its import path (see the README of this package).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from grpo.algorithm.ratio import LOG_RATIO_LIMIT, per_sequence_mean
from grpo.algorithm.shapes import Targets

if TYPE_CHECKING:
    from grpo.config import ObjectiveConfig


@dataclass(frozen=True, slots=True)
class Tokens:
    """These are the tokens of one micro-batch, as an objective sees them.

    logprobs         log π under the current weights; gradients flow through it
    old_logprobs     log π at the start of the round, or the sampler's; no gradient
    ratio            π/π_old of the token or of its completion, as `objective.ratio` says; gradients flow through it
    advantages       the completion's advantage, at each of its tokens
    entropies        the entropy of the distribution that each token was drawn from, in nats; gradients flow through it
    sequence_index   which completion of the micro-batch a token belongs to
    """

    logprobs: Targets
    old_logprobs: Targets
    ratio: Targets
    advantages: Targets
    entropies: Targets
    sequence_index: Targets


Objective = Callable[[Tokens, "ObjectiveConfig"], Targets]


def clip(tokens: Tokens, settings: ObjectiveConfig) -> Targets:
    """Returns PPO's clipped loss −min(ρÂ, clip(ρ, 1−ε_low, 1+ε_high)·Â), with a dual clip if configured.

    The dual clip (arXiv:1912.09729) bounds the loss for Â < 0 by c·|Â|, however large ρ grows.
    """
    ratio, advantages = tokens.ratio, tokens.advantages
    clipped_ratio = ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    loss = torch.maximum(-ratio * advantages, -clipped_ratio * advantages)
    if settings.dual_clip:
        loss = torch.where(advantages < 0, torch.minimum(loss, -settings.dual_clip * advantages), loss)
    return loss


def cispo(tokens: Tokens, settings: ObjectiveConfig) -> Targets:
    """Returns CISPO's loss −sg[clip(ρ)]·Â·log π (arXiv:2506.13585), where sg stops the gradient.

    It clips the weight of a token but never removes the token's gradient.
    """
    weight = tokens.ratio.detach().clamp(1 - settings.clip_low, 1 + settings.clip_high)
    return -weight * tokens.advantages * tokens.logprobs


def unclipped(tokens: Tokens, settings: ObjectiveConfig) -> Targets:
    """Returns the loss −ρÂ without clipping. At ρ = 1 its gradient is that of REINFORCE."""
    return -tokens.ratio * tokens.advantages


def sapo(tokens: Tokens, settings: ObjectiveConfig) -> Targets:
    """Returns SAPO's loss −(4/τ)·sigmoid(τ(ρ − 1))·Â (arXiv:2511.20347), a soft gate in place of the clip.

    The gate's slope is 1 at ρ = 1 and falls on both sides, faster for a higher τ. τ is `temperature_positive` for
    Â > 0, else `temperature_negative`.
    """
    negative = torch.full_like(tokens.advantages, settings.temperature_negative)
    temperature = negative.masked_fill(tokens.advantages > 0, settings.temperature_positive)
    gate = torch.sigmoid(temperature * (tokens.ratio - 1)) * 4 / temperature
    return -gate * tokens.advantages


def dppo(tokens: Tokens, settings: ObjectiveConfig) -> Targets:
    """Returns DPPO's loss −M·ρÂ with the binary total-variation mask M (arXiv:2602.04879).

    M removes a token whose probability has already moved too far where its advantage pushes it: more than `clip_high`
    up for Â > 0, more than `clip_low` down for Â < 0. The distance |π − π_old| is the total variation between "this
    token" and "any other", so rare tokens are not cut for a large ratio alone.
    """
    change = _probability_change(tokens)
    mask = torch.where(tokens.advantages > 0, change <= settings.clip_high, change >= -settings.clip_low)
    return -tokens.ratio * tokens.advantages * mask


def gmpo(tokens: Tokens, settings: ObjectiveConfig) -> Targets:
    """Returns GMPO's loss −Â·(Π_t ρ̃_t)^(1/|o|), at every token of the completion o (arXiv:2507.20673).

    The geometric mean is taken over token ratios that are clipped first, in the logarithm: log ρ̃ is min(log ρ, ε_high)
    for Â > 0 and max(log ρ, −ε_low) for Â < 0. `objective.aggregation.level=sequence_mean` gives the paper's loss.
    """
    log_ratio = _log_ratio(tokens)
    low, high = log_ratio.clamp(min=-settings.clip_low), log_ratio.clamp(max=settings.clip_high)
    clipped_log_ratio = torch.where(tokens.advantages > 0, high, low)
    return -per_sequence_mean(clipped_log_ratio, tokens.sequence_index).exp() * tokens.advantages


# A loss that clips needs a line in `BOUNDED` too, or no token counts as clipped.
OBJECTIVES: Mapping[str, Objective] = {
    "clip": clip,
    "cispo": cispo,
    "unclipped": unclipped,
    "sapo": sapo,
    "dppo": dppo,
    "gmpo": gmpo,
}


def _ratio_change(tokens: Tokens) -> Targets:
    return tokens.ratio - 1


def _probability_change(tokens: Tokens) -> Targets:
    return (tokens.logprobs.exp() - tokens.old_logprobs.exp()).detach()


def _log_ratio(tokens: Tokens) -> Targets:
    return (tokens.logprobs - tokens.old_logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


BOUNDED: Mapping[str, Callable[[Tokens], Targets]] = {
    "clip": _ratio_change,
    "cispo": _ratio_change,
    "dppo": _probability_change,
    "gmpo": _log_ratio,
}
"""In these objectives `clip_low` and `clip_high` bound how far a token has moved from the old policy. The functions
return this distance, with its sign."""


def clipped(tokens: Tokens, settings: ObjectiveConfig) -> tuple[Targets, Targets]:
    """Returns which tokens are clipped at the lower bound and which at the upper.

    A token is clipped where its advantage pushes it further beyond the bound. An objective that is not in `BOUNDED`
    clips none.
    """
    if settings.name not in BOUNDED:
        none = torch.zeros_like(tokens.advantages, dtype=torch.bool)
        return none, none
    distance, advantages = BOUNDED[settings.name](tokens), tokens.advantages
    return (distance < -settings.clip_low) & (advantages < 0), (distance > settings.clip_high) & (advantages > 0)
