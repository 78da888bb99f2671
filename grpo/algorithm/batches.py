"""From the groups of a round to the batches of its optimizer steps.

The loss of a step is normalized by counts of the whole step, over all ranks: they are summed here, before
anything is packed, so every token's weight is final before the first backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from grpo.algorithm.aggregation import AGGREGATIONS, Totals
from grpo.algorithm.kl import ESTIMATORS
from grpo.algorithm.normalization import advantages
from grpo.algorithm.packing import Row, Seedling, bins, pack, pad, plant
from grpo.interfaces import Collective
from grpo.types import Batch, EvaluatedGroup, RoundPlan, split_steps

if TYPE_CHECKING:
    from grpo.config import LearnerConfig, NormalizationConfig, ObjectiveConfig


class BatchMaker:
    """`make_batches` of the loop: settings bound once, groups in, batches out."""

    def __init__(
        self,
        normalization: NormalizationConfig,
        objective: ObjectiveConfig,
        learner: LearnerConfig,
        collective: Collective,
    ):
        self._normalization = normalization
        self._objective = objective
        self._learner = learner
        self._collective = collective

    def __call__(self, groups: Sequence[EvaluatedGroup], plan: RoundPlan) -> list[Batch]:
        """One batch per optimizer step of the plan; equally many micro-batches on every rank."""
        steps = enumerate(split_steps(groups, plan))
        return [self._batch(step, plan.learning_rate_factor, first=index == 0) for index, step in steps]

    def _batch(self, groups: Sequence[EvaluatedGroup], learning_rate_factor: float, first: bool) -> Batch:
        rewards = [self._rewards(group) for group in groups]
        if first:
            # The current log-probabilities are the old ones to the last bit, which another forward pass need not hit.
            groups = [replace(group, old_logprobs=()) for group in groups]
        totals = self._step_totals(groups)
        advantage = advantages(rewards, self._normalization, self._batch_std(rewards))
        seedlings = [
            seedling
            for group, values in zip(groups, advantage, strict=True)
            # The task's rewards decide what is silent: a KL in the reward must not wake a group by its noise.
            for seedling in self._seedlings(group, values * (not group.scored.silent), totals)
        ]
        seedlings, _ = self._collective.pool(seedlings)
        if self._learner.layout == "padded":
            seedlings = pad(seedlings)
        packs = bins(seedlings, self._learner.micro_batch_tokens, self._learner.layout)
        count = max(1, self._collective.maximum(len(packs)))
        packs.extend([] for _ in range(count - len(packs)))
        old_known = first or self._objective.old_logprobs == "learner" or self._objective.kl.in_reward
        return Batch(tuple(pack(items) for items in packs), learning_rate_factor, old_known)

    def _rewards(self, group: EvaluatedGroup) -> torch.Tensor:
        """[completions] float64; minus β·ΣKL(learner ‖ reference), as of the start of the round, where the KL stands in
        the reward."""
        rewards = torch.tensor(group.scored.rewards, dtype=torch.float64)
        kl = self._objective.kl
        if kl.in_reward:
            estimate = ESTIMATORS[kl.estimator]
            pairs = zip(group.old_logprobs, group.reference_logprobs, strict=True)
            penalties = [estimate(old.double(), reference.double()).sum() for old, reference in pairs]
            rewards = rewards - kl.coefficient * torch.stack(penalties)
        return rewards

    def _step_totals(self, groups: Sequence[EvaluatedGroup]) -> Totals:
        lengths = [_included_lengths(group) for group in groups]
        tokens, sequences, filled = self._collective.sum(
            [
                sum(map(sum, lengths)),
                sum(sum(length > 0 for length in group) for group in lengths),
                sum(any(group) for group in lengths),
            ]
        )
        return Totals(max(tokens, 1), max(sequences, 1), max(filled, 1))

    def _batch_std(self, rewards: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """σ over all rewards of the step, all ranks, where it is asked for. The mean is known before squares are
        summed: squares of whole rewards would lose the digits in which these differ."""
        if self._normalization.scope != "batch":
            return None
        every = torch.cat([torch.zeros(0, dtype=torch.float64), *rewards])
        count, total = self._collective.sum([every.numel(), float(every.sum())])
        [squares] = self._collective.sum([float((every - total / max(count, 1)).square().sum())])
        return torch.tensor(squares / max(count - self._normalization.ddof, 1), dtype=torch.float64).sqrt()

    def _seedlings(self, group: EvaluatedGroup, advantage: torch.Tensor, totals: Totals) -> list[Seedling]:
        if self._learner.skip_silent_groups and not self._every_token_counts and not bool(advantage.any()):
            return []
        lengths = _included_lengths(group)
        aggregation = self._objective.aggregation
        weigh = AGGREGATIONS[aggregation.level]
        rows = [
            Row(
                completion,
                float(advantage[index]),
                weigh(length, sum(lengths), totals, aggregation.constant_length),
                group.old_logprobs[index] if group.old_logprobs else None,
                group.reference_logprobs[index] if group.reference_logprobs else None,
            )
            for index, (completion, length) in enumerate(zip(group.scored.group.completions, lengths, strict=True))
            if length
        ]
        prompt = group.scored.group.prompt.token_ids
        return plant(prompt, rows, self._learner.layout, self._learner.micro_batch_tokens)

    @property
    def _every_token_counts(self) -> bool:
        """A KL or entropy term in the loss has a gradient where the advantage is zero."""
        return self._objective.kl.in_loss or bool(self._objective.entropy_coefficient)


def _included_lengths(group: EvaluatedGroup) -> list[int]:
    """Tokens of each completion, 0 where it is not learned from."""
    scored = group.scored
    return [
        len(completion.token_ids) if included else 0
        for completion, included in zip(scored.group.completions, scored.included, strict=True)
    ]
