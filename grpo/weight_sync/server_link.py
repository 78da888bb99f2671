"""A link is the learner's side of vLLM's weight-transfer protocol with one server.

There are four requests with plain dictionaries: init once, then for every refresh start, update for each bucket, and
finish. A bucket's tensors go through the `Channel` while the update request waits. An engine on the learner's own
device needs no channel: the update request says where in shared memory the bucket lies.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from grpo.host.network import LOOPBACK
from grpo.weight_sync.channel import Channel, Host, Manifest, open_end

Post = Callable[[str, Mapping[str, Any]], Awaitable[Any]]
"""A request to the server: route and payload."""


class ServerLink:
    """Links the learner to one server. `open` is called first; for each refresh then `start`, `send` for every bucket,
    and `finish`."""

    def __init__(self, num_workers: int, device: torch.device, seconds: float, host: str = LOOPBACK):
        """`num_workers` workers of the server hold weights. The learner listens on `host`'s interface. No wait of the
        channel is longer than `seconds`."""
        self._world_size = 1 + num_workers
        self._device, self._seconds, self._host = device, seconds, host
        self._channel: Channel | None = None
        self._meeting_place: Host | None = None

    async def open(self, post: Post) -> None:
        """Opens the channel to a server that has no channel yet, or has lost it."""
        self.close()
        place = self._meeting_place = Host(self._host, self._world_size, self._seconds)
        info = {"meeting": asdict(place.meeting), "seconds": self._seconds}
        own_end = asyncio.to_thread(open_end, place.store, self._host, 0, self._world_size, self._device, self._seconds)
        self._channel, _ = await _both(own_end, post("/init_weight_transfer_engine", {"init_info": info}))
        # All ends have met by now; NCCL's go on using the place.
        if self._device.type == "cpu":
            place.close()

    async def start(self, post: Post) -> None:
        await post("/start_weight_update", {})

    async def send(self, post: Post, manifest: Manifest, buffer: Tensor) -> None:
        """Sends a bucket that `packed` made. Returns when the server has loaded it."""
        update = post("/update_weights", {"update_info": asdict(manifest)})
        await _both(asyncio.to_thread(self._channel.send, buffer), update)

    async def finish(self, post: Post, policy_version: int) -> None:
        await post("/finish_weight_update", {"weight_version": str(policy_version)})

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._meeting_place is not None:
            self._meeting_place.close()
            self._meeting_place = None


class MemoryLink(ServerLink):
    """Links the learner to an engine on its own device, which reads a bucket from `grpo.weight_sync.shared_memory`."""

    def __init__(self):
        """Needs nothing, since each request says where its bucket is."""

    async def open(self, post: Post) -> None:
        """Opens nothing."""

    async def send(self, post: Post, manifest: Manifest, places: Sequence[Mapping[str, Any]]) -> None:
        """Tells each worker of the engine in which of the `places` a bucket is. Returns when they have loaded it."""
        await post("/update_weights", {"update_info": asdict(manifest) | {"places": list(places)}})

    def close(self) -> None:
        """Closes nothing."""


async def _both(ours: Awaitable[Any], theirs: Awaitable[Any]) -> tuple[Any, Any]:
    """Returns both results once both have ended: a thread that still sends must not outlive its bucket. If both fail,
    the server's error is raised, since it says more."""
    our_result, their_result = await asyncio.gather(ours, theirs, return_exceptions=True)
    for outcome in (their_result, our_result):
        if isinstance(outcome, BaseException):
            raise outcome
    return our_result, their_result
