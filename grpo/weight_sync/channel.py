"""A channel carries weights between a learner rank and the workers of one sampler replica.

Every replica has a channel of its own, so it can die and join again without an effect on the others. A bucket travels
as one buffer, in one broadcast from rank 0; gloo on CPUs, NCCL on GPUs. Names, types and shapes are sent ahead in
vLLM's `update_weights` request, so that both sides know what the buffer holds. If one end is lost, the others get an
error within the channel's deadline, and their processes live on.

The ends of a channel find each other at a meeting place. The learner sends the meeting place to a server in a request
that needs the run's key. torch's TCPStore takes no key: whoever reaches its port can read and write. So on one machine
the ends meet in a file that only this user can open. Between machines they meet at a port, under a secret name; a
firewall has to keep others away from the port.

Its group of NCCL survives the loss of a member: the others get an error within a deadline. Torch's groups differ in
three ways (torch 2.13, ProcessGroupNCCL.hpp). Their watchdog ends a process that waits too long for another. Even if
told not to, it has the process's first group report what it saw, and that group then ends the process; so there is no
watchdog here. Their communicator is made by the first collective, however long that takes; here it is made at once,
within a deadline. Their orderly shutdown waits for lost members, so `Channel.close` aborts instead.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_address
from threading import Lock, Thread
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import BroadcastOptions

from grpo.host.network import listen, own_address
from grpo.interfaces import Bucket

# Every tensor begins at a multiple of this many bytes, the largest alignment that a view of any type needs.
ALIGNMENT = 16
# torch reads this variable when it makes a group. With 1 the group has no watchdog, and the thread that waits for a
# collective looks out for errors and the deadline itself.
NO_WATCHDOG = "TORCH_NCCL_BLOCKING_WAIT"
_one_at_a_time = Lock()


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


def packed(bucket: Bucket, device: torch.device, room: Callable[[int], Tensor] | None = None) -> Tensor:
    """Copies the bucket into one buffer of bytes on `device`, or into what `room` returns for the number of bytes."""
    pieces = [_bytes_of(tensor.to(device)) for _, tensor in bucket]
    return torch.cat(pieces, out=room(sum(map(len, pieces))) if room else None)


def unpacked(manifest: Manifest, room: Callable[[int], Tensor]) -> list[tuple[str, Tensor]]:
    """Returns the bucket that a manifest describes, as views of the buffer that `room` returns for its number of
    bytes."""
    dtypes = [getattr(torch, name) for name in manifest.dtypes]
    shapes = [torch.Size(shape) for shape in manifest.shapes]
    sizes = [shape.numel() * dtype.itemsize for shape, dtype in zip(shapes, dtypes, strict=True)]
    pieces = room(sum(_aligned(size) for size in sizes)).split([_aligned(size) for size in sizes])
    return [
        (name, piece[:size].view(dtype).view(shape))
        for name, piece, size, dtype, shape in zip(manifest.names, pieces, sizes, dtypes, shapes, strict=True)
    ]


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

        def received(size: int) -> Tensor:
            buffer = torch.empty(size, dtype=torch.uint8, device=self._device)
            self._broadcast(buffer)
            return buffer

        return unpacked(manifest, received)

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


@dataclass(frozen=True, slots=True)
class Meeting:
    """A meeting is the address that a server is sent: the learner's interface as `host`, and there either a file's
    `path`, or `port` and `name`."""

    host: str
    world_size: int
    path: str = ""
    port: int = 0
    name: str = "weights"

    def join(self, seconds: float) -> dist.Store:
        """Returns the store through which the ends meet. An end waits in it for `seconds` at most."""
        timeout = timedelta(seconds=seconds)
        if self.path:
            store = dist.FileStore(self.path, self.world_size)
            store.set_timeout(timeout)
        else:
            store = dist.TCPStore(self.host, self.port, self.world_size, False, timeout, wait_for_workers=False)
        return dist.PrefixStore(self.name, store)


class Host:
    """The host is the learner's side of a meeting. `meeting` is the address to send to a server, and `store` the
    learner's own end. Call `close` once all ends have met, or with NCCL once their channel is closed."""

    def __init__(self, host: str, world_size: int, seconds: float):
        self._folder = None
        if ip_address(host).is_loopback:
            self._folder = tempfile.TemporaryDirectory(prefix="grpo-")
            self.meeting = Meeting(host, world_size, path=f"{self._folder.name}/ends")
            self.store = self.meeting.join(seconds)
            return
        listening = listen(host)
        self.meeting = Meeting(host, world_size, port=listening.getsockname()[1], name=secrets.token_urlsafe())
        timeout = timedelta(seconds=seconds)
        port, descriptor = self.meeting.port, listening.detach()
        server = dist.TCPStore(
            host, port, world_size, True, timeout, wait_for_workers=False, master_listen_fd=descriptor
        )
        self.store = dist.PrefixStore(self.meeting.name, server)

    def close(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def nccl_group(
    store: dist.Store, rank: int, world_size: int, device: torch.device, timeout: timedelta
) -> dist.ProcessGroupNCCL:
    """Returns a connected group, once all `world_size` members have come to `store`.

    Raises RuntimeError when they have not within `timeout`, or when one is lost before all are connected.
    """
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    with _variable(NO_WATCHDOG, "1"):
        group = dist.ProcessGroupNCCL(store, rank, world_size, options)
    store.set(f"member {rank}", "here")
    store.wait([f"member {rank}" for rank in range(world_size)], timeout)
    within(timeout, lambda: group.eager_connect_single_device(device))
    return group


def within(timeout: timedelta, action: Callable[[], Any]) -> None:
    """Runs `action`, which cannot be interrupted, in a thread and waits for it. Raises RuntimeError after `timeout`,
    and leaves the thread running."""
    outcome: Future[Any] = Future()

    def act() -> None:
        try:
            outcome.set_result(action())
        except BaseException as error:
            outcome.set_exception(error)

    # The thread is a daemon, so that the process does not wait for it when it ends.
    Thread(target=act, daemon=True).start()
    try:
        outcome.result(timeout.total_seconds())
    except TimeoutError:
        raise RuntimeError(
            f"the ends of a weight channel were not connected within {timeout.total_seconds():g} s"
        ) from None


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    """Sets an environment variable for a moment, in one thread at a time."""
    with _one_at_a_time:
        before = os.environ.get(name)
        os.environ[name] = value
        try:
            yield
        finally:
            if before is None:
                del os.environ[name]
            else:
                os.environ[name] = before
