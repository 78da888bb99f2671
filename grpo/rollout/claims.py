"""This module claims a run's vLLM servers for the run, and keeps the claims until the run ends (see `server_claim`)."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

import grpo
from grpo.config import TrainConfig, UserError
from grpo.config.errors import require
from grpo.host.terminal import say
from grpo.rollout.replica import HEALTH_SECONDS, Replica, ReplicaLost, RequestRefused
from grpo.rollout.server_claim import CLAIM_ROUTE, CONFLICT, LEASE_SECONDS, RELEASE_ROUTE

BEAT_SECONDS, ANSWER_SECONDS = LEASE_SECONDS / 5, 2.0
READ_ROUTE = "/is_paused"
# Servers are reached without a proxy, as by `Replica`.
DIRECT = build_opener(ProxyHandler({}))
WAIT_SECONDS = 1.0
# These entries of a model's config.json say nothing of what it computes.
UNIMPORTANT = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache")
VERSION, LENGTH = "the version of grpo", "model.max_length"


class Claimed(UserError):
    """This error says that another run has claimed a server."""


def name_of(config: TrainConfig) -> str:
    """Returns the name by which servers know this run."""
    return f"{Path(config.output_dir).absolute()} (process {os.getpid()} on {socket.gethostname()})"


def served(config: TrainConfig, model_path: str | Path) -> dict[str, Any]:
    """Returns what a server of this configuration runs: what it has in common with the run that may use it."""
    described = json.loads((Path(model_path) / "config.json").read_text(encoding="utf-8"))
    model = {f"{name} of the model": value for name, value in described.items() if name not in UNIMPORTANT}
    return model | {
        VERSION: grpo.__version__,
        LENGTH: config.model.max_length,
        "model.head_precision": config.model.head_precision,
        "rollout.precision": config.rollout.precision,
        "rollout.servers.tensor_parallel": config.rollout.servers.tensor_parallel,
    }


def require_same(url: str, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Raises UserError when the server at `url` runs another model or version than this run, in another precision, or
    takes shorter sequences."""
    names = [name for name in dict.fromkeys([*ours, *theirs]) if theirs.get(name) != ours.get(name)]
    if theirs.get(LENGTH, 0) >= ours[LENGTH]:
        names = [name for name in names if name != LENGTH]
    differences = ", ".join(f"{name} is {theirs.get(name)!r} there and {ours.get(name)!r} here" for name in names[:3])
    require(
        not names,
        f"the vLLM server at {url} does not run what this run needs: {differences}: start `grpo serve` there with the "
        "words of this run, or correct rollout.servers.urls",
    )


async def claim(replica: Replica, ours: Mapping[str, Any]) -> None:
    """Claims a server that runs `ours` (see `served`). Raises UserError when it serves another run or runs something
    else, and ReplicaLost when it does not answer."""
    try:
        async with replica.session(HEALTH_SECONDS) as session:
            theirs = await replica.post(session, CLAIM_ROUTE, {})
    except RequestRefused as refused:
        if refused.status == CONFLICT:
            raise Claimed(
                f"the vLLM server at {replica.url} is in use: {refused.answer}; wait until that run ends, stop it, or "
                "give this run servers of its own"
            ) from refused
        raise UserError(
            f"the vLLM server at {replica.url} knows no claims ({refused.status}): start it by the `grpo serve` of "
            f"grpo {grpo.__version__}"
        ) from refused
    require_same(replica.url, theirs, ours)


async def claim_first(replica: Replica, ours: Mapping[str, Any]) -> None:
    """Claims a server at a run's start. Waits until the claim of a run that was killed has ended."""
    deadline = asyncio.get_running_loop().time() + LEASE_SECONDS + BEAT_SECONDS
    told = False
    while True:
        try:
            return await claim(replica, ours)
        except Claimed:
            if asyncio.get_running_loop().time() > deadline:
                raise
        except ReplicaLost as lost:
            raise UserError(f"the vLLM server at {replica.url} was lost before the first round: {lost}") from lost
        if not told:
            told = True
            say(f"grpo: the vLLM server at {replica.url} is another run's; waiting to see whether that run has ended")
        await asyncio.sleep(WAIT_SECONDS)


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
