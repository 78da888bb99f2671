"""A member is one vLLM server of a run, as the rank that brings it weights talks to it."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grpo.config.errors import UserError
from grpo.host.terminal import say
from grpo.rollout.claims import claim
from grpo.rollout.replica import Replica, ReplicaLost, ServerState, restart_lost
from grpo.weight_sync.server_link import Post, ServerLink

# A cache that is not emptied at once is asked so often, after so many seconds each.
CACHE_TRIES, AGAIN_SECONDS = 20, 0.5


@dataclass(slots=True, eq=False)
class Member:
    """A member is one server of a fleet, with the link that brings it weights.

    `linked` says whether the link is open; one rank opens it, and the others know. `has_base` says whether the server
    holds the frozen weights below the adapters. `trouble` says why it could not be given weights, until it has been.
    `level` is how deep the server sleeps, see `sleep`. `starts_with_base` says whether the server reads the frozen
    weights from the model's files, as the learner does.
    """

    replica: Replica
    link: ServerLink
    linked: bool = False
    has_base: bool = False
    trouble: str = ""
    level: int = 1
    starts_with_base: bool = False

    def __post_init__(self):
        self.has_base = self.starts_with_base

    async def begin_refresh(self, post: Post, serves: Mapping[str, Any], pauses: bool, on_cpu: bool) -> None:
        """Opens the link if it is closed, pauses the server's requests if `pauses`, and begins a refresh.

        A server that was restarted is claimed anew, if it runs what it should (`serves`). On a CPU this first makes it
        multiply by oneDNN, which is quicker there.
        """
        if not self.linked:
            await claim(self.replica, serves)
            if on_cpu:
                await post("/collective_rpc", {"method": "take_onednn"})
            await post("/collective_rpc", {"method": "end_broken_transfer"})
            await self.link.open(post)
            self.linked = True
        if pauses:
            await post("/pause?mode=keep", {})
        await self.link.start(post)

    async def finish_refresh(self, post: Post, policy_version: int, adapters: bool, sleeps: bool) -> None:
        """Ends the refresh, which has sent `adapters` or none. The server's requests go on. If it `sleeps` while
        learners work, it takes the memory of its cache again."""
        await self.link.finish(post, policy_version)
        if sleeps:
            lost = (await post("/collective_rpc", {"method": "lost_by_sleep"}))["results"]
            self.level = 1 if adapters or any(lost) else 2
            await post("/wake_up?tags=kv_cache", {})
        if adapters:
            await post("/collective_rpc", {"method": "place_adapter"})
        await empty_cache(post)
        # Another run may have left the server paused.
        await post("/resume", {})

    async def sleep(self, post: Post) -> None:
        """Frees the server's GPU memory of weights and cache.

        Until its first refresh, weights wait in main memory (vLLM's level 1), since it is not known which ones no
        learner sends (see `grpo.weight_sync.engine_weights`). Later they are dropped (level 2), since the next refresh
        sends them again. They always wait where vLLM's model has tensors besides its weights that would be lost, and
        where a refresh sends adapters only.
        """
        await post(f"/sleep?level={self.level}", {})

    async def release_cache(self, post: Post) -> None:
        """Frees the server's GPU memory of its cache, and keeps the weights."""
        await post("/sleep?level=0", {})
        await post("/release_kv_cache_memory", {})

    async def wake(self, post: Post) -> None:
        """Takes the GPU memory for weights again."""
        await post("/wake_up?tags=weights", {})

    def lose(self, why: Exception) -> None:
        """Marks the server as lost. Prints a line, unless it was lost for the same reason when it last came back."""
        url, trouble = self.replica.url, str(why) or repr(why)
        if trouble != self.trouble:
            say(
                f"grpo: {trouble}"
                if isinstance(why, UserError)
                else f"grpo: the vLLM server at {url} was lost: {trouble}"
            )
        self.replica.state, self.trouble = ServerState.LOST, trouble

    def take_back(self) -> None:
        """Prints a line for a server that was lost and has its weights again."""
        if self.replica.state is ServerState.JOINING:
            say(f"grpo: the vLLM server at {self.replica.url} is back")
        self.trouble = ""

    def restart_if_lost(self) -> None:
        """Restarts the server by `grpo.rollout.replica.restart_lost` if it is lost. Its link and weights are gone."""
        if not self.replica.alive:
            was_linked, self.linked, self.has_base, self.level = self.linked, False, self.starts_with_base, 1
            restart_lost(self.replica.process, was_linked)


async def empty_cache(post: Post) -> None:
    """Makes a server forget what its older weights have computed of prompts, wherever it keeps that. Prompts that begin
    alike would otherwise go on from it. Raises ReplicaLost where the server does not."""
    for _ in range(CACHE_TRIES):
        # A request that was given up, or a transfer to main memory, may still hold a part of the cache.
        if (await post("/reset_prefix_cache?reset_external=true", {})).get("success", True):
            return
        await asyncio.sleep(AGAIN_SECONDS)
    raise ReplicaLost("it did not empty its prefix cache after a refresh: some request still holds blocks")
