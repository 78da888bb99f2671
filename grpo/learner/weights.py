"""This module gathers weights as whole tensors under their Hugging Face names, bucket by bucket."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from deepspeed.runtime.zero.partition_parameters import GatheredParameters
from torch import Tensor, nn

from grpo.learner.policy import Policy, base_model
from grpo.learner.rounding import rounded
from grpo.types.weights import BASE, DOWN_SUFFIX, MERGED, UP_SUFFIX

ADAPTER = "default"
"""peft's name for the one adapter."""


def gathered(parameters: list[nn.Parameter], modifier_rank: int | None = None) -> GatheredParameters:
    """Opens a context in which these parameters are whole, whatever the ZeRO stage. With a `modifier_rank`,
    what that rank writes into them is kept."""
    sharded = [parameter for parameter in parameters if hasattr(parameter, "ds_id")]
    return GatheredParameters(sharded, modifier_rank=modifier_rank, enabled=bool(sharded))


def weight_buckets(
    policy: Policy, bucket_bytes: int, dtype: torch.dtype, form: str = MERGED
) -> Iterator[list[tuple[str, Tensor]]]:
    """Yields the model's weights in `form` (see `grpo.types.weights`), a few whole tensors at a time, in `dtype`.

    The tensors of a bucket are valid until the next bucket is asked for. Tied weights come once, under their first
    name. Adapters are merged in float32. Such a sum is rounded to `dtype` without bias, and so is a trained float32
    weight.
    """
    weights = list(_weights(policy.language_model))
    if form == MERGED:
        pieces = [(weight.parameters, weight.merged) for weight in weights]
    else:
        pieces = [(weight.adapters, weight.halves) for weight in weights if weight.layer is not None]
        if form == BASE:
            pieces = [([weight.parameter], weight.base) for weight in weights] + pieces
    bucket: list[Piece] = []
    size = 0
    for parameters, make in pieces:
        elements = sum(getattr(parameter, "ds_numel", parameter.numel()) for parameter in parameters)
        if bucket and size + elements * dtype.itemsize > bucket_bytes:
            yield from _materialized(bucket, dtype)
            bucket, size = [], 0
        bucket.append((parameters, make))
        size += elements * dtype.itemsize
    if bucket:
        yield from _materialized(bucket, dtype)


Piece = tuple[list[nn.Parameter], Callable[[torch.dtype], list[tuple[str, Tensor]]]]
"""A piece is parameters to gather, and a function that makes named tensors of them once they are whole."""


@dataclass(frozen=True, slots=True)
class _Weight:
    """Holds a weight under its Hugging Face name. `layer` is the LoRA layer that adapts the weight, or None."""

    name: str
    parameter: nn.Parameter
    layer: nn.Module | None

    @property
    def adapters(self) -> list[nn.Parameter]:
        return [adapter for name, adapter in self.layer.named_parameters() if "lora_" in name] if self.layer else []

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [self.parameter, *self.adapters]

    def base(self, dtype: torch.dtype) -> list[tuple[str, Tensor]]:
        weight = self.parameter.detach()
        if weight.dtype == torch.float32 and self.parameter.requires_grad:
            # Most steps are smaller than half a step of a coarser type.
            return [(self.name, rounded(weight, dtype, self.name))]
        return [(self.name, weight.to(dtype))]

    def merged(self, dtype: torch.dtype) -> list[tuple[str, Tensor]]:
        if self.layer is None:
            return self.base(dtype)
        (_, down), (_, up) = self.halves(torch.float32)
        return [(self.name, rounded(self.parameter.detach().float() + up @ down, dtype, self.name))]

    def halves(self, dtype: torch.dtype) -> list[tuple[str, Tensor]]:
        down, up = self.layer.lora_A[ADAPTER].weight.detach(), self.layer.lora_B[ADAPTER].weight.detach()
        scaled_up = up.float() * self.layer.scaling[ADAPTER]
        return [(self.name + DOWN_SUFFIX, down.to(dtype)), (self.name + UP_SUFFIX, scaled_up.to(dtype))]


def _weights(language_model: nn.Module) -> Iterator[_Weight]:
    """Yields all weights, without the adapters' own parameters."""
    model = base_model(language_model)
    adapted_layers = {
        f"{name}.weight": module for name, module in model.named_modules() if hasattr(module, "get_delta_weight")
    }
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            continue
        plain = name.replace(".base_layer", "")
        yield _Weight(plain, parameter, adapted_layers.get(plain))


def saved_buffers(language_model: nn.Module) -> dict[str, Tensor]:
    """Returns what a model's files hold besides its weights, such as the biases of routers, which nothing trains. Every
    rank has them whole, in the dtype that the model computes with."""
    model = base_model(language_model)
    saved = model.state_dict().keys()
    return {name.replace(".base_layer", ""): buffer for name, buffer in model.named_buffers() if name in saved}


def _materialized(bucket: list[Piece], dtype: torch.dtype) -> Iterator[list[tuple[str, Tensor]]]:
    with torch.no_grad(), gathered([parameter for parameters, _ in bucket for parameter in parameters]):
        yield [item for _, make in bucket for item in make(dtype)]
