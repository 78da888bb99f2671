"""A fleet manages the vLLM servers of a run: it sends them weights, and replaces servers that are lost.

A server serves until some rank loses it. Then all ranks give it up, and it is restarted if this run started it. At the
next refresh a server that answers again joins: it is given the weights, and gets no requests before it has them.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
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
from grpo.rollout.claims import Claims, claim_all, name_of, served
from grpo.rollout.engine_arguments import cache_key
from grpo.rollout.engine_use import ServerUse, few_at_once, room_of
from grpo.rollout.member import Member
from grpo.rollout.replica import LoadFailed, Replica, ServerState
from grpo.rollout.servers import start_servers
from grpo.weight_sync.channel import manifest_of, packed
from grpo.weight_sync.server_link import MemoryLink, Post, ServerLink
from grpo.weight_sync.shared_memory import SharedMemory


class Fleet:
    """Manages a run's servers. The first rank starts them, unless `rollout.servers.urls` names running ones.

    All ranks gather the same weights, and the ranks on the first one's machine share the servers: each brings its own
    ones the weights, over its own device's paths. All methods but `replicas` and `close` are collective over the ranks
    that use the servers.
    """

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
        # From `sleep` to `wake` the learner may need the memory that an engine takes as it starts.
        self._learner_works = False
        self._first = collective.rank == 0
        # Other machines may have no way to the servers but by the first one's address, which `rollout.servers.host` is.
        self._senders = min(ranks.local_world_size(), collective.world_size)
        self._thread = ThreadPoolExecutor(1, "weights")
        self._on_the_way: tuple[list[Member], Future[list[Any]]] | None = None
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

    @property
    def num_askers(self) -> int:
        """Returns the number of ranks that ask the servers."""
        return self._collective.world_size

    def _living(self) -> list[Member]:
        return [member for member in self._members if member.replica.alive]

    def _mine(self) -> list[Member]:
        """Returns the living servers to which this rank brings weights."""
        mine = self._members[self._collective.rank :: self._senders] if self._collective.rank < self._senders else []
        return [member for member in mine if member.replica.alive]

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
        self._thread.shutdown(wait=False)
        if self._memory:
            self._memory.close()

    def ask_workers(self, method: str) -> list[dict[str, Any]]:
        """Calls a method of `WeightReceiver` in every worker of the living servers, from the first rank. Returns their
        answers there."""

        async def asked(member: Member, post: Post) -> list[dict[str, Any]]:
            return (await post("/collective_rpc", {"method": method}))["results"]

        return [worker for answer in self._on(self._living(), asked) for worker in answer] if self._first else []

    def sleep(self) -> None:
        """Makes servers beside learners free as much memory on a GPU as configured. Returns once they have."""
        if self._sleep != "never":
            self._learner_works = True
            self._from_first(Member.release_cache if self._sleep == "cache" else Member.sleep)

    def wake(self) -> None:
        """Makes servers beside learners take memory for weights again. `finish_refresh` brings the cache back."""
        self._learner_works = False
        if self._sleep not in ("never", "cache"):
            self._make_room()
            self._from_first(Member.wake)

    def _make_room(self) -> None:
        """Gives back the GPU memory that the learner's last step has left to torch, on every rank. Ranks that share an
        engine wait for one another, since it takes memory of all their GPUs."""
        torch.cuda.empty_cache()
        self._collective.gather(None)

    def _from_first(self, action: Callable[[Member, Post], Awaitable[Any]]) -> None:
        if self._first:
            self._on(self._living(), action)
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
        on_cpu = self._device.type == "cpu"
        begin = partial(Member.begin_refresh, serves=self._serves, pauses=self._pauses, on_cpu=on_cpu)
        self._on(self._mine(), begin)
        self._agree()

    def _agree(self) -> None:
        """Gives up what the rank that sends to it has lost."""
        by_rank = self._collective.gather([(member.replica.alive, member.linked) for member in self._members])
        for place, member in enumerate(self._members):
            alive, linked = by_rank[place % self._senders][place]
            lost = member.replica.alive and not alive
            # The first rank restarts a lost server only if it was linked.
            member.linked = linked or lost or member.linked
            if lost:
                member.replica.state = ServerState.LOST
        self.restart_lost()

    def lacks_base(self) -> bool:
        """Returns whether some living server lacks the frozen weights below the adapters, as the first rank knows.
        Collective."""
        return self._collective.gather(not all(member.has_base for member in self._living()))[0]

    def send(self, bucket: Bucket) -> None:
        """Sends a bucket to every server. By the memory of a device it returns when all have loaded the bucket, and
        else while it is on the way, so that the next one is gathered and packed meanwhile."""
        if self._memory:
            cargo, manifest = self._collective.gather(self._memory.put(bucket)), manifest_of(bucket)
            self._on(self._mine(), lambda member, post: member.link.send(post, manifest, cargo))
            # No rank writes the next bucket while the engine reads this one.
            self._collective.gather(None)
        elif self._mine():
            buffer, manifest = packed(bucket, self._device), manifest_of(bucket)
            self._arrive()
            members = self._mine()
            sent = self._asked(members, lambda member, post: member.link.send(post, manifest, buffer))
            self._on_the_way = members, self._thread.submit(asyncio.run, sent)

    def _arrive(self) -> None:
        """Waits until the bucket that is on the way has been loaded."""
        if self._on_the_way:
            (members, outcomes), self._on_the_way = self._on_the_way, None
            self._judged(members, outcomes.result())

    def finish_refresh(self, policy_version: int) -> None:
        """Ends the refresh. Servers that have loaded all weights serve from here on. Raises UserError when no server
        has ever been able to load the weights."""
        self._arrive()
        if self._sleep != "never":
            self._make_room()
        finish = partial(Member.finish_refresh, adapters=self._adapters, sleeps=self._sleep != "never")
        self._on(self._mine(), partial(finish, policy_version=policy_version))
        if self._memory:
            # The engine has let go of it.
            self._memory.close()
        self._agree()
        alive = [replica.alive for replica in self.replicas]
        refusal = next(filter(None, self._collective.gather(self._refusal)), self._refusal)
        if refusal and not any(alive):
            raise UserError(
                f"no vLLM server could load this model's weights as a refresh sends them ({refusal[:300]}): if its "
                "code has no place for them use rollout.engine=transformers; logs/ in the run's folder say more"
            )
        self._refusal = None if any(alive) else self._refusal
        for place, (member, holds_weights) in enumerate(zip(self._members, alive, strict=True)):
            if holds_weights and place % self._senders == self._collective.rank:
                member.take_back()
            member.has_base = holds_weights or member.starts_with_base
            member.replica.state = ServerState.READY if holds_weights else ServerState.LOST

    def checksums(self) -> Sequence[Mapping[str, int]]:
        """Returns the checksums of every worker of every server."""
        workers = None
        if self._first:
            answers = self._on(self._living(), partial(_checksums, whole=self._memory is not None))
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
        """Waits until the servers that are lost and were restarted answer, and join. Raises UserError when one does
        not."""
        if self._first:
            self.restart_lost()
            lost_replicas = [replica for replica in self.replicas if not replica.alive]
            finished(_wait_for(lost_replicas, self._start_seconds))
            # They hold memory from here on, and are put to sleep like the others.
            for replica in lost_replicas:
                replica.state = ServerState.JOINING

    def restart_lost(self) -> None:
        """Restarts the lost servers that this run started, on the first rank. A server beside a learner that works on
        its GPU is restarted in the next refresh."""
        for member in self._members if not self._learner_works else ():
            member.restart_if_lost()

    def _on(self, members: Sequence[Member], action: Callable[[Member, Post], Awaitable[Any]]) -> list[Any]:
        """Runs `action` on these servers at once. Marks servers that fail as lost; returns the others' results."""
        return self._judged(members, finished(self._asked(members, action)))

    async def _asked(self, members: Sequence[Member], action: Callable[[Member, Post], Awaitable[Any]]) -> list[Any]:
        """Returns the result of `action` on each server, or its exception."""

        async def on_one(member: Member) -> Any:
            async with member.replica.session(self._update_seconds) as session:
                return await action(member, partial(member.replica.post, session))

        return await asyncio.gather(*(on_one(member) for member in members), return_exceptions=True)

    def _judged(self, members: Sequence[Member], outcomes: Sequence[Any]) -> list[Any]:
        """Returns the results among the outcomes, and marks the servers of exceptions as lost."""
        results = []
        for member, outcome in zip(members, outcomes, strict=True):
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
