"""This module merges LoRA adapters where they arrive: the receiver keeps the frozen weights and adds new adapters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpo.interfaces import Bucket
from grpo.types.weights import BASE_SUFFIX, DOWN_SUFFIX, UP_SUFFIX

if TYPE_CHECKING:
    from torch import Tensor


class AdaptedWeights:
    """Keeps the frozen base of every adapted weight in main memory."""

    def __init__(self) -> None:
        self._base: dict[str, Tensor] = {}
        self._down: dict[str, Tensor] = {}

    def __bool__(self) -> bool:
        """Says whether any weight is adapted."""
        return bool(self._base)

    def merge(self, bucket: Bucket) -> list[tuple[str, Tensor]]:
        """Returns the weights to load from a bucket. An adapted weight is W = base + B·A in float32, and comes with the
        bucket that brings B, after base and A."""
        merged_bucket: list[tuple[str, Tensor]] = []
        for name, tensor in bucket:
            base_name, dot, kind = name.rpartition(".")
            if dot + kind == BASE_SUFFIX:
                self._base[base_name] = tensor.to("cpu", copy=True)
            elif dot + kind == DOWN_SUFFIX:
                # The tensor is copied, because the next bucket uses the same memory.
                self._down[base_name] = tensor.clone()
            elif dot + kind == UP_SUFFIX:
                delta = tensor.float() @ self._down.pop(base_name).float()
                merged_bucket.append((base_name, self._base[base_name].to(tensor.device).float() + delta))
            else:
                merged_bucket.append((name, tensor))
        return merged_bucket
