"""This module implements `grpo serve`, which runs vLLM servers on this machine for a learner on another one."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from grpo import models
from grpo.config import TrainConfig
from grpo.config.placement import KEY_VARIABLE
from grpo.host import ranks
from grpo.host.signals import StopRequest
from grpo.run import preflight
from grpo.run.parts import warm_start_examples

if TYPE_CHECKING:
    from grpo.rollout.replica import Replica

POLL_SECONDS = 1.0
# A server whose engine does not answer for this long is restarted.
UNRESPONSIVE_SECONDS = 30.0
# A server whose engine has died answers with an error, and its process may never end. It is restarted after this
# many such answers in a row.
DEAD_ANSWERS = 3


def run(config: TrainConfig) -> int:
    """Runs `rollout.servers.replicas` servers at `rollout.servers.host`, on ports from `rollout.servers.port` on.

    It restarts servers that end or no longer answer, until it is asked to stop. The learner sends its weights to a
    server before it asks for completions. Returns the exit code. Raises `UserError` when a server does not start.
    """
    from grpo.rollout.replica import Replica
    from grpo.rollout.servers import start_servers

    stop = StopRequest()
    device = ranks.device(config)
    config = preflight.with_precision(config)
    path = models.resolve(config.model, lambda: warm_start_examples(config))
    processes = start_servers(config, str(path), device)
    key = os.environ[KEY_VARIABLE]
    replicas = [Replica(index, url, key, 0.0, process) for index, (url, process) in enumerate(processes.items())]
    try:
        for replica in replicas:
            if not asyncio.run(_started(replica, stop, config.rollout.servers.start_seconds)):
                return 0
            print(f"serving at {replica.url}", flush=True)
        keep(replicas, stop, config.rollout.servers.start_seconds)
    finally:
        for process in processes.values():
            process.ask_to_end()
        for process in processes.values():
            process.stop()
    return 0


async def _started(replica: Replica, stop: StopRequest, seconds: float) -> bool:
    """Waits until the server answers. Returns False when a request to stop comes first."""
    waiting = asyncio.create_task(replica.wait(seconds))
    while not stop():
        if (await asyncio.wait([waiting], timeout=POLL_SECONDS))[0]:
            waiting.result()
            return True
    return False


def keep(replicas: Sequence[Replica], stop: StopRequest, start_seconds: float) -> None:
    """Restarts servers that end, hang or have lost their engine, until there is a request to stop."""
    # For a restarted server the time lies in the future, since it may take `start_seconds` to answer.
    answered = {replica.index: time.monotonic() for replica in replicas}
    dead = dict.fromkeys(answered, 0)
    while not stop.wait(POLL_SECONDS):
        for replica, status in zip(replicas, asyncio.run(_statuses(replicas)), strict=True):
            index = replica.index
            dead[index] = dead[index] + 1 if (status or 0) >= 500 else 0
            silent = time.monotonic() > answered[index] + UNRESPONSIVE_SECONDS
            if status == 200:
                answered[index] = time.monotonic()
            elif replica.process.ended or silent or dead[index] >= DEAD_ANSWERS:
                print(f"the server at {replica.url} does not answer: restarting it", flush=True)
                replica.process.restart()
                answered[index], dead[index] = time.monotonic() + start_seconds, 0


async def _statuses(replicas: Sequence[Replica]) -> list[int | None]:
    """Returns the HTTP status of every server, asked at once. None stands for a server that does not answer."""
    return await asyncio.gather(*(replica.status() for replica in replicas))
