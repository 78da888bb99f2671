"""This module tries a user's own function of the loss on a few small tensors, before anything is started.

Each check raises ValueError with one line that says what is wrong. A function has to return a tensor or number
of the right form, to have a gradient where one is needed, and not to depend on the partition: the value of a token or
of a group must be the same whatever else is computed in the same call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from grpo.algorithm.aggregation import AGGREGATIONS, Totals
from grpo.algorithm.kl import ESTIMATORS
from grpo.algorithm.lookup import member
from grpo.algorithm.normalization import NORMALIZATIONS, Moments
from grpo.algorithm.ratio import log_ratio
from grpo.algorithm.shapes import Completions, Targets
from grpo.algorithm.token_losses import OBJECTIVES, Tokens

if TYPE_CHECKING:
    from grpo.config import NormalizationConfig, ObjectiveConfig

LENGTHS = (3, 1, 4, 2)
"""These are the numbers of tokens of the completions on which functions are tried."""

TOLERANCE = 1e-9


def check_functions(normalization: NormalizationConfig, objective: ObjectiveConfig) -> None:
    """Tries each function of the loss that is named by an import path. Raises ValueError for the first that fails."""
    checks: tuple[tuple[str, str, Mapping, Callable[[Callable], None]], ...] = (
        (
            "normalization.name",
            normalization.name,
            NORMALIZATIONS,
            lambda candidate: check_normalization(candidate, normalization),
        ),
        ("objective.name", objective.name, OBJECTIVES, lambda candidate: check_objective(candidate, objective)),
        ("objective.aggregation.level", objective.aggregation.level, AGGREGATIONS, check_aggregation),
        ("objective.kl.estimator", objective.kl.estimator, ESTIMATORS, check_estimator),
    )
    for key, name, table, check in checks:
        if name in table:
            continue
        try:
            function = member(table, name)
        except (Exception, SystemExit) as error:  # a module may raise anything while it is imported
            raise ValueError(f"{key}={name} cannot be imported: {type(error).__name__}: {error}") from error
        try:
            check(function)
        except Exception as error:  # and so may a function
            reason = str(error) if type(error) is ValueError else f"it raised {type(error).__name__}: {error}"
            raise ValueError(f"{key}={name} was tried on small tensors and does not fit: {reason}") from error


def check_objective(objective: Callable[[Tokens, ObjectiveConfig], Targets], settings: ObjectiveConfig) -> None:
    """Tries a surrogate objective on four completions together and on each alone."""
    losses_together = _losses(lambda tokens: objective(tokens, settings), range(len(LENGTHS)), settings)
    losses_alone = [_losses(lambda tokens: objective(tokens, settings), [one], settings) for one in range(len(LENGTHS))]
    _compare(losses_together, losses_alone)


def check_estimator(estimator: Callable[[Targets, Targets], Targets]) -> None:
    """Tries an estimator of the KL on four completions together and on each alone."""

    def penalty(tokens: Tokens) -> Targets:
        return estimator(tokens.logprobs, tokens.old_logprobs)

    _compare(_losses(penalty, range(len(LENGTHS))), [_losses(penalty, [one]) for one in range(len(LENGTHS))])


def check_aggregation(weigh: Callable[[int, int, Totals, int], float]) -> None:
    """Tries an aggregation on two completions of a step with six."""
    for length, group_tokens in ((1, 5), (4, 9)):
        weight = weigh(length, group_tokens, Totals(tokens=20, sequences=6, groups=3), 8)
        if not (isinstance(weight, int | float) and 0 <= weight < float("inf")):
            raise ValueError(f"it returned {weight!r} for a completion; a number that is not negative is needed")


def check_normalization(
    normalize: Callable[[Completions, Moments, NormalizationConfig], Completions], settings: NormalizationConfig
) -> None:
    """Tries a normalization on a mixed group, on its completions in another order, and on groups of equal rewards."""
    step = Moments(0.4, 0.5)
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.5], dtype=torch.float64)
    order = torch.tensor([1, 3, 4, 0, 2])
    values = normalize(rewards.clone(), step, settings)
    for group in (rewards, torch.zeros(4, dtype=torch.float64), torch.ones(1, dtype=torch.float64)):
        advantages = normalize(group.clone(), step, settings)
        _require_tensor(advantages, len(group), "completion")
        if not advantages.isfinite().all():
            raise ValueError(f"the advantages of rewards {group.tolist()} are not finite: {advantages.tolist()}")
    if not torch.allclose(normalize(rewards[order], step, settings), values[order], rtol=0, atol=TOLERANCE):
        raise ValueError("the advantage of a completion depends on where it stands in its group")


def _tokens(indices: Sequence[int], settings: ObjectiveConfig | None) -> Tokens:
    """Makes the tokens of the completions `indices`, in float64. Ratios lie on both sides of every usual bound."""
    generator = torch.Generator().manual_seed(0)
    pieces = [torch.rand(4, length, dtype=torch.float64, generator=generator) for length in LENGTHS]
    logprobs, change, entropies, _ = torch.cat([pieces[one] for one in indices], dim=1)
    logprobs = (-0.1 - 2 * logprobs).requires_grad_()
    old = logprobs.detach() - 2 * (change - 0.5)
    lengths = torch.tensor([LENGTHS[one] for one in indices])
    index = torch.arange(len(indices)).repeat_interleave(lengths)
    advantages = torch.tensor([(1.5, -0.5, 0.0, -2.0)[one] for one in indices], dtype=torch.float64)[index]
    ratio = log_ratio(logprobs, old, settings.ratio if settings else "token", index).exp()
    return Tokens(logprobs, old, ratio, advantages, entropies.requires_grad_(), index)


def _losses(
    loss: Callable[[Tokens], Tensor], indices: Sequence[int], settings: ObjectiveConfig | None = None
) -> tuple[Tensor, Tensor]:
    """Returns the losses of the tokens of the completions `indices`, and the gradient of their sum by `logprobs`."""
    tokens = _tokens(indices, settings)
    losses = loss(tokens)
    _require_tensor(losses, len(tokens.logprobs), "token")
    if not losses.requires_grad:
        raise ValueError("its losses have no gradient: they do not depend on logprobs or ratio")
    losses.sum().backward()
    gradient = tokens.logprobs.grad
    if gradient is None:
        gradient = torch.zeros_like(tokens.logprobs)
    if not (losses.isfinite().all() and gradient.isfinite().all()):
        raise ValueError("its losses or their gradients are not finite")
    return losses.detach(), gradient


def _compare(together: tuple[Tensor, Tensor], alone: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Raises ValueError if losses or gradients differ when completions are computed together and when each is alone."""
    for what, joint, single in zip(("losses", "gradients"), together, zip(*alone, strict=True), strict=True):
        if not torch.allclose(joint, torch.cat(single), rtol=0, atol=TOLERANCE):
            raise ValueError(
                f"the {what} of a completion depend on the other completions of its micro-batch, so they would change "
                "with ranks and packing"
            )
    if not together[1].any():
        raise ValueError("the gradient of its losses is zero")


def _require_tensor(values: Tensor, count: int, unit: str) -> None:
    if not (isinstance(values, Tensor) and values.shape == (count,) and values.is_floating_point()):
        what_returned = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(
            f"it returned {what_returned} where a float tensor with one value per {unit}, ({count},), is needed"
        )
