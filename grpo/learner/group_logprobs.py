"""This module computes log-probabilities of whole groups without gradients, and balances the work over ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

import torch

from grpo.algorithm.balance import Cost, balanced, send_back
from grpo.algorithm.packing import Branch, pack, trees_of
from grpo.algorithm.row_assignment import lay_out
from grpo.interfaces import Collective
from grpo.learner.on_device import to_device
from grpo.types import Mean, MicroBatch, RolloutGroup

Forward = Callable[[MicroBatch], torch.Tensor]
"""Computes log π [targets] of a micro-batch."""


class Scoring:
    """Scoring computes log-probabilities of groups. Trees are spread over ranks by `cost`, as in a step, and their
    log-probabilities return to the rank that has the group."""

    def __init__(self, layout: str, row_tokens: int, collective: Collective, device: torch.device, cost: Cost):
        """A row has at most `row_tokens` tokens, see `grpo.algorithm.packing`."""
        self._layout, self._row_tokens = layout, row_tokens
        self._collective, self._device, self._cost = collective, device, cost
        self._imbalance = Mean(0.0, 0.0)

    def __call__(self, groups: Sequence[RolloutGroup], forward: Forward) -> list[tuple[torch.Tensor, ...]]:
        """Returns one float32 CPU tensor [completion tokens] for each completion of each group. Collective."""
        branches = [[Branch(completion, 0.0, 0.0) for completion in group.completions] for group in groups]
        trees = [
            tree
            for group, group_branches in zip(groups, branches, strict=True)
            for tree in trees_of(group.prompt.token_ids, group_branches, self._layout, self._row_tokens)
        ]
        share = balanced(trees, self._collective, self._cost)
        self._imbalance += Mean(share.imbalance, 1)
        rows, laid_out = lay_out(share.trees, self._collective, self._layout, self._row_tokens, self._cost)
        by_branch: dict[int, torch.Tensor] = {}
        row_logprobs = [forward(to_device(pack(row, self._layout), self._device)) for row in rows]
        for row, values in zip(rows, (tensor.cpu() for tensor in row_logprobs), strict=True):
            row_branches = [branch for tree in row for branch in tree.branches]
            pieces = values.split([len(branch.completion.token_ids) for branch in row_branches]) if row_branches else ()
            # Each piece is copied, because a view would travel to other ranks with its whole row.
            by_branch |= {id(branch): piece.clone() for branch, piece in zip(row_branches, pieces, strict=True)}
        tree_logprobs = [tuple(by_branch[id(branch)] for branch in tree.branches) for tree in laid_out]
        in_order = chain.from_iterable(send_back(trees, share, tree_logprobs, self._collective))
        return [tuple(next(in_order) for _ in group_branches) for group_branches in branches]

    def take_imbalance(self) -> Mean:
        """Returns the busiest rank's work over the mean rank's, a mean over the calls since it was last taken."""
        imbalance, self._imbalance = self._imbalance, Mean(0.0, 0.0)
        return imbalance
