"""The dispatcher spreads requests over several servers: each prompt goes to the server with the fewest tokens to
process.

All samples of one prompt go to one server, whose prefix cache then holds the prompt. Samples that a lost server has not
answered go to other servers; every sample is kept once.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from grpo.config.errors import NOBODY_LEFT, SamplerLost, UserError
from grpo.host.terminal import say
from grpo.rollout.replica import Replica, ReplicaLost, RequestRefused, Standing

ROUTE = "/inference/v1/generate"
Requests = Mapping[int, Mapping[str, Any]]
"""This maps each sample's number to the body of its request."""


Answers = Future[Mapping[int, Mapping[str, Any]]]
"""This is a future of a map from each sample's number to its choice in the server's answer."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Holds one prompt's requests and the answers so far."""

    requests: Requests
    answers: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    future: Answers = field(default_factory=Future)

    def missing(self) -> Requests:
        return {sample: request for sample, request in self.requests.items() if sample not in self.answers}


class Dispatcher:
    """Sends requests to servers, in a thread of its own, for as long as the process lives.

    One server has at most `at_once` requests at a time, or those of one prompt if they are more. A lost server is
    marked as lost. It gets requests again when it is ready and `look_again` is called.
    """

    def __init__(self, replicas: Sequence[Replica], at_once: int):
        self._replicas, self._at_once = replicas, at_once
        self._waiting: deque[_Group] = deque()
        self._tasks: dict[int, dict[asyncio.Task, _Group]] = {replica.index: {} for replica in replicas}
        self._busy: dict[int, dict[tuple[int, int], int]] = {replica.index: {} for replica in replicas}
        self._closed, self._why_lost = False, NOBODY_LEFT
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="requests to servers", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def ask(self, requests: Sequence[Requests]) -> list[Answers]:
        """Queues requests in this order, and returns one future for each prompt.

        A future raises SamplerLost when no server is left, with the last server's message if it refused the request. A
        prompt whose future is cancelled before its turn is not sent.
        """
        groups = [_Group(of_one_prompt) for of_one_prompt in requests]
        self._loop.call_soon_threadsafe(self._take_in, groups)
        return [group.future for group in groups]

    def look_again(self) -> None:
        """Sends waiting requests to the servers that are ready. Called when servers came back or were lost."""
        self._loop.call_soon_threadsafe(self._hand_out)

    def close(self) -> None:
        """Cancels the requests under way, sends no further ones, and ends the thread."""
        atexit.unregister(self.close)
        if self._loop.is_running():
            # A loop that is stuck must not hold up the process's end.
            with suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(self._give_up(), self._loop).result(5)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(5)

    # --- in the thread -------------------------------------------------------------------------

    def _take_in(self, groups: Sequence[_Group]) -> None:
        self._waiting.extend(groups)
        self._hand_out()

    def _hand_out(self) -> None:
        for replica in self._replicas:
            if not replica.alive:
                self._take_back(replica)
        if self._closed or not any(replica.alive for replica in self._replicas):
            self._fail_all(SamplerLost(self._why_lost))
        while self._waiting:
            group = self._waiting[0]
            requests = group.missing()
            ready = [replica for replica in self._replicas if replica.standing is Standing.READY]
            free = [replica for replica in ready if self._has_room(replica, len(requests))]
            if not free:
                return
            self._waiting.popleft()
            if group.future.cancelled():
                continue
            replica = min(free, key=lambda server: sum(self._busy[server.index].values()))
            self._busy[replica.index] |= {(id(group), sample): _tokens(request) for sample, request in requests.items()}
            self._tasks[replica.index][self._loop.create_task(self._serve(replica, group, requests))] = group

    def _has_room(self, replica: Replica, more: int) -> bool:
        busy = len(self._busy[replica.index])
        return not busy or busy + more <= self._at_once

    async def _serve(self, replica: Replica, group: _Group, requests: Requests) -> None:
        """Gets one prompt's samples from one server. `_take_back` may cancel this task at any time."""
        try:
            async with replica.session() as session, asyncio.TaskGroup() as asking:
                for sample, request in requests.items():
                    asking.create_task(self._post(replica, session, group, sample, request))
        except* ReplicaLost as lost:
            self._lose(replica, lost.exceptions[0])
        except* Exception as failed:
            _settle(group.future, error=failed.exceptions[0])
            self._forget(replica, asyncio.current_task())
        else:
            _settle(group.future, result=group.answers)
            self._forget(replica, asyncio.current_task())
        self._hand_out()

    async def _post(
        self, replica: Replica, session: aiohttp.ClientSession, group: _Group, sample: int, request: Mapping[str, Any]
    ) -> None:
        answer = await replica.post(session, ROUTE, request)
        try:
            group.answers[sample] = answer["choices"][0]
        except (LookupError, TypeError) as error:
            raise UserError(
                f"{replica.url}{ROUTE} answered without a completion ({str(answer)[:200]}): rollout.servers.urls must "
                "name servers that `grpo serve` has started"
            ) from error
        self._busy[replica.index].pop((id(group), sample), None)
        self._hand_out()

    def _lose(self, replica: Replica, error: BaseException) -> None:
        if replica.alive:
            replica.standing = Standing.LOST
            self._why_lost = str(error) if isinstance(error, RequestRefused) else NOBODY_LEFT
            left = len(self._busy[replica.index])
            say(f"grpo: the vLLM server at {replica.url} was lost ({error}): {left} completions go to others")

    def _take_back(self, replica: Replica) -> None:
        """Puts the groups that a lost server has not finished at the head of the queue, for other servers."""
        for task, group in reversed(self._tasks[replica.index].items()):
            self._waiting.appendleft(group)
            if task is not asyncio.current_task():
                task.cancel()
        self._tasks[replica.index].clear()
        self._busy[replica.index].clear()

    def _forget(self, replica: Replica, task: asyncio.Task) -> None:
        group = self._tasks[replica.index].pop(task)
        for sample in group.requests:
            self._busy[replica.index].pop((id(group), sample), None)

    def _fail_all(self, error: Exception) -> None:
        while self._waiting:
            _settle(self._waiting.popleft().future, error=error)

    async def _give_up(self) -> None:
        self._closed = True
        tasks = [task for of_one_server in self._tasks.values() for task in of_one_server]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _tokens(request: Mapping[str, Any]) -> int:
    """Returns how many tokens a server may have to read and write for a request."""
    return len(request["token_ids"]) + request["sampling_params"]["max_tokens"]


def _settle(future: Future, result: Any = None, error: Exception | None = None) -> None:
    """Settles a future, unless nobody waits for it any more."""
    if not future.set_running_or_notify_cancel():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
