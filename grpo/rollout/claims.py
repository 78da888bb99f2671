"""This module claims a run's vLLM servers for the run, and keeps the claims until the run ends (see `server_claim`)."""

from __future__ import annotations

import asyncio
import atexit
import os
import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from random import Random
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

import grpo
from grpo.config import TrainConfig, UserError
from grpo.host.terminal import say
from grpo.rollout.replica import HEALTH_SECONDS, Replica, ReplicaLost, RequestRefused
from grpo.rollout.served import require_same, told_versions
from grpo.rollout.server_claim import CLAIM_ROUTE, CONFLICT, LEASE_SECONDS, RELEASE_ROUTE

BEAT_SECONDS, ANSWER_SECONDS = LEASE_SECONDS / 5, 2.0
READ_ROUTE = "/is_paused"
# Servers are reached without a proxy, as by `Replica`.
DIRECT = build_opener(ProxyHandler({}))
WAIT_SECONDS = 1.0


class Claimed(UserError):
    """This error says that another run has claimed the server at `url`."""

    def __init__(self, url: str, answer: str):
        super().__init__(
            f"the vLLM server at {url} is in use: {answer}; wait until that run ends, stop it, or give this run "
            "servers of its own"
        )
        self.url = url


def name_of(config: TrainConfig) -> str:
    """Returns the name by which servers know this run."""
    return f"{Path(config.output_dir).absolute()} (process {os.getpid()} on {socket.gethostname()})"


async def claim(replica: Replica, ours: Mapping[str, Any]) -> Mapping[str, Any]:
    """Claims a server that runs `ours` (see `served`). Returns what the server says that it runs. Raises UserError when
    it serves another run or runs something else, and ReplicaLost when it does not answer."""
    try:
        async with replica.session(HEALTH_SECONDS) as session:
            theirs = await replica.post(session, CLAIM_ROUTE, {})
    except RequestRefused as refused:
        if refused.status == CONFLICT:
            raise Claimed(replica.url, refused.answer) from refused
        raise UserError(
            f"the vLLM server at {replica.url} knows no claims ({refused.status}): start it by the `grpo serve` of "
            f"grpo {grpo.__version__}"
        ) from refused
    require_same(replica.url, theirs, ours)
    return theirs


async def claim_all(replicas: Sequence[Replica], ours: Mapping[str, Any]) -> None:
    """Claims all servers at a run's start. Waits until the claim of a run that was killed has ended.

    A run that cannot have all servers keeps none while it waits. Of two runs that start at once, one then gets all:
    both ask in the order of the URLs, and where each knows the servers by other URLs, both wait for random times. If it
    raises an error, no server stays claimed.
    """
    deadline = asyncio.get_running_loop().time() + LEASE_SECONDS + BEAT_SECONDS
    told = False
    while True:
        try:
            theirs = await _claim_in_order(replicas, ours)
            break
        except Claimed as taken:
            if asyncio.get_running_loop().time() > deadline:
                raise
            if not told:
                told = True
                say(f"grpo: the vLLM server at {taken.url} is another run's; waiting to see whether that run has ended")
        # The generator is not the run's, whose random numbers would depend on how often it waited.
        await asyncio.sleep(WAIT_SECONDS * Random().uniform(0.5, 1.5))
    if remark := told_versions(ours, theirs):
        say(f"grpo: {remark}")


async def _claim_in_order(replicas: Sequence[Replica], ours: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Claims servers in the order of their URLs. Returns what they answer, by URL. If it raises an error, it gives all
    back."""
    theirs = {}
    try:
        for replica in sorted(replicas, key=lambda replica: replica.url):
            theirs[replica.url] = await claim(replica, ours)
    except UserError:
        await _give_back(replicas)
        raise
    except ReplicaLost as lost:
        await _give_back(replicas)
        raise UserError(f"the vLLM server at {replica.url} was lost before the first round: {lost}") from lost
    return theirs


async def _give_back(replicas: Sequence[Replica]) -> None:
    async def release(replica: Replica) -> None:
        async with replica.session(HEALTH_SECONDS) as session:
            await replica.post(session, RELEASE_ROUTE, {})

    # A server that does not answer serves nobody.
    await asyncio.gather(*map(release, replicas), return_exceptions=True)


class Claims:
    """Keeps a run's claims alive in a thread of the first rank, and releases them when the process ends."""

    def __init__(self, replicas: Sequence[Replica]):
        self._replicas, self._over = replicas, threading.Event()
        self._thread = threading.Thread(target=self._beat, name="claims on servers", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def close(self) -> None:
        """Releases the servers that still answer."""
        atexit.unregister(self.close)
        self._over.set()
        self._thread.join(2 * HEALTH_SECONDS)
        self._ask(RELEASE_ROUTE, "POST")

    def _beat(self) -> None:
        while not self._over.wait(BEAT_SECONDS):
            self._ask(READ_ROUTE, "GET")

    def _ask(self, route: str, method: str) -> None:
        """Asks all living servers, whatever they answer. Needs no event loop: none looks up names when Python ends."""
        for replica in [replica for replica in self._replicas if replica.alive]:
            request = Request(f"{replica.url}{route}", headers=dict(replica.headers), method=method)
            with suppress(OSError, HTTPException), DIRECT.open(request, timeout=ANSWER_SECONDS):
                pass
