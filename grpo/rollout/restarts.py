"""This module decides when a vLLM server is restarted, in a run and under `grpo serve`.

A run restarts a server that it started, once it has lost it. `grpo serve` has no run that could lose its servers. It
asks each of them every second, and restarts one that ended, hangs or has lost its engine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from grpo.host.signals import StopRequest
from grpo.rollout.replica import CLOSED, Replica, ServerProcess

POLL_SECONDS = 1.0
# A server whose engine does not answer for this long is restarted.
UNRESPONSIVE_SECONDS = 30.0
# A server whose engine has died answers with an error, or stops listening, and its process may never end. It is
# restarted after this many such answers in a row.
DEAD_ANSWERS = 3


def restart_lost(process: ServerProcess | None, was_linked: bool) -> None:
    """Restarts the process of a server that a run has lost, unless someone else started the server.

    `was_linked` says whether the server was given weights since its start. A server is restarted once for each loss,
    and again if it ended while it started: the memory of its lost predecessor may not have been free yet.
    """
    if process is not None and (was_linked or process.ended):
        process.restart()


class Watched:
    """Judges one server of `grpo serve` by its answers, and restarts it when it no longer answers."""

    def __init__(self, replica: Replica, start_seconds: float):
        """Takes a server that has just answered. A restarted server may take `start_seconds` to answer."""
        self._replica, self._start_seconds = replica, start_seconds
        # For a restarted server this time lies in the future.
        self._answered = time.monotonic()
        self._dead_answers = 0
        # A restarted server does not listen before it answers.
        self._listens = True

    def judge(self, status: int | None) -> None:
        """Takes what `Replica.status` returns now. Restarts the server if it ended, hangs or has lost its engine."""
        is_dead = status is not None and (status >= 500 or (status == CLOSED and self._listens))
        self._dead_answers = self._dead_answers + 1 if is_dead else 0
        silent = time.monotonic() > self._answered + UNRESPONSIVE_SECONDS
        if status == 200:
            self._answered, self._listens = time.monotonic(), True
        elif self._replica.process.ended or silent or self._dead_answers >= DEAD_ANSWERS:
            print(f"the server at {self._replica.url} does not answer: restarting it", flush=True)
            self._replica.process.restart()
            self._answered = time.monotonic() + self._start_seconds
            self._dead_answers, self._listens = 0, False


def keep_alive(replicas: Sequence[Replica], stop: StopRequest, start_seconds: float) -> None:
    """Watches the servers of `grpo serve`, and restarts those that fail, until there is a request to stop."""
    watched_replicas = [Watched(replica, start_seconds) for replica in replicas]
    while not stop.wait(POLL_SECONDS):
        for server, status in zip(watched_replicas, asyncio.run(_statuses(replicas)), strict=True):
            server.judge(status)


async def _statuses(replicas: Sequence[Replica]) -> list[int | None]:
    """Returns the `status` of every server, asked at once."""
    return await asyncio.gather(*(replica.status() for replica in replicas))
