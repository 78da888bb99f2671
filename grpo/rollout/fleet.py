"""A fleet is the vLLM servers of a run: which of them answer, and what is done with those that are lost.

A server serves until some rank loses it. Then all ranks give it up, and it is started again when it is ours. At the
next refresh it joins, if it answers: it is given the weights, and must not be asked before it has them.
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
    """Keeps a run's servers. The first rank starts them, when they are ours, and sends them the weights.
    `begin_refresh`, `finish_refresh` and `checksums` are collective."""

    def __init__(self, config: TrainConfig, model_path: str | Path, device: torch.device, collective: Collective):
        """Returns once all servers answer. Raises UserError where one does not within its time. Collective."""
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
        """Returns how the servers' caches were used since the last call, as the first rank asks them."""
        return self._use.since(asyncio.run(self._metrics())) if self._first else {}

    async def _metrics(self) -> dict[str, str]:
        living = [replica for replica in self.replicas if replica.alive]
        pages = await asyncio.gather(*(replica.metrics() for replica in living))
        return {replica.url: page for replica, page in zip(living, pages, strict=True) if page}

    # --- a refresh -----------------------------------------------------------------------------

    def begin_refresh(self) -> None:
        """Opens the refresh on all servers that answer, also on those that answer again.

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
        """Says whether some server does not hold the frozen weights below the adapters, as the first rank knows it.
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
        """Ends the refresh. Servers that were given all weights serve from here on. Raises UserError where none has
        ever loaded them."""
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
        """Lets lost servers join that answer again."""
        lost = [replica for replica in self.replicas if not replica.alive]
        answers = await asyncio.gather(*(replica.healthy() for replica in lost))
        for replica, healthy in zip(lost, answers, strict=True):
            if healthy:
                replica.standing = Standing.JOINING
                say(f"grpo: the vLLM server at {replica.url} is back")

    def restart_lost(self) -> None:
        """Starts lost servers again, on the first rank and only those that are ours. It does so once for each loss, and
        again where a server ended while it started: the memory of the one before may not have been free yet."""
        for replica in self.replicas:
            if replica.alive:
                continue
            was_linked, process = replica.index in self._linked, replica.process
            self._linked.discard(replica.index)
            self._with_base.discard(replica.index)
            if process is not None and (was_linked or process.ended):
                process.restart()

    def _on_all(self, action: Callable[[Replica, Post], Awaitable[Any]]) -> list[Any]:
        """Runs `action` on every living server at once. Returns the results of those that are living after it."""

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
