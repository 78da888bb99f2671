"""The dispatcher spreads requests over several servers: each prompt goes to the server with the fewest tokens to
process.

All samples of one prompt go to one server, whose prefix cache then holds the prompt. Samples that a lost server has not
answered go to other servers; every sample is kept once.
"""

import asyncio
import atexit
import threading
from collections import OrderedDict, deque
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from grpo.config.errors import NOBODY_LEFT, SamplerLost, UserError
from grpo.host.terminal import say
from grpo.rollout.replica import Replica, ReplicaLost, RequestRefused, ServerState

ROUTE = "/inference/v1/generate"
Requests = Mapping[int, Mapping[str, Any]]
"""This maps each sample's number to the body of its request."""


Answers = Future[Mapping[int, Mapping[str, Any]]]
"""This is a future of a map from each sample's number to its choice in the server's answer."""


MOST_CONVERSATIONS = 2**16
"""The dispatcher remembers where so many conversations went. A cache holds fewer."""


@dataclass(slots=True, eq=False)
class _Group:
    """Holds one prompt's requests and the answers so far, and which turn of which conversation they are. `end` is the
    loop's time at which the group is given up. It is set when the group is first sent."""

    requests: Requests
    conversation: Hashable = None
    turn: int = 0
    answers: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    future: Answers = field(default_factory=Future)
    end: float | None = None

    def missing(self) -> Requests:
        return {sample: request for sample, request in self.requests.items() if sample not in self.answers}


@dataclass(slots=True, eq=False)
class _Server:
    """Holds what one server is doing: its tasks, and the tokens of each sample under way, by group and number."""

    replica: Replica
    tasks: dict[asyncio.Task, _Group] = field(default_factory=dict)
    tokens: dict[tuple[int, int], int] = field(default_factory=dict)

    def has_room(self, more: int, at_once: int) -> bool:
        return not self.tokens or len(self.tokens) + more <= at_once

    def take_back(self) -> list[_Group]:
        """Cancels all requests but the caller's, and returns their groups in the order in which they were sent."""
        groups = list(self.tasks.values())
        for task in self.tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self.tasks.clear()
        self.tokens.clear()
        return groups

    def forget(self, task: asyncio.Task) -> bool:
        """Forgets a task that ends. Returns False for one whose group was taken back and is another server's now."""
        group = self.tasks.pop(task, None)
        for sample in group.requests if group else ():
            self.tokens.pop((id(group), sample), None)
        return group is not None


class Dispatcher:
    """Sends requests to servers, in a thread of its own, for as long as the process lives.

    One server has at most `at_once` requests at a time, or those of one prompt if they are more. A lost server is
    marked as lost. It gets requests again when it is ready and `look_again` is called. A prompt's samples that have not
    come `group_seconds` after the first of them was sent are given up (0: never).
    """

    def __init__(self, replicas: Sequence[Replica], at_once: int, group_seconds: float = 0.0):
        self._servers, self._at_once = [_Server(replica) for replica in replicas], at_once
        self._group_seconds = group_seconds
        self._waiting: deque[_Group] = deque()
        # The server that has the beginning of a conversation in its cache, by conversations.
        self._homes: OrderedDict[Hashable, _Server] = OrderedDict()
        self._closed, self._why_lost = False, NOBODY_LEFT
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="requests to servers", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def ask(self, requests: Sequence[Requests], turns: Sequence[tuple[Hashable, int]] = ()) -> list[Answers]:
        """Queues requests in this order, and returns one future for each prompt. It lacks samples that were given up.

        `turns` say, for each prompt, of which conversation it is which turn, from 0. A later turn goes to the server
        that had the earlier one, and so has it in its cache, if that has room.

        A future raises SamplerLost when no server is left, with the last server's message if it refused the request. A
        prompt whose future is cancelled before its turn is not sent.
        """
        turns = turns or [(None, 0)] * len(requests)
        groups = [_Group(of_one_prompt, *turn) for of_one_prompt, turn in zip(requests, turns, strict=True)]
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
        for server in self._servers:
            if not server.replica.alive:
                self._waiting.extendleft(reversed(server.take_back()))
        if self._closed or not any(server.replica.alive for server in self._servers):
            self._fail_all(SamplerLost(self._why_lost))
        while self._waiting:
            group = self._waiting[0]
            requests = group.missing()
            ready = [server for server in self._servers if server.replica.state is ServerState.READY]
            free_servers = [server for server in ready if server.has_room(len(requests), self._at_once)]
            if not free_servers:
                return
            self._waiting.popleft()
            if group.future.cancelled():
                continue
            server = self._homes.get(group.conversation) if group.turn else None
            if server not in free_servers:
                server = min(free_servers, key=lambda server: sum(server.tokens.values()))
            self._remember(group.conversation, server)
            server.tokens |= {(id(group), sample): _tokens(request) for sample, request in requests.items()}
            server.tasks[self._loop.create_task(self._serve(server, group, requests))] = group

    def _remember(self, conversation: Hashable, server: _Server) -> None:
        if conversation is not None:
            self._homes[conversation] = server
            self._homes.move_to_end(conversation)
            if len(self._homes) > MOST_CONVERSATIONS:
                self._homes.popitem(last=False)

    async def _serve(self, server: _Server, group: _Group, requests: Requests) -> None:
        """Gets one prompt's samples from one server. `_Server.take_back` may cancel this task at any time."""
        if group.end is None and self._group_seconds:
            group.end = self._loop.time() + self._group_seconds
        try:
            async with (
                asyncio.timeout_at(group.end),
                server.replica.session() as session,
                asyncio.TaskGroup() as asking,
            ):
                for sample, request in requests.items():
                    asking.create_task(self._post(server, session, group, sample, request))
        except* ReplicaLost as lost:
            if asyncio.current_task() in server.tasks:
                self._lose(server, lost.exceptions[0])
        except* TimeoutError:
            if server.forget(asyncio.current_task()):
                _settle(group.future, result=group.answers)
        except* Exception as failed:
            if server.forget(asyncio.current_task()):
                _settle(group.future, error=failed.exceptions[0])
        else:
            if server.forget(asyncio.current_task()):
                _settle(group.future, result=group.answers)
        self._hand_out()

    async def _post(
        self, server: _Server, session: aiohttp.ClientSession, group: _Group, sample: int, request: Mapping[str, Any]
    ) -> None:
        answer = await server.replica.post(session, ROUTE, request)
        try:
            group.answers[sample] = answer["choices"][0]
        except (LookupError, TypeError) as error:
            raise UserError(
                f"{server.replica.url}{ROUTE} answered without a completion ({str(answer)[:200]}): "
                "rollout.servers.urls must name servers that `grpo serve` has started"
            ) from error
        server.tokens.pop((id(group), sample), None)
        self._hand_out()

    def _lose(self, server: _Server, error: BaseException) -> None:
        replica = server.replica
        if replica.alive:
            replica.state = ServerState.LOST
            self._why_lost = str(error) if isinstance(error, RequestRefused) else NOBODY_LEFT
            num_samples = len(server.tokens)
            say(f"grpo: the vLLM server at {replica.url} was lost ({error}): {num_samples} completions are asked again")

    def _fail_all(self, error: Exception) -> None:
        while self._waiting:
            _settle(self._waiting.popleft().future, error=error)

    async def _give_up(self) -> None:
        self._closed = True
        tasks = [task for server in self._servers for task in server.tasks]
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
