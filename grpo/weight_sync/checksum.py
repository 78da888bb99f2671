"""This module computes checksums of weights that do not depend on how an engine stores them.

Engines fuse tensors (q, k and v into one), pad the vocabulary with zeros and order parameters as they like. The sum
of all bit patterns of a layer is the same through all of that, and changes with any single flipped bit. But this sum
does not see values that changed places. So every tensor that both sides know by the same name and shape has a checksum
of its own too, in which each bit pattern is weighed by its place. This second checksum sees rows or columns that change
places, two tensors that were swapped, and signs that were flipped in pairs.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

IN_ORDER = "in order: "
"""Begins the keys of checksums that are weighed by place; the others are sums over a tensor group."""

WEIGHTS = 2**16 - 1
"""There are this many weights of columns. A pattern of sixteen bits times a weight fits 32 bits, also with its sign."""

DECAY = ".A"
"""The end of the name by which vLLM calls the decay of a state-space layer, in float32 always."""

# This bias steers which experts a token goes to. In transformers it is a buffer, which is not trained and so not sent.
_NOT_SENT = "e_score_correction_bias"

# The name of a single expert, as in model files. Learners and engines keep a layer's experts in one tensor.
_ONE_EXPERT = re.compile(r"\.experts\.\d+\.")

# Prefixes of weight names that come from classes around the model and differ between libraries.
_WRAPPERS = ("model", "language_model", "transformer", "backbone")


def group_of(name: str) -> str:
    """Returns the tensor group that a parameter belongs to: its layer, "embedding", "head" or "rest"."""
    layer = re.search(r"\blayers\.(\d+)\.", name)
    if layer:
        return f"layer {layer.group(1)}"
    if "embed" in name:
        return "embedding"
    return "head" if "lm_head" in name else "rest"


def both_sums(tensor: Tensor) -> tuple[int, int]:
    """Sums the bit patterns of a floating-point tensor, read as integers of the same width, and sums them once more,
    each weighted by its row and by its column, modulo 2⁶⁴: Σ_r v(r) Σ_c w(c)·bits[r, c].

    A vector counts as one row. With more than two dimensions, the last one is the columns and all others the rows.
    No two of 65,535 columns have one weight, so two of their numbers in a row that change places always change the
    second sum.
    """
    plain, placed = _sums_on_device(tensor).tolist()
    return plain, placed


def _sums_on_device(tensor: Tensor) -> Tensor:
    """Returns `both_sums` as a tensor of two numbers, without waiting for the device."""
    import torch

    rows = _rows_of_bits(tensor)
    weights = column_weights(min(rows.shape[1], WEIGHTS), rows)
    plain, placed = [], []
    # Columns beyond the number of weights count as those of further rows.
    for index, block in enumerate(rows.split(WEIGHTS, dim=1)):
        by_row = _mixed(torch.arange(len(rows), device=rows.device) + index * len(rows))
        sums, weighed = _row_sums(block, weights[: block.shape[1]])
        plain.append(sums.sum())
        placed.append((weighed * by_row).sum())
    return torch.stack([*plain, *placed]).view(2, -1).sum(1)


def column_weights(count: int, like: Tensor) -> Tensor:
    """Returns `count` numbers from 1 to `WEIGHTS`, no two of them alike, [columns] int64 on the device of `like`.

    They look random, because what differs from column to column by a rule would cancel in a sum by a rule.
    """
    import torch

    numbers = torch.arange(1, count + 1, device=like.device)
    # Each step can be undone within sixteen bits, and leaves 0 to 0.
    for factor in (0x9E3B, 0x85EB):
        numbers = numbers * factor & WEIGHTS
        numbers = numbers ^ (numbers >> 7)
    return numbers


def _row_sums(rows: Tensor, by_column: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the sum and the weighed sum of each row, [rows] int64.

    A few rows are widened at a time: few enough for the processor's cache, and so many that threads which sleep between
    them (see `grpo.host.environment`) are seldom woken.
    """
    import torch

    wide = torch.int32 if rows.dtype == torch.int16 else torch.int64
    chunk, weights = 2**24 if rows.is_cuda else 2**20, by_column.to(wide)
    plain, weighed = ([rows.new_zeros(0, dtype=torch.int64)] for _ in range(2))
    for part in rows.split(max(1, chunk // max(1, rows.shape[1]))):
        values = part.to(wide)
        plain.append(values.sum(1, dtype=torch.int64))
        weighed.append(values.mul_(weights).sum(1, dtype=torch.int64))
    return torch.cat(plain), torch.cat(weighed)


def _rows_of_bits(tensor: Tensor) -> Tensor:
    import torch

    bits = tensor.detach().view({2: torch.int16, 4: torch.int32}[tensor.element_size()])
    return bits.reshape(1, -1) if bits.dim() < 2 else bits if bits.dim() == 2 else bits.flatten(0, -2)


def _mixed(numbers: Tensor) -> Tensor:
    """Returns odd integers of 64 bits that look random and are the same on every device."""
    mixed = (numbers + 1) * -7046029254386353131
    mixed = (mixed ^ (mixed >> 29)) * -4658895280553007687
    return (mixed ^ (mixed >> 32)) | 1


def checksums(weights: Iterable[tuple[str, Tensor]]) -> Counter[str]:
    """Returns two kinds of checksums of weights. Add those of several buckets by `update` (`+` drops negative sums).

    The first kind is the sum of the bit patterns of a tensor group, which does not depend on their order. Its key is
    the group's name. The second kind is a sum for each tensor that depends on where each number stands. Its key is
    `IN_ORDER`, the tensor's name without wrappers, and its shape. Two kinds of weights have one checksum only. A bias
    that steers tokens to experts has only the second, since learners do not send it. A single expert has only the
    first, since learners and engines keep all experts of a layer in one tensor.
    """
    import torch

    result: Counter[str] = Counter()
    # All sums stay on the device until the last: waiting for each one would take longer than summing it up.
    summed: list[tuple[str, torch.Size, Tensor]] = []
    of_experts: defaultdict[str, list[Tensor]] = defaultdict(list)
    for name, tensor in map(_as_compared, weights):
        if _ONE_EXPERT.search(name):
            of_experts[group_of(name)].append(_rows_of_bits(tensor).sum(dtype=torch.int64))
            continue
        summed.append((name, tensor.shape, _sums_on_device(tensor)))
    all_sums = torch.stack([sums for *_, sums in summed]).tolist() if summed else []
    for (name, shape, _), (bits, placed) in zip(summed, all_sums, strict=True):
        if not name.endswith(_NOT_SENT):
            result[group_of(name)] += bits
        result[f"{IN_ORDER}{plain_name(name)} {list(shape)}"] = placed
    for group, sums in of_experts.items():
        result[group] += int(torch.stack(sums).sum())
    return result


def _as_compared(weight: tuple[str, Tensor]) -> tuple[str, Tensor]:
    """Turns the decay of a state-space layer into the number that vLLM stores: A = −exp(A_log), in float32."""
    name, tensor = weight
    if not name.endswith(f"{DECAY}_log"):
        return weight
    return name.removesuffix("_log"), -tensor.detach().float().exp()


def plain_name(name: str) -> str:
    """Returns a weight's name without wrappers' prefixes, and with one word each for attention and for experts.

    >>> plain_name("model.language_model.layers.0.self_attn.q_proj.weight")
    'layers.0.attn.q_proj.weight'
    """
    parts = name.replace(".self_attn.", ".attn.").replace(".block_sparse_moe.", ".mlp.").split(".")
    while len(parts) > 1 and parts[0] in _WRAPPERS:
        parts = parts[1:]
    return ".".join(parts)


def differing(ours: Mapping[str, int], theirs: Mapping[str, int]) -> list[str]:
    """Returns the tensor groups whose sums differ or that one side lacks, and tensors whose sums in order differ.

    A tensor that the engine stores in another shape, or under another name, has no sum in order on both sides: its
    group's sum is all that is compared.
    """
    group_names = {name for name in {*ours, *theirs} if not name.startswith(IN_ORDER)}
    tensor_names = {name for name in ours if name.startswith(IN_ORDER) and name in theirs}
    different_names = sorted(name for name in group_names | tensor_names if ours.get(name) != theirs.get(name))
    return [name.removeprefix(IN_ORDER) for name in different_names]
