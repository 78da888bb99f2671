"""This module has several ranks compute one packed row together: Ulysses sequence parallelism (arXiv:2309.14509).

Each rank holds a share of the row's tokens through every layer but attention, where tokens are exchanged for heads:
there each rank holds all tokens of its share of the heads. Activations of a row are spread over the ranks, which is
what long completions need. The ranks of a group pool what they have sampled and learn from the same rows.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.nn.functional import all_to_all_single

from grpo.types import MicroBatch, Tree


class SequenceGroup:
    """A sequence group is the `size` consecutive ranks that compute rows together with this one. Every rank of the run
    must create it at the same time."""

    def __init__(self, size: int, deadline_seconds: float):
        """A rank waits for the others of its group for `deadline_seconds` at most, for example until they have sampled.
        NCCL's own limit, ten minutes, would end the run."""
        self.size = size
        rank, world = dist.get_rank(), dist.get_world_size()
        self._index = rank % size
        for first in range(0, world, size):
            members = list(range(first, first + size))
            # torch requires that every rank makes every group.
            group = dist.new_group(members, timeout=timedelta(seconds=deadline_seconds))
            if rank in members:
                self._group = group

    def pool(self, values: Sequence[Any]) -> tuple[list[Any], slice]:
        """Returns the values of all ranks of the group, and the slice of them that came from this rank."""
        values_of_ranks: list[Any] = [None] * self.size
        dist.all_gather_object(values_of_ranks, list(values), group=self._group)
        first = sum(map(len, values_of_ranks[: self._index]))
        return [value for of_one_rank in values_of_ranks for value in of_one_rank], slice(first, first + len(values))

    def padded(self, micro: MicroBatch) -> tuple[Tensor, Tensor, tuple[Tree, ...]]:
        """Returns a row's token ids, positions and trees, padded so that all ranks hold equally many tokens. The
        padding is a tree of its own, which no other token attends."""
        length = len(micro.token_ids)
        num_padding = -length % self.size
        pad = torch.nn.functional.pad
        trees = (*micro.trees, Tree(length, num_padding, ())) if num_padding else micro.trees
        return pad(micro.token_ids, (0, num_padding)), pad(micro.position_ids, (0, num_padding)), trees

    def share(self, length: int) -> slice:
        """Returns the slice of this rank's tokens in a padded row of `length` tokens."""
        tokens = length // self.size
        return slice(self._index * tokens, (self._index + 1) * tokens)

    def tokens_to_heads(self, tensor: Tensor) -> Tensor:
        """Turns [1, heads, tokens/size, width] into [1, heads/size, tokens, width]. Fewer than `size` heads are
        repeated."""
        if tensor.shape[1] < self.size:
            tensor = tensor.repeat_interleave(self.size // tensor.shape[1], dim=1)
        _, heads, tokens, width = tensor.shape
        # The first axis is the receiving rank before the exchange and the sending rank after it. Ranks hold consecutive
        # tokens.
        exchanged_heads = self._exchange(tensor.reshape(self.size, heads // self.size, tokens, width))
        return exchanged_heads.transpose(0, 1).reshape(1, heads // self.size, self.size * tokens, width)

    def heads_to_tokens(self, tensor: Tensor) -> Tensor:
        """Turns [1, heads/size, tokens, width] into [1, heads, tokens/size, width]."""
        _, heads, tokens, width = tensor.shape
        by_receiver = tensor.reshape(heads, self.size, tokens // self.size, width).transpose(0, 1)
        return self._exchange(by_receiver).reshape(1, self.size * heads, tokens // self.size, width)

    def own_heads(self, tensor: Tensor) -> Tensor:
        """Takes one value per head [heads], and returns those of this rank's heads after `tokens_to_heads`."""
        return tensor.chunk(self.size)[self._index]

    def whole(self, values: Tensor, place: Tensor, length: int) -> Tensor:
        """Returns the values [length] of a whole row, gathered from all ranks. This rank has `values` [own] at the
        indices `place` [own], and the other ranks have the rest."""
        return _Sum.apply(values.new_zeros(length).index_put((place,), values), self._group)

    def _exchange(self, by_receiver: Tensor) -> Tensor:
        contiguous = by_receiver.contiguous()
        return all_to_all_single(torch.empty_like(contiguous), contiguous, group=self._group)


class _Sum(torch.autograd.Function):
    """Sums over the ranks of a group. The backward pass passes the gradient on unchanged: all ranks compute the same
    loss from the sum, so each has the whole gradient already."""

    @staticmethod
    def forward(context, tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
        total = tensor.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(context, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None
