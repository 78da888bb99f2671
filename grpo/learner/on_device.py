"""This module prepares micro-batches on the device without making the host wait for the device."""

from __future__ import annotations

import dataclasses

import torch

from grpo.types import MicroBatch


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
