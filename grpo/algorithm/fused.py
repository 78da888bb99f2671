"""This module reads chunks of logits by functions that torch compiles, in few passes over a GPU's memory.

Step by step, torch writes and reads the whole chunk, [targets, vocabulary], in each operation: conversion, log-softmax,
exponential, product and sum. Compiled, all but the product with the output embedding takes two passes, forward or
backward. Each function is an operator of its own, so that `grpo.prove.roofline` counts what it reads and writes.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.library import CustomOpDef

from grpo.algorithm.shapes import Logits, Targets


class Cooling(NamedTuple):
    """Cooling makes logits of z, the product with the output embedding: softcap·tanh(scale·z/softcap)/temperature. A
    softcap of 0 stands for none."""

    temperature: float
    scale: float
    softcap: float


def target_logprobs(product: Logits, targets: Targets, cooling: Cooling) -> Targets:
    """Returns log π(target)."""
    largest, log_sum = _extent(product, [*cooling])
    return _cooled(product.gather(-1, targets[:, None]), [*cooling]).squeeze(-1) - largest - log_sum


def read(
    product: Logits, targets: Targets, cooling: Cooling, kept: torch.dtype | None
) -> tuple[Targets, Targets, Logits | None]:
    """Returns log π(target) and the entropy; with `kept` also π less the one-hot of the target, in that type."""
    extent = _extent(product, [*cooling])
    if kept is None:
        return *_read(product, targets, extent, [*cooling]), None
    return _read_and_keep(product, targets, extent, [*cooling], kept)


def slopes(
    product: Logits,
    targets: Targets,
    entropies: Targets,
    upstream: tuple[Targets, Targets],
    cooling: Cooling,
    dtype: torch.dtype,
) -> Logits:
    """Returns −temperature/scale · ∂(u·log π(target) + v·H)/∂z in `dtype`, where u and v are `upstream`.

    The logits l have ∂ log π(target)/∂l_j = one-hot_j − p_j and ∂H/∂l_j = −p_j (log p_j + H).
    """
    return _slopes(product, targets, _extent(product, [*cooling]), entropies, torch.stack(upstream), [*cooling], dtype)


def _cooled(product: Tensor, cooling: list[float]) -> Tensor:
    temperature, scale, softcap = cooling
    logits = product.to(torch.promote_types(product.dtype, torch.float32)) * scale
    return (softcap * torch.tanh(logits / softcap) if softcap else logits) / temperature


def _logs(product: Tensor, extent: Tensor, cooling: list[float]) -> Tensor:
    return _cooled(product, cooling) - extent[0, :, None] - extent[1, :, None]


def _one_hot(product: Tensor, targets: Tensor) -> Tensor:
    return torch.arange(product.shape[-1], device=targets.device) == targets[:, None]


def _plain_extent(product: Tensor, cooling: list[float]) -> Tensor:
    logits = _cooled(product, cooling)
    largest = logits.amax(-1)
    return torch.stack([largest, (logits - largest[:, None]).exp().sum(-1).log()])


def _plain_read(product: Tensor, targets: Tensor, extent: Tensor, cooling: list[float]) -> tuple[Tensor, Tensor]:
    logs = _logs(product, extent, cooling)
    return torch.where(_one_hot(product, targets), logs, 0.0).sum(-1), -(logs.exp() * logs).sum(-1)


def _plain_read_and_keep(
    product: Tensor, targets: Tensor, extent: Tensor, cooling: list[float], kept: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    wide = _logs(product, extent, cooling).exp() - _one_hot(product, targets).to(extent.dtype)
    return *_plain_read(product, targets, extent, cooling), wide.to(kept)


def _plain_slopes(
    product: Tensor,
    targets: Tensor,
    extent: Tensor,
    entropies: Tensor,
    upstream: Tensor,
    cooling: list[float],
    dtype: torch.dtype,
) -> Tensor:
    logs = _logs(product, extent, cooling)
    softcap, (of_logprob, of_entropy) = cooling[2], upstream[..., None]
    wide = logs.exp() * (of_logprob + of_entropy * (logs + entropies[:, None]))
    wide = wide - of_logprob * _one_hot(product, targets)
    if softcap:
        wide = wide * (1 - (_cooled(product, cooling) * cooling[0] / softcap).square())
    return wide.to(dtype)


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles a function, when it is first called. Results between its operations have the types that single steps
    have."""
    return torch.compile(function, options={"emulate_precision_casts": True})


def operator(name: str, function: Callable[..., Any], empty: Callable[..., Any]) -> CustomOpDef:
    """Makes an operator of torch that runs `function` compiled. `empty` returns results without data."""
    schema = torch.library.infer_schema(function, mutates_args=())

    def run(*arguments: Any) -> Any:
        # A function would be compiled apart for tensors that have a gradient.
        tensors = [each.detach() if isinstance(each, Tensor) else each for each in arguments]
        return compiled(function)(*tensors)

    made = torch.library.custom_op(f"grpo::{name}", run, mutates_args=(), schema=schema)
    made.register_fake(empty)
    return made


def _rows(product: Tensor, *shape: int) -> Tensor:
    return product.new_empty(*shape, len(product), dtype=torch.promote_types(product.dtype, torch.float32))


_extent = operator("logit_extent", _plain_extent, lambda product, *_: _rows(product, 2))
_read = operator("read_logits", _plain_read, lambda product, *_: (_rows(product), _rows(product)))
_read_and_keep = operator(
    "read_and_keep_logits",
    _plain_read_and_keep,
    lambda product, *rest: (_rows(product), _rows(product), torch.empty_like(product, dtype=rest[-1])),
)
_slopes = operator("logit_slopes", _plain_slopes, lambda product, *rest: torch.empty_like(product, dtype=rest[-1]))
