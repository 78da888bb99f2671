"""A channel carries weights between the learner's first rank and the workers of one sampler replica.

Every replica has a channel of its own, so it can die and join again without an effect on the others. A bucket travels
as one buffer, in one broadcast from rank 0; gloo on CPUs, NCCL on GPUs. Names, types and shapes are sent ahead in
vLLM's `update_weights` request, so that both sides know what the buffer holds. If one end is lost, the others get an
error within the channel's deadline, and their processes live on: see `grpo.weight_sync.nccl`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import BroadcastOptions

from grpo.host.network import own_address
from grpo.interfaces import Bucket
from grpo.weight_sync.nccl import nccl_group

# Every tensor begins at a multiple of this many bytes, the largest alignment that a view of any type needs.
ALIGNMENT = 16


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest says what a bucket holds, as plain data: names, types ("bfloat16") and shapes, [tensors] each."""

    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]


def manifest_of(bucket: Bucket) -> Manifest:
    """Returns the manifest that is sent ahead of this bucket."""
    return Manifest(
        names=[name for name, _ in bucket],
        dtypes=[str(tensor.dtype).removeprefix("torch.") for _, tensor in bucket],
        shapes=[list(tensor.shape) for _, tensor in bucket],
    )


def packed(bucket: Bucket, device: torch.device) -> Tensor:
    """Copies the bucket into one buffer of bytes on `device`."""
    return torch.cat([_bytes_of(tensor.to(device)) for _, tensor in bucket])


class Channel:
    """This object is one end of a channel. All ends call `send` or `receive` together, bucket by bucket."""

    def __init__(self, group: dist.Backend, store: dist.Store, device: torch.device, timeout: timedelta):
        self._group, self._device, self._timeout = group, device, timeout
        # The store is kept as long as the channel, because the learner's end may be the server of the rendezvous.
        self._store = store

    def send(self, buffer: Tensor) -> None:
        """Sends a bucket that `packed` made. Raises RuntimeError when another end does not take the bucket in time."""
        self._broadcast(buffer)

    def receive(self, manifest: Manifest) -> list[tuple[str, Tensor]]:
        """Returns the bucket that rank 0 sends, as views of one buffer."""
        dtypes = [getattr(torch, name) for name in manifest.dtypes]
        shapes = [torch.Size(shape) for shape in manifest.shapes]
        sizes = [shape.numel() * dtype.itemsize for shape, dtype in zip(shapes, dtypes, strict=True)]
        buffer = torch.empty(sum(_aligned(size) for size in sizes), dtype=torch.uint8, device=self._device)
        self._broadcast(buffer)
        pieces = buffer.split([_aligned(size) for size in sizes])
        return [
            (name, piece[:size].view(dtype).view(shape))
            for name, piece, size, dtype, shape in zip(manifest.names, pieces, sizes, dtypes, shapes, strict=True)
        ]

    def _broadcast(self, buffer: Tensor) -> None:
        options = BroadcastOptions()
        options.rootRank = options.rootTensor = 0
        options.timeout = self._timeout
        self._group.broadcast([buffer], options).wait(self._timeout)

    def close(self) -> None:
        """Ends the channel at once. NCCL's orderly shutdown would wait for ends that are lost."""
        if self._device.type == "cuda":
            self._group.abort()
        else:
            self._group.shutdown()


def open_end(store: dist.Store, host: str, rank: int, world_size: int, device: torch.device, seconds: float) -> Channel:
    """Opens end `rank` (the learner's is 0) on the network interface that leads to `host`. Waits until all ends have
    come to `store`, and raises RuntimeError when they have not within `seconds`."""
    timeout = timedelta(seconds=seconds)
    if device.type == "cuda":
        group = nccl_group(store, rank, world_size, device, timeout)
    else:
        options = dist.ProcessGroupGloo._Options()
        options._timeout = timeout
        # gloo listens on the interface of the rendezvous. By default it takes the machine's own name, which may mean
        # its loopback.
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=own_address(host))]
        group = dist.ProcessGroupGloo(store, rank, world_size, options)
    return Channel(group, store, device, timeout)


def _aligned(size: int) -> int:
    """Returns a size in bytes, rounded up to where a tensor of any type may begin."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def _bytes_of(tensor: Tensor) -> Tensor:
    plain = tensor.detach().contiguous().flatten().view(torch.uint8)
    num_padding = _aligned(len(plain)) - len(plain)
    return torch.nn.functional.pad(plain, (0, num_padding)) if num_padding else plain
