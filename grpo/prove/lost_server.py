"""This part kills a vLLM server in the middle of a weight transfer, and measures whether the run goes on and how soon
the server is back."""

import time
from collections.abc import Callable
from typing import Any

import torch

from grpo.config.parts import SamplerSettings
from grpo.config.rewording import path_word
from grpo.interfaces import Bucket, Draw, Sampler
from grpo.prove.bench import Bench
from grpo.prove.facts import SLOW, Fact, Report
from grpo.prove.own_process import measured_apart
from grpo.rollout.checked_sampler import WrappedSampler
from grpo.rollout.server_sampler import ServerSampler
from grpo.weight_sync.refresh import WeightSyncError

NUM_SERVERS = 2
WORDS = ("rollout=vllm_server", f"rollout.servers.replicas={NUM_SERVERS}", "rollout.servers.first_gpu=1")
# A server must be back within `LATEST` times the seconds of a start, and `GRACE_SECONDS` more.
LATEST, GRACE_SECONDS = 4.0, 60.0
# A pause between two rounds, in which the server that starts again gets the processor.
PAUSE_SECONDS = 1.0


def servers(bench: Bench) -> Report:
    """Runs `losing` in a process of its own, if this machine has devices for two servers beside the learner."""
    gpus_needed = 1 + NUM_SERVERS
    if bench.device.type == "cuda" and torch.cuda.device_count() < gpus_needed:
        needs = f"needs {gpus_needed} GPUs"
        return Report([Fact("servers", "a server is killed in a transfer", None, needs=needs)])
    return measured_apart(bench, "losing", "servers", "", [*WORDS, path_word("output_dir", bench.folder / "servers")])


class Striking(WrappedSampler):
    """This wrapper of a sampler calls `strike` once, between the two halves of the first bucket that it loads."""

    def __init__(self, sampler: Sampler, strike: Callable[[], None]):
        super().__init__(sampler)
        self._strike, self._struck = strike, False

    def load_weights(self, bucket: Bucket) -> None:
        if self._struck:
            self._sampler.load_weights(bucket)
            return
        self._struck = True
        half = max(1, len(bucket) // 2)
        self._sampler.load_weights(bucket[:half])
        self._strike()
        self._sampler.load_weights(bucket[half:])


class Run:
    """A run samples from its servers, learns, and refreshes the servers, round by round."""

    def __init__(self, bench: Bench, sampler: ServerSampler):
        self.bench, self.sampler = bench, sampler
        self.rounds = 0
        self.completions = 0
        self._sync = bench.sync()

    def refresh(self, sampler: Any = None) -> int:
        """Refreshes the servers. Returns how many then hold the learner's weights by checksum, or 0 if any differ."""
        try:
            self._sync.refresh(self.bench.learner, sampler or self.sampler)
        except WeightSyncError:
            return 0
        return sum(server.alive for server in self.sampler.servers)

    def round(self, sampler: Any = None) -> int:
        """Samples, learns and refreshes. Returns how many servers then hold the learner's weights, see `refresh`."""
        groups = self.sampler.generate(Draw(self.bench.prompts(self.rounds), self.bench.size.group_size))
        self.completions += sum(len(group.completions) for group in groups)
        self.bench.learner.step(self.bench.batch(groups))
        self.rounds += 1
        return self.refresh(sampler)

    @property
    def missing(self) -> int:
        """Returns the number of completions that were asked for and did not come."""
        return self.rounds * self.bench.size.prompts * self.bench.size.group_size - self.completions


def losing(bench: Bench) -> Report:
    """Starts two servers, and measures how a run survives the loss of one of them."""
    start = time.perf_counter()
    learner = bench.learner
    sampler = ServerSampler(SamplerSettings.of(bench.config), bench.files, bench.device, learner.collective)
    report = lose(Run(bench, sampler), time.perf_counter() - start)
    for server in sampler.servers:
        server.process.stop()
    return report


def lose(run: Run, start_seconds: float) -> Report:
    """Kills the run's first server in the middle of a transfer, and runs rounds until the server is back or late."""
    num_right = run.refresh()
    seconds = run.bench.seconds(lambda: run.round())
    process = run.sampler.servers[0].process
    start = time.perf_counter()
    num_others = run.round(Striking(run.sampler, process.kill))
    round_seconds = time.perf_counter() - start
    limit_seconds = LATEST * start_seconds + GRACE_SECONDS
    num_back, rounds_before = 0, run.rounds
    while num_others and num_back < NUM_SERVERS and time.perf_counter() - start < limit_seconds:
        time.sleep(PAUSE_SECONDS)
        num_back = run.round()
    seconds_gone = time.perf_counter() - start
    rounds_meanwhile = run.rounds - rounds_before
    # Servers that came back also sample.
    at_the_end = run.round() if num_back else num_back
    return Report(
        [
            Fact("servers", "start of two servers", start_seconds, "s"),
            Fact("servers", "servers with the right weights", num_right, low=NUM_SERVERS),
            Fact("servers", "a round with both", seconds, "s"),
            Fact("servers", "a round that loses one", round_seconds, "s"),
            Fact("servers", "… with the right weights then", num_others, low=NUM_SERVERS - 1, high=NUM_SERVERS - 1),
            Fact("servers", "rounds until it is back", rounds_meanwhile, low=1),
            Fact("servers", "seconds until it is back", seconds_gone, "s", high=limit_seconds, failing=SLOW),
            Fact("servers", "… with the right weights at last", at_the_end, low=NUM_SERVERS),
            Fact("servers", "completions lost", run.missing, low=0, high=0),
        ]
    )
