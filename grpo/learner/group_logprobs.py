"""This module computes log-probabilities of whole groups without gradients, and balances the work over ranks.

Before an optimizer step it also chooses tokens among all tokens of the step, by `objective.selection`. It sends
micro-batches to the device without making the host wait.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain

import torch

from grpo.algorithm.balance import Cost, balanced, lay_out, send_back
from grpo.algorithm.packing import all_branches, branches_of, pack, trees_of
from grpo.algorithm.token_losses import Tokens
from grpo.algorithm.token_selection import select
from grpo.config import ObjectiveConfig
from grpo.interfaces import Collective
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
        branches = [
            [branches_of(group.prompt.token_ids, completion) for completion in group.completions] for group in groups
        ]
        trees = [
            tree
            for group_branches in branches
            for tree in trees_of([*chain(*group_branches)], self._layout, self._row_tokens)
        ]
        share = balanced(trees, self._collective, self._cost)
        self._imbalance += Mean(share.imbalance, 1)
        rows, laid_out = lay_out(share.trees, self._collective, self._layout, self._row_tokens, self._cost)
        by_branch: dict[int, torch.Tensor] = {}
        row_logprobs = [forward(to_device(pack(row, self._layout), self._device)) for row in rows]
        for row, values in zip(rows, (tensor.cpu() for tensor in row_logprobs), strict=True):
            row_branches = all_branches(row)
            pieces = values.split([len(branch.completion.token_ids) for branch in row_branches]) if row_branches else ()
            # Each piece is copied, because a view would travel to other ranks with its whole row.
            by_branch |= {id(branch): piece.clone() for branch, piece in zip(row_branches, pieces, strict=True)}
        tree_logprobs = [tuple(by_branch[id(branch)] for branch in tree.branches) for tree in laid_out]
        in_order = chain.from_iterable(send_back(trees, share, tree_logprobs, self._collective))
        values_of = {id(branch): values for branch, values in zip(all_branches(trees), in_order, strict=True)}
        return [
            tuple(_joined([values_of[id(branch)] for _, branch in of_completion]) for of_completion in group_branches)
            for group_branches in branches
        ]

    def take_imbalance(self) -> Mean:
        """Returns the busiest rank's work over the mean rank's, a mean over the calls since it was last taken."""
        imbalance, self._imbalance = self._imbalance, Mean(0.0, 0.0)
        return imbalance


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns the log-probabilities of a completion, given those of its branches."""
    return parts[0] if len(parts) == 1 else torch.cat([torch.zeros(0), *parts])


def spoil_unless(fine: torch.Tensor, logprobs: torch.Tensor) -> None:
    """Makes the gradient of `logprobs` NaN if `fine` [], on the device, is false, without waiting for its value. A NaN
    loss can leave finite gradients, as from one branch of a maximum, but NaN gradients reach every rank."""
    logprobs.register_hook(lambda gradient: gradient.where(fine, torch.nan))


def sent(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Returns the tensor on `device`. A GPU is sent it from pinned memory: with a copy from other memory the host may
    wait until the GPU has done all work before it (CUDA's API synchronization behavior)."""
    on_host = tensor.pin_memory() if device.type == "cuda" and tensor.is_cpu else tensor
    return on_host.to(device, non_blocking=True)


def to_device(micro: MicroBatch, device: torch.device) -> MicroBatch:
    """Returns the same micro-batch with every tensor on `device` but the predictors, which the host still reads (see
    `grpo.learner.policy`)."""
    tensors = {
        field.name: sent(value, device)
        for field in dataclasses.fields(micro)
        if isinstance(value := getattr(micro, field.name), torch.Tensor) and field.name != "predictors"
    }
    return dataclasses.replace(micro, **tensors)


def with_selection(
    micro_batches: Sequence[MicroBatch],
    tokens_of: Callable[[MicroBatch], Tokens],
    objective: ObjectiveConfig,
    collective: Collective,
    together: int,
) -> Sequence[MicroBatch]:
    """Returns the micro-batches with the tokens marked that the configured selection chose. Collective.

    Without a selection the micro-batches are unchanged. `tokens_of` computes a micro-batch's tokens under the current
    weights. `together` is the number of ranks that compute each row together: all have its tokens, which count once.
    """
    if objective.selection.name == "none":
        return micro_batches

    def total(counts: Sequence[float]) -> list[float]:
        return [count / together for count in collective.sum(counts)]

    weights = select([tokens_of(micro) for micro in micro_batches], total, objective)
    return [replace(micro, selected=selected) for micro, selected in zip(micro_batches, weights, strict=True)]
