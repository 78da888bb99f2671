"""This module implements `grpo serve`, which runs vLLM servers on this machine for a learner on another one."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from grpo.config import TrainConfig
from grpo.config.parts import SamplerSettings
from grpo.config.placement import KEY_VARIABLE
from grpo.host import ranks
from grpo.host.repeatable import make_repeatable
from grpo.host.signals import StopRequest
from grpo.run.model_folder import model_files
from grpo.run.preflight import check_vllm
from grpo.run.preparing import with_precision

if TYPE_CHECKING:
    from grpo.rollout.replica import Replica

POLL_SECONDS = 1.0


def run(config: TrainConfig) -> int:
    """Runs `rollout.servers.replicas` servers at `rollout.servers.host`, on ports from `rollout.servers.port` on.

    It restarts servers that end or no longer answer, until it is asked to stop. The learner sends its weights to a
    server before it asks for completions. Returns the exit code. Raises `UserError` when a server does not start.
    """
    from grpo.rollout.replica import Replica, keep_alive
    from grpo.rollout.servers import start_servers

    stop = StopRequest()
    # Servers are started whatever engine the words name.
    config = replace(config, rollout=replace(config.rollout, engine="vllm_server"))
    device = ranks.device(config.device)
    if config.deterministic:
        make_repeatable(ranks.on_gpu(config.device))
    check_vllm(config)
    config = with_precision(config)
    processes = start_servers(SamplerSettings.of(config), model_files(config), device)
    key = os.environ[KEY_VARIABLE]
    replicas = [Replica(url, key, 0.0, process) for url, process in processes.items()]
    try:
        for replica in replicas:
            if not asyncio.run(_started(replica, stop, config.rollout.servers.start_seconds)):
                return 0
            print(f"serving at {replica.url}", flush=True)
        keep_alive(replicas, stop, config.rollout.servers.start_seconds)
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
