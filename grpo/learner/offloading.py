"""This module moves the learner's states to main memory while a sampler works on the GPU, and brings them back.

DeepSpeed's own `offload_states` (0.19.8) refuses every optimizer but its FusedAdam under ZeRO-3, and rebuilds each
stage's views by other code. Here the bytes of a tensor's storage are copied to main memory and the storage is emptied,
as FSDP frees its weights. Every view of a storage stays valid, so all ZeRO stages come back bit by bit.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from itertools import chain
from typing import Any

import torch
from deepspeed import DeepSpeedEngine
from torch import Tensor, UntypedStorage, nn

CHUNK = 2**28
"""Main memory is taken in pieces of this many bytes, because torch rounds pinned memory up to a power of two."""


class MainMemory:
    """Holds contents of storages of `device` in main memory. The memory is kept for the next offload."""

    def __init__(self, device: torch.device):
        self._device = device
        self._chunks: list[Tensor] = []
        self._used_bytes = 0
        self._copies_of_storages: list[tuple[UntypedStorage, list[Tensor]]] = []

    def take(self, tensors: Iterable[Tensor]) -> None:
        """Copies the storages of `tensors` that lie on the device to main memory, and frees them on the device. A
        storage that has been taken already is empty, and stays empty."""
        storages = {
            storage.data_ptr(): storage
            for tensor in tensors
            if tensor.device.type == self._device.type and (storage := tensor.untyped_storage()).nbytes()
        }
        # A storage that cannot be resized is left alone. On a CPU it is mapped from a file.
        freed_storages = [storage for storage in storages.values() if storage.resizable()]
        # ZeRO reduces and gathers in its own streams, and the copies below do not wait for these.
        self._wait()
        for storage in freed_storages:
            copies = list(self._room(storage.nbytes()))
            for part, copy in _pairs(storage, copies):
                copy.copy_(part, non_blocking=True)
            self._copies_of_storages.append((storage, copies))
        self._wait()
        for storage in freed_storages:
            storage.resize_(0)
        if self._device.type == "cuda":
            # Without this call torch keeps the freed memory, and nobody else on the GPU gets it.
            torch.cuda.empty_cache()

    def give_back(self) -> None:
        """Copies all contents back into their storages on the device."""
        for storage, copies in self._copies_of_storages:
            storage.resize_(sum(map(len, copies)))
            for part, copy in _pairs(storage, copies):
                part.copy_(copy, non_blocking=True)
        self._wait()
        self._copies_of_storages.clear()
        self._used_bytes = 0

    def _room(self, size: int) -> Iterator[Tensor]:
        """Yields free pieces of main memory, [bytes] uint8 each, `size` bytes in total."""
        while size:
            index, start = divmod(self._used_bytes, CHUNK)
            if index == len(self._chunks):
                pinned = self._device.type == "cuda"
                self._chunks.append(torch.empty(CHUNK, dtype=torch.uint8, pin_memory=pinned))
            length = min(size, CHUNK - start)
            yield self._chunks[index][start : start + length]
            self._used_bytes += length
            size -= length

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _pairs(storage: UntypedStorage, copies: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields each piece of a storage, [bytes] uint8, with its copy."""
    content = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    return zip(content.split([len(copy) for copy in copies]), copies, strict=True)


class LearnerStates:
    """Learner states are the tensors that a learner holds on its device: weights, gradients, masters and moments.

    While states are away, the engine computes, saves and loads nothing.
    """

    def __init__(
        self, engine: DeepSpeedEngine, device: torch.device, frozen: Sequence[nn.Module] = (), sends_base: bool = True
    ):
        """`frozen` are modules that no refresh sends, such as a reference. Every offload takes their weights, and
        without `sends_base` also the policy's weights below adapters."""
        self._engine, self._frozen, self._memory = engine, frozen, MainMemory(device)
        self._sends_base = sends_base

    def offload(self, keep_weights: bool = False) -> None:
        """Frees the device of all states. With `keep_weights` the weights that a refresh sends stay until the next
        call."""
        self._engine.empty_partition_cache()
        policy, frozen = self._engine.module, chain.from_iterable(map(_weights, self._frozen))
        weights, sent = list(_weights(policy)), _weights(policy, only_trained=not self._sends_base)
        storages_staying = {tensor.untyped_storage().data_ptr() for tensor in sent if keep_weights}
        sharded = self._engine.optimizer
        # The engine's optimizer is ZeRO, which holds shards and buffers. It wraps another one, which holds the moments.
        states = chain(weights, frozen, _tensors(vars(sharded)), _tensors(sharded.optimizer.state))
        self._memory.take(tensor for tensor in states if tensor.untyped_storage().data_ptr() not in storages_staying)

    def reload(self) -> None:
        """Brings all states back to the device, bit by bit."""
        self._memory.give_back()


def _weights(module: nn.Module, only_trained: bool = False) -> Iterator[Tensor]:
    """Yields the weights of a module, and under ZeRO-3 this rank's shards of the weights."""
    for parameter in module.parameters():
        if only_trained and not parameter.requires_grad:
            continue
        shards = (getattr(parameter, name, None) for name in ("ds_tensor", "ds_secondary_tensor"))
        yield from _tensors([parameter, *shards])


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yields the tensors in a value, their gradients, and those in the containers and records that it holds."""
    if isinstance(value, Tensor):
        yield value.detach()
        yield from _tensors(value.grad if value.is_leaf else None)
    elif isinstance(value, Mapping):
        yield from _tensors([*value.keys(), *value.values()])
    elif isinstance(value, (list, tuple, set)):
        for item in value:
            yield from _tensors(item)
    elif is_dataclass(value):
        # DeepSpeed keeps its buckets of gradients in dataclasses.
        yield from _tensors(vars(value))
