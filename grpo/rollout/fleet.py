"""A fleet manages the vLLM servers of a run: it sends them weights, and replaces servers that are lost.

A server serves until some rank loses it. Then all ranks give it up, and it is restarted if this run started it. At the
next refresh a server that answers again joins: it is given the weights, and gets no requests before it has them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from grpo.config.errors import UserError
from grpo.config.parts import SamplerSettings
from grpo.config.placement import KEY_VARIABLE
from grpo.host import ranks
from grpo.host.event_loop import finished
from grpo.host.terminal import say
from grpo.host.together import on_first
from grpo.interfaces import Bucket, Collective
from grpo.models.files import ModelFiles
from grpo.rollout.claims import Claims, claim, claim_all, name_of, served
from grpo.rollout.engine_arguments import cache_key
from grpo.rollout.engine_use import ServerUse, few_at_once, room_of
from grpo.rollout.replica import LoadFailed, Replica, ServerState, restart_lost
from grpo.rollout.servers import start_servers
from grpo.weight_sync.channel import manifest_of, packed
from grpo.weight_sync.server_link import MemoryLink, Post, ServerLink
from grpo.weight_sync.shared_memory import SharedMemory


@dataclass(slots=True, eq=False)
class Member:
    """A member is one server of a fleet, with the link that brings it weights.

    `linked` says whether the link is open; only the first rank opens it. `has_base` says whether the server holds the
    frozen weights below the adapters. `trouble` says why it could not be given weights, until it has been. `level` is
    how deep the server sleeps, see `sleep`. `starts_with_base` says whether the server reads the frozen weights from
    the model's files, as the learner does.
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
        await post("/reset_prefix_cache", {})
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


class Fleet:
    """Manages a run's servers. The first rank starts them, unless `rollout.servers.urls` names running ones, and sends
    them the weights. All methods but `replicas` and `close` are collective over the ranks that use the servers."""

    def __init__(
        self,
        settings: SamplerSettings,
        files: ModelFiles,
        device: torch.device,
        collective: Collective,
        beside: bool = False,
    ):
        """Waits until all servers answer. Raises UserError when one does not within `start_seconds`.

        `collective` spans the ranks that use the servers. With `beside` the server is one on these ranks' own devices,
        and weights reach it by memory that it shares with them.
        """
        servers = settings.rollout.servers
        self._device, self._collective = device, collective
        self._memory = SharedMemory(device) if beside else None
        # How much memory the servers give back while learners work on the same GPUs, as `rollout.sleep` says.
        self._sleep = settings.rollout.sleep if beside and device.type == "cuda" else "never"
        self._first = collective.rank == 0
        processes = start_servers(settings, files, device, beside) if self._first and not servers.urls else {}
        key = os.environ.get(KEY_VARIABLE, "")
        urls, key, run = collective.gather((list(processes) or list(servers.urls), key, name_of(settings.output_dir)))[
            0
        ]
        # A server that hangs while it is given weights is given up before the others, paused, or the run time out.
        self._start_seconds = servers.start_seconds
        self._update_seconds = min(settings.refresh_seconds, servers.request_seconds) / 4
        self._members = [
            Member(
                Replica(url, key, servers.request_seconds, processes.get(url), run),
                MemoryLink()
                if self._memory
                else ServerLink(servers.tensor_parallel, device, self._update_seconds, servers.host),
                starts_with_base=beside and settings.keeps_base,
            )
            for url in urls
        ]
        # This is what a server said of weights that its model could not load, until some server has loaded all.
        self._refusal: str | None = ""
        # Requests that are under way at a refresh go on after it, their prefixes computed anew.
        self._pauses, self._adapters = settings.continuous, settings.adapters
        self._use = ServerUse()
        self._serves = served(settings, files.path)
        self._claims: Claims | None = None
        try:
            finished(_wait_for(self.replicas, servers.start_seconds))
            on_first(collective, self._claim_all)
            self._tell_small_caches(settings)
        except BaseException:
            self.close()
            raise

    def _claim_all(self) -> None:
        """Claims all servers for this run. Raises UserError when one cannot be used."""
        finished(claim_all(self.replicas, self._serves))
        self._claims = Claims(self.replicas)

    @property
    def replicas(self) -> Sequence[Replica]:
        """Returns the servers, in the order of their URLs, as this rank knows them."""
        return [member.replica for member in self._members]

    def _living(self) -> list[Member]:
        return [member for member in self._members if member.replica.alive]

    def cache_usage(self) -> dict[str, float]:
        """Returns the servers' highest peak, preemptions and prefix hits since the last call; {} on other ranks."""
        return self._use.since(finished(self._metrics())) if self._first else {}

    def _tell_small_caches(self, settings: SamplerSettings) -> None:
        """Prints a line, on the first rank, if the smallest cache has room for few completions."""
        if not self._first:
            return
        rooms = [room for page in finished(self._metrics()).values() if (room := room_of(page)) is not None]
        key = cache_key(self._device.type == "cuda", beside=self._memory is not None)
        line = few_at_once(min(rooms, default=None), settings, len(self._members), key)
        if line and not ranks.rank():
            say(f"grpo: {line}")

    async def _metrics(self) -> dict[str, str]:
        living_replicas = [member.replica for member in self._living()]
        pages = await asyncio.gather(*(replica.metrics() for replica in living_replicas))
        return {replica.url: page for replica, page in zip(living_replicas, pages, strict=True) if page}

    def close(self) -> None:
        """Releases the servers. Ends those that this run started, all at once, and waits until they have ended."""
        if self._claims:
            self._claims.close()
        processes = [replica.process for replica in self.replicas if replica.process]
        for process in processes:
            process.ask_to_end()
        for process in processes:
            process.stop()
        if self._memory:
            self._memory.close()

    def ask_workers(self, method: str) -> list[dict[str, Any]]:
        """Calls a method of `WeightReceiver` in every worker of the living servers, from the first rank. Returns their
        answers there."""

        async def asked(member: Member, post: Post) -> list[dict[str, Any]]:
            return (await post("/collective_rpc", {"method": method}))["results"]

        return [worker for answer in self._on_all(asked) for worker in answer] if self._first else []

    def sleep(self) -> None:
        """Makes servers beside learners free as much memory on a GPU as configured. Returns once they have."""
        if self._sleep != "never":
            self._from_first(Member.release_cache if self._sleep == "cache" else Member.sleep)

    def wake(self) -> None:
        """Makes servers beside learners take memory for weights again. `finish_refresh` brings the cache back."""
        if self._sleep not in ("never", "cache"):
            torch.cuda.empty_cache()
            self._from_first(Member.wake)

    def _from_first(self, action: Callable[[Member, Post], Awaitable[Any]]) -> None:
        if self._first:
            self._on_all(action)
        self._collective.gather(None)

    # --- a refresh -----------------------------------------------------------------------------

    def begin_refresh(self) -> None:
        """Begins a refresh on all servers that answer, including lost ones that answer again.

        A server that any rank has lost is given up by all ranks.
        """
        by_rank = self._collective.gather([replica.alive for replica in self.replicas])
        for replica, alive in zip(self.replicas, zip(*by_rank, strict=True), strict=True):
            if not all(alive):
                replica.state = ServerState.LOST
        self.restart_lost()
        if self._first:
            finished(self._take_back())
        # Every rank waits for a server that joins, even if it loses all others meanwhile.
        states = self._collective.gather([replica.state for replica in self.replicas])[0]
        for replica, state in zip(self.replicas, states, strict=True):
            if state is ServerState.JOINING:
                replica.state = state
        if self._first:
            on_cpu = self._device.type == "cpu"
            self._on_all(partial(Member.begin_refresh, serves=self._serves, pauses=self._pauses, on_cpu=on_cpu))

    def lacks_base(self) -> bool:
        """Returns whether some living server lacks the frozen weights below the adapters, as the first rank knows.
        Collective."""
        return self._collective.gather(not all(member.has_base for member in self._living()))[0]

    def send(self, bucket: Bucket) -> None:
        """Sends a bucket to every server, from the first rank. Returns when all have loaded it."""
        if self._memory:
            cargo = self._collective.gather(self._memory.put(bucket))
        elif self._first:
            cargo = packed(bucket, self._device)
        if self._first:
            manifest = manifest_of(bucket)
            self._on_all(lambda member, post: member.link.send(post, manifest, cargo))
        if self._memory:
            # No rank writes the next bucket while the engine reads this one.
            self._collective.gather(None)

    def finish_refresh(self, policy_version: int) -> None:
        """Ends the refresh. Servers that have loaded all weights serve from here on. Raises UserError when no server
        has ever been able to load the weights."""
        if self._first:
            if self._sleep != "never":
                # The learner's last step has left memory to torch, in which the cache has its place.
                torch.cuda.empty_cache()
            finish = partial(Member.finish_refresh, adapters=self._adapters, sleeps=self._sleep != "never")
            self._on_all(partial(finish, policy_version=policy_version))
        if self._memory:
            # The engine has let go of it.
            self._memory.close()
        alive, refusal = self._collective.gather(([replica.alive for replica in self.replicas], self._refusal))[0]
        if refusal and not any(alive):
            raise UserError(
                f"no vLLM server could load this model's weights as a refresh sends them ({refusal[:300]}): if its "
                "code has no place for them use rollout.engine=transformers; logs/ in the run's folder say more"
            )
        self._refusal = None if any(alive) else self._refusal
        for member, holds_weights in zip(self._members, alive, strict=True):
            if holds_weights and self._first:
                member.take_back()
            member.has_base = holds_weights or member.starts_with_base
            member.replica.state = ServerState.READY if holds_weights else ServerState.LOST

    def checksums(self) -> Sequence[Mapping[str, int]]:
        """Returns the checksums of every worker of every server."""
        workers = None
        if self._first:
            answers = self._on_all(partial(_checksums, whole=self._memory is not None))
            workers = [worker for answer in answers for worker in answer]
        return self._collective.gather(workers)[0]

    # --- servers that are lost -----------------------------------------------------------------

    async def _take_back(self) -> None:
        """Marks lost servers that answer again as joining."""
        lost_replicas = [replica for replica in self.replicas if not replica.alive]
        answers = await asyncio.gather(*(replica.healthy() for replica in lost_replicas))
        for replica, healthy in zip(lost_replicas, answers, strict=True):
            if healthy:
                replica.state = ServerState.JOINING

    def wait_for_lost(self) -> None:
        """Waits until the servers that are lost and were restarted answer. Raises UserError when one does not."""
        if self._first:
            self.restart_lost()
            lost_replicas = [replica for replica in self.replicas if not replica.alive]
            finished(_wait_for(lost_replicas, self._start_seconds))

    def restart_lost(self) -> None:
        """Restarts the lost servers that this run started, on the first rank."""
        for member in self._members:
            member.restart_if_lost()

    def _on_all(self, action: Callable[[Member, Post], Awaitable[Any]]) -> list[Any]:
        """Runs `action` on all living servers at once. Marks servers that fail as lost; returns the others' results."""

        async def on_one(member: Member) -> Any:
            async with member.replica.session(self._update_seconds) as session:
                return await action(member, partial(member.replica.post, session))

        async def on_every(members: Sequence[Member]) -> list[Any]:
            return await asyncio.gather(*(on_one(member) for member in members), return_exceptions=True)

        results, living_members = [], self._living()
        for member, outcome in zip(living_members, finished(on_every(living_members)), strict=True):
            # Whatever went wrong went wrong with one server: the others still serve the run.
            if isinstance(outcome, Exception):
                if isinstance(outcome, LoadFailed) and self._refusal is not None:
                    self._refusal = str(outcome)
                member.lose(outcome)
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                results.append(outcome)
        self.restart_lost()
        return results


async def _wait_for(replicas: Sequence[Replica], seconds: float) -> None:
    await asyncio.gather(*(replica.wait(seconds) for replica in replicas))


async def _checksums(member: Member, post: Post, whole: bool) -> list[Mapping[str, int]]:
    answer = await post("/collective_rpc", {"method": "weight_checksums", "kwargs": {"whole": whole}})
    return [dict(worker) for worker in answer["results"]]
