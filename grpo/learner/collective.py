"""This module implements the exchange of values between learner ranks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from grpo.learner.sequence_parallel import SequenceGroup


class TorchCollective:
    """Implements `interfaces.Collective` over torch.distributed, and by plain arithmetic on one rank."""

    def __init__(
        self, device: torch.device, group: dist.ProcessGroup | None = None, together: SequenceGroup | None = None
    ):
        """`group` None is the default process group. `together` are the ranks that learn from the same rows as this
        one, or None without sequence parallelism."""
        self._device, self._group, self._together = device, group, together
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.world_size = dist.get_world_size() if dist.is_initialized() else 1

    def apart(self, deadline_seconds: float) -> TorchCollective:
        """Returns a collective over the same ranks for another thread. Its calls do not mix with those of this one.
        Collective. A rank that waits for the others there gives up after `deadline_seconds`."""
        timeout = timedelta(seconds=deadline_seconds)
        group = dist.new_group(backend="gloo", timeout=timeout) if self.world_size > 1 else None
        return TorchCollective(torch.device("cpu"), group)

    def among(self, size: int) -> TorchCollective:
        """Returns a collective over this rank and its neighbours: each `size` consecutive ranks, counted from the
        first, are one group. Collective over all ranks."""
        part = TorchCollective(self._device)
        if size < self.world_size:
            part._group = None
            for first in range(0, self.world_size, size):
                group = dist.new_group(range(first, first + size)) if size > 1 else None
                if first <= self.rank < first + size:
                    part._group = group
            part.rank, part.world_size = self.rank % size, size
        return part

    def sum(self, values: Sequence[float]) -> list[float]:
        return self._reduce(values, dist.ReduceOp.SUM)

    def maximum(self, value: int) -> int:
        return int(self._reduce([float(value)], dist.ReduceOp.MAX)[0])

    def gather(self, value: Any) -> list[Any]:
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self._group)
        return values

    def pool(self, values: Sequence[Any]) -> tuple[list[Any], slice]:
        if self._together is None:
            return list(values), slice(0, len(values))
        return self._together.pool(values)

    def barrier(self) -> None:
        """Returns when every rank has called it."""
        self.sum([0.0])

    def _reduce(self, values: Sequence[float], operation: dist.ReduceOp) -> list[float]:
        if self.world_size == 1:
            return [float(value) for value in values]
        tensor = torch.tensor(list(values), dtype=torch.float64, device=self._device)
        dist.all_reduce(tensor, operation, group=self._group)
        return tensor.tolist()
