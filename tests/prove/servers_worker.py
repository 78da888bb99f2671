"""This program prints the verdicts of `grpo.prove.lost_server`, unchanged and sabotaged in two ways.

First the lost server is not started again, then a bit is flipped on the way to the other server. It is a process of its
own, because DeepSpeed keeps its process groups for good. Usage: python -m tests.prove.servers_worker FOLDER
"""

import json
import sys
import time
from pathlib import Path
from unittest import mock

from grpo.host import environment

environment.prepare()

from grpo.config.parts import SamplerSettings
from grpo.prove import lost_server
from grpo.prove.bench import Bench
from grpo.rollout import fleet
from grpo.rollout.server_sampler import ServerSampler
from tests import warm
from tests.forked_servers import fork_servers


def main(folder: str) -> None:
    fork_servers(warm.interpreter(Path(folder), warm.SERVE))
    bench = Bench("tiny", Path(folder), ["device=cpu", *lost_server.WORDS, f"output_dir={folder}/servers"])
    begun = time.perf_counter()
    learner = bench.learner
    sampler = ServerSampler(SamplerSettings.of(bench.config), bench.files, bench.device, learner.collective)
    verdicts_of = {"": verdicts(lost_server.lose(lost_server.Run(bench, sampler), time.perf_counter() - begun))}
    never = mock.patch.multiple(lost_server, LATEST=0.0, GRACE_SECONDS=3.0)
    with never, mock.patch.object(fleet.Fleet, "restart_lost", lambda self: None):
        verdicts_of["not started again"] = verdicts(lost_server.lose(lost_server.Run(bench, sampler), 0.0))
    packed = fleet.packed

    def flipped(*arguments):
        buffer = packed(*arguments)
        buffer[0] ^= 1
        return buffer

    with mock.patch.object(fleet, "packed", flipped):
        verdicts_of["flipped bit"] = lost_server.Run(bench, sampler).refresh()
    for server in sampler.servers:
        server.process.stop()
    print(json.dumps(verdicts_of))


def verdicts(report) -> dict[str, str]:
    return {fact.what: fact.verdict for fact in report.facts}


if __name__ == "__main__":
    main(sys.argv[1])
