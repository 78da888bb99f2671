"""Checksums of weights that do not depend on how an engine stores them.

Engines fuse tensors (q, k and v into one), pad the vocabulary with zeros and order parameters as they
like. The sum of all bit patterns of a layer is the same through all of that, and changes with any single
flipped bit.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def group_of(name: str) -> str:
    """The tensor group that a parameter belongs to: its layer, "embedding", "head" or "rest"."""
    layer = re.search(r"\blayers\.(\d+)\.", name)
    if layer:
        return f"layer {layer.group(1)}"
    if "embed" in name:
        return "embedding"
    return "head" if "lm_head" in name else "rest"


def bit_sum(tensor: Tensor) -> int:
    """Sum of the bit patterns of a floating-point tensor, read as integers of the same width."""
    import torch

    integers = {2: torch.int16, 4: torch.int32}[tensor.element_size()]
    return int(tensor.detach().view(integers).sum(dtype=torch.int64))


def checksums(weights: Iterable[tuple[str, Tensor]]) -> Counter[str]:
    """Sum of bit patterns per tensor group. Counters of buckets add up by `update`
    (`+` would drop negative sums)."""
    result: Counter[str] = Counter()
    for name, tensor in weights:
        result[group_of(name)] += bit_sum(tensor)
    return result


def differing_groups(ours: Mapping[str, int], theirs: Mapping[str, int]) -> list[str]:
    """Tensor groups whose checksums differ, or that one side does not have."""
    return sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name))
