"""This module composes the loss: ratio, objective, selection, correction, KL and entropy, weighted by the
aggregation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from grpo.algorithm.correction import corrected, importance_weights, vetoed
from grpo.algorithm.kl import ESTIMATORS
from grpo.algorithm.lookup import member
from grpo.algorithm.ratio import log_ratio
from grpo.algorithm.shapes import Scalar, Sums, Targets
from grpo.algorithm.token_losses import OBJECTIVES, Tokens, clipped
from grpo.algorithm.token_selection import apply_selection
from grpo.types import MicroBatch
from grpo.types import metrics as m

if TYPE_CHECKING:
    from grpo.config import KlConfig, ObjectiveConfig

METRICS = (
    m.ENTROPY,
    m.OLD_KL,
    m.RATIO,
    m.RATIO_SQUARED,
    m.CLIP_LOW,
    m.CLIP_HIGH,
    m.REFERENCE_KL,
    m.GAP,
    m.MISMATCH_KL,
    m.WEIGHT,
    m.WEIGHT_SQUARED,
    m.ABOVE_CAP,
    m.BELOW_FLOOR,
    m.VETOED,
)
"""These are the metrics whose sums over tokens `policy_loss` returns, in this order. They are logged as means."""


def policy_loss(
    logprobs: Targets, entropies: Targets, micro: MicroBatch, objective: ObjectiveConfig
) -> tuple[Scalar, Sums]:
    """Computes this micro-batch's part of the step's loss, and the sums of its metrics.

    `logprobs` and `entropies` are those under the current weights; gradients flow through both.

    Returns two values. The first is the loss, a scalar that is already divided by the step's global denominators. The
    loss of the step is therefore the plain sum over micro-batches and ranks. The second holds the sums of `METRICS`
    over tokens, float64, detached.

    If the micro-batch has no old log-probabilities, the current ones are used in their place. Every ratio is then 1,
    unless `objective.old_logprobs` is "sampler".
    """
    current = logprobs.detach()
    learner_old = current if micro.old_logprobs is None else micro.old_logprobs
    tokens = tokens_of(logprobs, entropies, micro, objective)
    old, ratio = tokens.old_logprobs, tokens.ratio
    losses = member(OBJECTIVES, objective.name)(tokens, objective)
    if micro.selected is not None:
        losses = apply_selection(losses, tokens, micro.selected, objective)

    correction = objective.correction
    importance = importance_weights(learner_old, micro.sampler_logprobs, correction.level, micro.sequence_index)
    vetoed_tokens = torch.zeros_like(importance, dtype=torch.bool)
    above = below = vetoed_tokens
    if correction.level != "none" and objective.old_logprobs == "learner":
        losses = losses * corrected(importance, correction)
        vetoed_tokens = vetoed(learner_old, micro.sampler_logprobs, correction.veto, micro.sequence_index)
        above, below = importance > correction.cap, importance < correction.floor

    kl = _reference_kl(tokens, micro, objective.kl)
    if objective.kl.in_loss:
        losses = losses + objective.kl.coefficient * kl
    if objective.entropy_coefficient:
        losses = losses - objective.entropy_coefficient * entropies

    loss = (micro.token_weights * losses.masked_fill(vetoed_tokens, 0.0)).sum()
    gap = micro.sampler_logprobs - learner_old
    clipped_low, clipped_high = clipped(tokens, objective)
    sums = {
        m.ENTROPY: entropies,
        m.OLD_KL: ESTIMATORS["k3"](old, current),
        m.RATIO: ratio,
        m.RATIO_SQUARED: ratio.square(),
        m.CLIP_LOW: clipped_low,
        m.CLIP_HIGH: clipped_high,
        m.REFERENCE_KL: kl,
        m.GAP: gap.abs(),
        m.MISMATCH_KL: ESTIMATORS["k3"](micro.sampler_logprobs, learner_old),
        m.WEIGHT: importance,
        m.WEIGHT_SQUARED: importance.square(),
        m.ABOVE_CAP: above,
        m.BELOW_FLOOR: below,
        m.VETOED: vetoed_tokens,
    }
    return loss, _summed(sums)


def tokens_of(logprobs: Targets, entropies: Targets, micro: MicroBatch, objective: ObjectiveConfig) -> Tokens:
    """Returns the tokens of a micro-batch in the form that objectives take. `logprobs` and `entropies` are those
    under the current weights."""
    learner_old = logprobs.detach() if micro.old_logprobs is None else micro.old_logprobs
    old = micro.sampler_logprobs if objective.old_logprobs == "sampler" else learner_old
    ratio = log_ratio(logprobs, old, objective.ratio, micro.sequence_index).exp()
    return Tokens(logprobs, old, ratio, micro.advantages, entropies, micro.sequence_index)


def _reference_kl(tokens: Tokens, micro: MicroBatch, kl: KlConfig) -> Targets:
    """Returns the KL to the reference policy that is added to the loss, or zeros without a KL term."""
    # A row without targets, of a rank that has no work left, has no reference log-probabilities either.
    if not kl.in_loss or not len(micro.targets):
        return torch.zeros_like(tokens.logprobs)
    if micro.reference_logprobs is None:
        raise ValueError("a KL term in the loss needs reference log-probabilities")
    estimate = member(ESTIMATORS, kl.estimator)(tokens.logprobs, micro.reference_logprobs)
    return estimate * tokens.ratio if kl.by_ratio else estimate


def _summed(values: Mapping[str, Targets]) -> Sums:
    return torch.stack([values[name].detach() for name in METRICS]).sum(1, dtype=torch.float64)
