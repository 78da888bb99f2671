"""This module turns the groups of a round into the batches of its optimizer steps.

The loss of a step is normalized by counts over the whole step and all ranks. These counts are summed before
anything is packed, so that every token's weight is final before the first backward pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING

import torch

from grpo.algorithm.aggregation import AGGREGATIONS, Totals
from grpo.algorithm.balance import Cost, balanced, lay_out
from grpo.algorithm.kl import ESTIMATORS
from grpo.algorithm.lookup import member
from grpo.algorithm.normalization import GROUP_RELATIVE, Moments, advantages, scaled
from grpo.algorithm.packing import LooseTree, branches_of, pack, trees_of
from grpo.interfaces import Collective
from grpo.types import Batch, GroupWithLogprobs, RoundPlan
from grpo.types.values import ROUNDING

if TYPE_CHECKING:
    from grpo.config import LearnerConfig, NormalizationConfig, ObjectiveConfig


class BatchMaker:
    """A batch maker is the loop's `make_batches`: it holds the settings and turns groups into batches."""

    def __init__(
        self,
        normalization: NormalizationConfig,
        objective: ObjectiveConfig,
        learner: LearnerConfig,
        collective: Collective,
        part_weights: Mapping[str, float] | None = None,
        cost: Cost = lambda before, tokens: tokens,
    ):
        """`part_weights` are the weights of the reward's parts, without which normalization.parts=each raises
        ValueError. `cost` is the measure of work by which ranks are balanced."""
        if normalization.parts == "each" and not part_weights:
            raise ValueError("normalization.parts=each needs the weights of the reward's parts: none are given")
        self._part_weights = part_weights or {}
        self._normalization = normalization
        self._objective = objective
        self._learner = learner
        self._collective = collective
        self._cost = cost

    def __call__(self, steps: Sequence[Sequence[GroupWithLogprobs]], plan: RoundPlan) -> list[Batch]:
        """Makes one batch for each optimizer step. Every rank gets the same number of micro-batches. Collective."""
        # The last round of a run that was stopped within a round may have fewer steps than its passes.
        passes = islice(chain.from_iterable(repeat(steps, plan.passes)), plan.refresh_interval)
        return [self._batch(groups, plan, index == 0, index < len(steps)) for index, groups in enumerate(passes)]

    def _batch(self, groups: Sequence[GroupWithLogprobs], plan: RoundPlan, first: bool, fresh: bool) -> Batch:
        group_advantages = self._advantages(groups)
        if first:
            # In the round's first step the old log-probabilities are the current ones. Those of an earlier forward
            # pass could differ in the last bits, and the ratio would not be exactly 1.
            groups = [replace(group, old_logprobs=()) for group in groups]
        totals = self._step_totals(groups)
        trees = [
            tree
            for group, values in zip(groups, group_advantages, strict=True)
            for tree in self._trees(group, values, totals)
        ]
        trees = balanced(trees, self._collective, self._cost).trees
        learner = self._learner
        rows, _ = lay_out(trees, self._collective, learner.layout, learner.micro_batch_tokens, self._cost)
        old_known = first or self._objective.old_logprobs == "learner" or self._objective.kl.in_reward
        # A step with nothing to learn from is still taken. Its batch is one empty row.
        micro_batches = tuple(pack(row, learner.layout) for row in rows or [[]])
        coefficient = plan.entropy_coefficient
        entropy = None if coefficient is None else coefficient * plan.entropy_bonus
        return Batch(micro_batches, plan.learning_rate_factor, old_known, entropy, fresh)

    def _advantages(self, groups: Sequence[GroupWithLogprobs]) -> list[torch.Tensor]:
        """Computes the advantages of this rank's groups, one float64 tensor [completions] per group. Collective.

        With parts "each" (GDPO, arXiv:2601.05242) every part of the reward is normalized by itself. The weighted sum of
        the parts is divided by its σ over the whole step. Its mean needs no subtraction: it is 0 in every group.
        """
        if self._normalization.parts == "each":
            weighted_terms = [
                [weight * value for value in self._normalized(groups, [_part(group, part) for group in groups])]
                for part, weight in self._part_weights.items()
            ]
            total = [_summed(terms) for terms in zip(*weighted_terms, strict=True)]
            std = self._moments(groups, total).std
            return [scaled(value, std, self._normalization) for value in total]
        values = self._normalized(groups, [self._rewards(group) for group in groups])
        if self._normalization.name not in GROUP_RELATIVE:
            return values
        # The task's rewards decide whether a group is silent. The noise of a KL term in the reward would otherwise give
        # such a group advantages.
        return [value * (not group.scored.silent) for value, group in zip(values, groups, strict=True)]

    def _normalized(self, groups: Sequence[GroupWithLogprobs], rewards: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return advantages(rewards, self._normalization, self._moments(groups, rewards))

    def _rewards(self, group: GroupWithLogprobs) -> torch.Tensor:
        """Returns the group's rewards, [completions] float64.

        With the KL in the reward, β·ΣKL(learner ‖ reference) at the start of the round is subtracted.
        """
        rewards = torch.tensor(group.scored.rewards, dtype=torch.float64)
        kl = self._objective.kl
        if kl.in_reward:
            estimate = member(ESTIMATORS, kl.estimator)
            pairs = zip(group.old_logprobs, group.reference_logprobs, strict=True)
            penalties = [estimate(old.double(), reference.double()).sum() for old, reference in pairs]
            rewards = rewards - kl.coefficient * torch.stack(penalties)
        return rewards

    def _step_totals(self, groups: Sequence[GroupWithLogprobs]) -> Totals:
        """Counts the tokens, completions and groups that this step learns from, over all ranks. Collective.

        No count is below 1, since the tokens' weights divide by them.
        """
        lengths = [_included_lengths(group) for group in groups]
        tokens, sequences, num_groups = self._collective.sum(
            [
                sum(map(sum, lengths)),
                sum(sum(length > 0 for length in group) for group in lengths),
                sum(any(group) for group in lengths),
            ]
        )
        return Totals(max(tokens, 1), max(sequences, 1), max(num_groups, 1))

    def _moments(self, groups: Sequence[GroupWithLogprobs], rewards: Sequence[torch.Tensor]) -> Moments:
        """Returns mean and σ over all rewards of the step on all ranks. Rewards of spoilt groups are left out, since
        they stand for none. Collective.

        The mean is computed first, and squared differences from it are summed. Summing the squares of the rewards
        themselves would lose the digits in which rewards differ.
        """
        real = [values for group, values in zip(groups, rewards, strict=True) if not group.scored.spoilt]
        values = torch.cat([torch.zeros(0, dtype=torch.float64), *real])
        count, total = self._collective.sum([values.numel(), float(values.sum())])
        mean = total / max(count, 1)
        [squares] = self._collective.sum([float((values - mean).square().sum())])
        return Moments(mean, (squares / max(count - self._normalization.ddof, 1)) ** 0.5)

    def _trees(self, group: GroupWithLogprobs, advantage: torch.Tensor, totals: Totals) -> list[LooseTree]:
        """Builds the trees of one group. With `skip_silent_groups` it builds none for a group without a gradient."""
        if self._learner.skip_silent_groups and not self._every_token_counts and not bool(advantage.any()):
            return []
        lengths = _included_lengths(group)
        aggregation = self._objective.aggregation
        weigh = member(AGGREGATIONS, aggregation.level)
        prompt = group.scored.group.prompt.token_ids
        branches = [
            branch
            for index, (completion, length) in enumerate(zip(group.scored.group.completions, lengths, strict=True))
            if length
            for branch in branches_of(
                prompt,
                completion,
                float(advantage[index]),
                weigh(length, sum(lengths), totals, aggregation.constant_length),
                group.old_logprobs[index] if group.old_logprobs else None,
                group.reference_logprobs[index] if group.reference_logprobs else None,
            )
        ]
        return trees_of(branches, self._learner.layout, self._learner.micro_batch_tokens)

    @property
    def _every_token_counts(self) -> bool:
        """Says whether tokens with advantage 0 affect the step: a KL or entropy term in the loss gives them a gradient,
        and a token selection compares all tokens of the step."""
        objective = self._objective
        entropy = objective.entropy_coefficient or objective.entropy_target
        return objective.kl.in_loss or bool(entropy) or objective.selection.name != "none"


def _part(group: GroupWithLogprobs, name: str) -> torch.Tensor:
    """Returns one part of the rewards of a group, [completions] float64."""
    return torch.tensor([grade.parts.get(name, 0.0) for grade in group.scored.grades], dtype=torch.float64)


def _summed(terms: Sequence[torch.Tensor]) -> torch.Tensor:
    """Adds up tensors elementwise. Where the terms cancel up to rounding, the sum is exactly 0."""
    stacked = torch.stack(list(terms))
    total = stacked.sum(0)
    return total * (total.abs() > ROUNDING * stacked.abs().sum(0))


def _included_lengths(group: GroupWithLogprobs) -> list[int]:
    """Returns the number of tokens of each completion, and 0 for one that is not learned from."""
    scored = group.scored
    return [
        len(completion.token_ids) if included else 0
        for completion, included in zip(scored.group.completions, scored.included, strict=True)
    ]
