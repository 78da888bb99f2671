"""Shared memory brings weights to an engine that runs in a process of its own on a learner rank's device.

The rank copies a bucket into the memory, and the engine reads it there. On a CPU the memory has no name: the engine
opens it by the rank's list of open files, which only processes of the same user can read. On a GPU the engine opens it
by a handle of CUDA's (IPC). A `Place` is plain data, so that nothing from another process is unpickled.

Every engine compares checksums of what it holds afterwards, so a bit that changes in the memory is noticed.
"""

import os
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from grpo.interfaces import Bucket
from grpo.weight_sync.channel import packed

# Torch (2.13) reads the first of these variables that is set.
ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


@dataclass(frozen=True, slots=True)
class Place:
    """A place says where shared memory of `size` bytes is: in a file at `path`, or behind a `handle` of CUDA's.

    `handle` has what torch returns for a storage that another process is to open, with bytes in base64.
    """

    size: int
    path: str = ""
    handle: tuple[int | bool | str, ...] = ()

    def open(self, device: torch.device) -> Tensor:
        """Returns the memory as bytes on `device`, in another process than the one that has made it."""
        if self.path:
            return torch.from_file(self.path, shared=True, size=self.size, dtype=torch.uint8)
        _, *rest = (b64decode(part) if isinstance(part, str) else part for part in self.handle)
        # A process numbers the GPUs that it is shown, so the number may differ from that of the other process.
        storage = torch.UntypedStorage._new_shared_cuda(device.index or 0, *rest)
        return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)[: self.size]


class SharedMemory:
    """Holds memory that is shared with an engine on the same device. It grows with the largest bucket."""

    def __init__(self, device: torch.device):
        self._device = device
        self._buffer: Tensor | None = None
        self._place = Place(0)
        self._file: int | None = None

    def put(self, bucket: Bucket) -> dict[str, Any]:
        """Copies a bucket into the memory, in the form of `channel.packed`. Returns its place as plain data, once all
        bytes are there."""
        packed(bucket, self._device, self._room)
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        return asdict(self._place)

    def close(self) -> None:
        """Gives the memory up. An engine that has opened it keeps it until it opens another one."""
        self._buffer, self._place = None, Place(0)
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _room(self, size: int) -> Tensor:
        if size > self._place.size:
            self.close()
            self._grow(size)
        return self._buffer[:size]

    def _grow(self, size: int) -> None:
        if self._device.type == "cpu":
            self._file = os.memfd_create("weights")
            self._place = Place(size, f"/proc/{os.getpid()}/fd/{self._file}")
            self._buffer = torch.from_file(self._place.path, shared=True, size=size, dtype=torch.uint8)
            return
        with _own_segment():
            self._buffer = torch.empty(size, dtype=torch.uint8, device=self._device)
        handle = self._buffer.untyped_storage()._share_cuda_()
        self._place = Place(
            size, handle=tuple(b64encode(part).decode() if isinstance(part, bytes) else part for part in handle)
        )


@contextmanager
def _own_segment() -> Iterator[None]:
    """Gives a tensor memory that no other tensor shares, and that CUDA can open in another process.

    Torch's expandable segments are opened by another way, which a container may forbid (pidfd_getfd).
    """
    settings = next((os.environ[name] for name in ALLOCATOR_VARIABLES if os.environ.get(name)), "")
    others = [setting for setting in settings.split(",") if setting and not setting.startswith("expandable_segments")]
    torch._C._accelerator_setAllocatorSettings(",".join([*others, "expandable_segments:False"]))
    try:
        with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
            yield
    finally:
        torch._C._accelerator_setAllocatorSettings(settings)
