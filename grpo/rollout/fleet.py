"""A fleet manages the vLLM servers of a run: it sends them weights, and replaces servers that are lost.

A server serves until some rank loses it. Then all ranks give it up, and it is restarted if this run started it. At the
next refresh a server that answers again joins: it is given the weights, and gets no requests before it has them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from grpo.config import TrainConfig, UserError
from grpo.config.placement import KEY_VARIABLE
from grpo.host.terminal import say
from grpo.interfaces import Bucket, Collective
from grpo.rollout.engine_use import ServerUse
from grpo.rollout.replica import LoadFailed, Replica, Standing
from grpo.rollout.servers import start_servers
from grpo.weight_sync.channel import manifest_of, packed
from grpo.weight_sync.server_link import Post, ServerLink


class Fleet:
    """Manages a run's servers. The first rank starts them, unless `rollout.servers.urls` names running ones, and sends
    them the weights. `begin_refresh`, `finish_refresh` and `checksums` are collective."""

    def __init__(self, config: TrainConfig, model_path: str | Path, device: torch.device, collective: Collective):
        """Waits until all servers answer. Raises UserError when one does not within `start_seconds`. Collective."""
        servers = config.rollout.servers
        self._device, self._collective = device, collective
        self._first = collective.rank == 0
        processes = start_servers(config, str(model_path), device) if self._first and not servers.urls else {}
        key = os.environ.get(KEY_VARIABLE, "")
        urls, key = collective.gather((list(processes) or list(servers.urls), key))[0]
        self.replicas = [
            Replica(index, url, key, servers.request_seconds, processes.get(url)) for index, url in enumerate(urls)
        ]
        # A server that hangs while it is given weights is given up before the others, paused, or the run time out.
        self._update_seconds = min(config.weight_sync.deadline_seconds, servers.request_seconds) / 4
        self._links = [ServerLink(servers.tensor_parallel, device, self._update_seconds, servers.host) for _ in urls]
        # Servers with an open link, and servers that hold the frozen weights below the adapters.
        self._linked: set[int] = set()
        self._with_base: set[int] = set()
        # What a server said of weights that its model could not load, until some server has loaded all.
        self._refusal: str | None = ""
        # Requests that are under way at a refresh go on after it, their prefixes computed anew.
        self._pauses = config.pipeline == "continuous"
        self._use = ServerUse()
        self._arranges = device.type == "cpu"
        asyncio.run(self._wait_for_all(servers.start_seconds))

    async def _wait_for_all(self, seconds: float) -> None:
        await asyncio.gather(*(replica.wait(seconds) for replica in self.replicas))

    def cache_usage(self) -> dict[str, float]:
        """Returns the servers' preemptions and prefix hits since the last call, on the first rank; {} on others."""
        return self._use.since(asyncio.run(self._metrics())) if self._first else {}

    async def _metrics(self) -> dict[str, str]:
        living = [replica for replica in self.replicas if replica.alive]
        pages = await asyncio.gather(*(replica.metrics() for replica in living))
        return {replica.url: page for replica, page in zip(living, pages, strict=True) if page}

    # --- a refresh -----------------------------------------------------------------------------

    def begin_refresh(self) -> None:
        """Begins a refresh on all servers that answer, including lost ones that answer again.

        A server that any rank has lost is given up by all ranks.
        """
        lost_here = [replica.index for replica in self.replicas if not replica.alive]
        for index in set().union(*self._collective.gather(lost_here)):
            self.replicas[index].standing = Standing.LOST
        self.restart_lost()
        if self._first:
            asyncio.run(self._take_back())
        # Every rank waits for a server that joins, even if it loses all others meanwhile.
        standings = self._collective.gather([replica.standing for replica in self.replicas])[0]
        for replica, standing in zip(self.replicas, standings, strict=True):
            if standing is Standing.JOINING:
                replica.standing = standing
        if self._first:
            self._on_all(self._open)

    def lacks_base(self) -> bool:
        """Returns whether some living server lacks the frozen weights below the adapters, as the first rank knows.
        Collective."""
        lacking = any(replica.alive and replica.index not in self._with_base for replica in self.replicas)
        return self._collective.gather(lacking)[0]

    def send(self, bucket: Bucket) -> None:
        """Sends a bucket to every server, from the first rank. Returns when all have loaded it."""
        if not self._first:
            return
        manifest, buffer = manifest_of(bucket), packed(bucket, self._device)

        def send(replica: Replica, post: Post) -> Awaitable[None]:
            return self._links[replica.index].send(post, manifest, buffer)

        self._on_all(send)

    def finish_refresh(self, policy_version: int) -> None:
        """Ends the refresh. Servers that have loaded all weights serve from here on. Raises UserError when no server
        has ever been able to load the weights."""
        if self._first:
            self._on_all(lambda replica, post: self._close(replica, post, policy_version))
        alive, refusal = self._collective.gather(([replica.alive for replica in self.replicas], self._refusal))[0]
        if refusal and not any(alive):
            raise UserError(
                f"no vLLM server could load this model's weights as a refresh sends them ({refusal[:300]}): if its "
                "code has no place for them use rollout.engine=transformers; logs/ in the run's folder say more"
            )
        self._refusal = None if any(alive) else self._refusal
        for replica, holds_weights in zip(self.replicas, alive, strict=True):
            replica.standing = Standing.READY if holds_weights else Standing.LOST
        self._with_base = {replica.index for replica in self.replicas if replica.alive}

    def checksums(self) -> Sequence[Mapping[str, int]]:
        """Returns the checksums of every worker of every server."""
        workers = None
        if self._first:
            workers = [worker for answer in self._on_all(_checksums) for worker in answer]
        return self._collective.gather(workers)[0]

    async def _open(self, replica: Replica, post: Post) -> None:
        link = self._links[replica.index]
        if replica.index not in self._linked:
            if self._arranges:
                await post("/collective_rpc", {"method": "take_onednn"})
            await post("/collective_rpc", {"method": "end_broken_transfer"})
            await link.open(post)
            self._linked.add(replica.index)
        if self._pauses:
            await post("/pause?mode=keep", {})
        await link.start(post)

    async def _close(self, replica: Replica, post: Post, policy_version: int) -> None:
        await self._links[replica.index].finish(post, policy_version)
        await post("/reset_prefix_cache", {})
        # Another run may have left the server paused.
        await post("/resume", {})

    # --- servers that are lost -----------------------------------------------------------------

    async def _take_back(self) -> None:
        """Marks lost servers that answer again as joining."""
        lost = [replica for replica in self.replicas if not replica.alive]
        answers = await asyncio.gather(*(replica.healthy() for replica in lost))
        for replica, healthy in zip(lost, answers, strict=True):
            if healthy:
                replica.standing = Standing.JOINING
                say(f"grpo: the vLLM server at {replica.url} is back")

    def restart_lost(self) -> None:
        """Restarts lost servers that this run started, on the first rank.

        A server is restarted once for each loss, and again if it ended while it started: the memory of its lost
        predecessor may not have been free yet.
        """
        for replica in self.replicas:
            if replica.alive:
                continue
            was_linked, process = replica.index in self._linked, replica.process
            self._linked.discard(replica.index)
            self._with_base.discard(replica.index)
            if process is not None and (was_linked or process.ended):
                process.restart()

    def _on_all(self, action: Callable[[Replica, Post], Awaitable[Any]]) -> list[Any]:
        """Runs `action` on all living servers at once. Marks servers that fail as lost; returns the others' results."""

        async def on_one(replica: Replica) -> Any:
            async with replica.session(self._update_seconds) as session:
                return await action(replica, lambda route, payload: replica.post(session, route, payload))

        async def on_every() -> list[tuple[Replica, Any]]:
            living = [replica for replica in self.replicas if replica.alive]
            outcomes = await asyncio.gather(*(on_one(replica) for replica in living), return_exceptions=True)
            return list(zip(living, outcomes, strict=True))

        results = []
        for replica, outcome in asyncio.run(on_every()):
            # Whatever went wrong went wrong with one server: the others still serve the run.
            if isinstance(outcome, Exception):
                if isinstance(outcome, LoadFailed) and self._refusal is not None:
                    self._refusal = str(outcome)
                replica.standing = Standing.LOST
                say(f"grpo: the vLLM server at {replica.url} was lost: {str(outcome) or repr(outcome)}")
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                results.append(outcome)
        self.restart_lost()
        return results


async def _checksums(replica: Replica, post: Post) -> list[Mapping[str, int]]:
    return [dict(worker) for worker in (await post("/collective_rpc", {"method": "weight_checksums"}))["results"]]
