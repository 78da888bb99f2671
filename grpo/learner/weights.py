"""Weights as whole tensors under their Hugging Face names, gathered bucket by bucket."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from deepspeed.runtime.zero.partition_parameters import GatheredParameters
from torch import Tensor, nn

from grpo.learner.policy import Policy, base_model


def gathered(parameters: list[nn.Parameter], modifier_rank: int | None = None) -> GatheredParameters:
    """Context in which these parameters are whole, whatever the ZeRO stage. With a `modifier_rank`,
    what that rank writes into them is kept."""
    sharded = [parameter for parameter in parameters if hasattr(parameter, "ds_id")]
    return GatheredParameters(sharded, modifier_rank=modifier_rank, enabled=bool(sharded))


def weight_buckets(policy: Policy, bucket_bytes: int, dtype: torch.dtype) -> Iterator[list[tuple[str, Tensor]]]:
    """All weights of the model in `dtype`, a few whole tensors at a time; LoRA adapters merged in.

    The tensors of a bucket are valid until the next one is asked for. Tied weights come once, under
    their first name.
    """
    bucket: list[tuple[str, nn.Parameter, nn.Module | None]] = []
    size = 0
    for item in _named_weights(policy.language_model):
        _, parameter, _ = item
        elements = getattr(parameter, "ds_numel", parameter.numel())
        if bucket and size + elements * dtype.itemsize > bucket_bytes:
            yield from _materialized(bucket, dtype)
            bucket, size = [], 0
        bucket.append(item)
        size += elements * dtype.itemsize
    if bucket:
        yield from _materialized(bucket, dtype)


def _named_weights(language_model: nn.Module) -> Iterator[tuple[str, nn.Parameter, nn.Module | None]]:
    """(name, weight, LoRA layer that adapts it or None), without the adapters' own parameters."""
    model = base_model(language_model)
    adapted = {
        f"{name}.weight": module for name, module in model.named_modules() if hasattr(module, "get_delta_weight")
    }
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            continue
        plain = name.replace(".base_layer", "")
        yield plain, parameter, adapted.get(plain)


def _materialized(
    bucket: list[tuple[str, nn.Parameter, nn.Module | None]], dtype: torch.dtype
) -> Iterator[list[tuple[str, Tensor]]]:
    adapters = [p for _, _, layer in bucket if layer is not None for n, p in layer.named_parameters() if "lora_" in n]
    with torch.no_grad(), gathered([parameter for _, parameter, _ in bucket] + adapters):
        yield [
            (name, (parameter if layer is None else parameter + layer.get_delta_weight("default")).detach().to(dtype))
            for name, parameter, layer in bucket
        ]
