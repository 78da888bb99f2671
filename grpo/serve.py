"""`grpo serve`: vLLM servers on this machine, for a learner on another one."""

from __future__ import annotations

import asyncio
import signal
import threading

from grpo import launch_check, models
from grpo.config import TrainConfig, UserError
from grpo.parts import warm_start_examples

POLL_SECONDS = 1.0


def serve(config: TrainConfig) -> int:
    """Starts `rollout.servers.replicas` servers at `rollout.servers.host` from `rollout.servers.port` on, and starts
    again what ends, until it is asked to stop. The learner gives them weights before it asks them.

    Raises `UserError` when a server does not start.
    """
    from grpo.rollout.replica import Replica
    from grpo.rollout.server_sampler import start_servers

    if not config.rollout.servers.port:
        raise UserError("grpo serve needs rollout.servers.port: the learner is told where the servers are")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    device = launch_check.device(config)
    config = launch_check.with_precision(config)
    path = models.resolve(config.model, lambda: warm_start_examples(config))
    processes = start_servers(config, str(path), device)
    try:
        for index, (url, process) in enumerate(processes.items()):
            asyncio.run(Replica(index, url, "", 0.0, process).wait(config.rollout.servers.start_seconds))
            print(f"serving at {url}", flush=True)
        while not stop.wait(POLL_SECONDS):
            for url, process in processes.items():
                if process.ended:
                    print(f"the server at {url} ended: starting it again", flush=True)
                    process.restart()
    finally:
        for process in processes.values():
            process.stop()
    return 0
