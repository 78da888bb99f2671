"""Draws completions from several servers: whoever has room takes the next prompt.

Samples of one prompt go to one server, whose prefix cache then holds the prompt. What a lost server had not answered
goes back to the others; every sample is kept once, by its key.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import aiohttp

from grpo.rollout.replica import Replica, ReplicaLost

ROUTE = "/v1/completions"
Key = tuple[int, int]
"""(number of the prompt, number of the sample)."""


def draw(
    requests: Sequence[Mapping[Key, Mapping[str, Any]]], replicas: Sequence[Replica], at_once: int
) -> dict[Key, Any]:
    """One answer (the server's choice) for every request, given prompt by prompt; at most `at_once` are with one
    server. A server that is lost is marked as not alive; when none is left, answers are missing."""
    return asyncio.run(_Dispatch(requests, at_once).run([each for each in replicas if each.alive]))


class _Dispatch:
    def __init__(self, requests: Sequence[Mapping[Key, Mapping[str, Any]]], at_once: int):
        self._waiting = deque(dict(each) for each in requests)
        self._missing = sum(len(each) for each in requests)
        self._at_once = at_once
        self._answers: dict[Key, Any] = {}
        self._news = asyncio.Condition()

    async def run(self, replicas: Sequence[Replica]) -> dict[Key, Any]:
        feeders = [asyncio.create_task(self._feed(replica)) for replica in replicas]
        try:
            await asyncio.gather(*feeders)
        finally:
            for feeder in feeders:
                feeder.cancel()
        return self._answers

    async def _feed(self, replica: Replica) -> None:
        """Keeps one server busy until everything is answered, or it is lost."""
        asked: dict[asyncio.Task, tuple[Key, Mapping[str, Any]]] = {}
        async with replica.session() as session:
            try:
                while self._missing:
                    self._ask(replica, session, asked)
                    await self._take(asked)
            except ReplicaLost as error:
                replica.alive = False
                self._hand_back(asked.values())
                print(
                    f"grpo: the vLLM server at {replica.url} was lost ({error}): {len(asked)} completions go to others",
                    file=sys.stderr,
                )
            finally:
                for task in asked:
                    task.cancel()
                await asyncio.gather(*asked, return_exceptions=True)
        async with self._news:
            self._news.notify_all()

    def _ask(self, replica: Replica, session: aiohttp.ClientSession, asked: dict) -> None:
        while self._waiting and (not asked or len(asked) + len(self._waiting[0]) <= self._at_once):
            for key, request in self._waiting.popleft().items():
                asked[asyncio.create_task(replica.post(session, ROUTE, request))] = (key, request)

    async def _take(self, asked: dict) -> None:
        """What has been answered; raises ReplicaLost. With nothing asked, waits for another server's work."""
        if not asked:
            async with self._news:
                await self._news.wait_for(lambda: self._waiting or not self._missing)
            return
        done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            answer = task.result()
            key, _ = asked.pop(task)
            self._answers[key] = answer["choices"][0]
            self._missing -= 1

    def _hand_back(self, unanswered: Iterable[tuple[Key, Mapping[str, Any]]]) -> None:
        by_prompt: dict[int, dict[Key, Mapping[str, Any]]] = {}
        for key, request in unanswered:
            by_prompt.setdefault(key[0], {})[key] = request
        self._waiting.extendleft(by_prompt.values())
