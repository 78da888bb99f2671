"""This part checks that the sampler runs the learner's policy, by refreshes, checksums and a whole run."""

import shutil
import sys
from statistics import fmean, median
from typing import Any

import torch

from grpo.config.folder import METRICS_FILE
from grpo.config.memory_estimate import BYTES
from grpo.config.rewording import path_word
from grpo.interfaces import Bucket, Draw
from grpo.prove.bench import Bench
from grpo.prove.facts import LOOK, Fact, Report
from grpo.prove.own_process import exit_code
from grpo.rollout.checked_sampler import WrappedSampler
from grpo.telemetry.json_lines import read_metrics
from grpo.types import metrics as m
from grpo.weight_sync.refresh import WeightSyncError, in_float32

ROUNDS, WARM_UP = 4, 2
# Besides the refresh, a round may take this long for what is neither sampling nor learning.
LONGEST_REST_SECONDS = 1.0
# Limits in nats of the mean |sampler − learner| and of |mean of sampler − learner|, by precision. They are narrower
# than a run's, which hold for every model. Rounding has either sign, so it nearly cancels out in the second.
LARGEST_GAP = {"float32": 1e-3, "bfloat16": 5e-2}
LARGEST_SHIFT = {"float32": 5e-4, "bfloat16": 1e-2}


class Flipping(WrappedSampler):
    """This wrapper of a sampler flips one bit in the first bucket of weights that is loaded through it."""

    _flipped = False

    def load_weights(self, bucket: Bucket) -> None:
        spoiled_bucket = [(name, tensor.clone()) for name, tensor in bucket]
        if not self._flipped:
            spoiled_bucket[-1][1].view(torch.uint8).view(-1)[0] ^= 1
            self._flipped = True
        self._sampler.load_weights(spoiled_bucket)


def sync(bench: Bench) -> Report:
    """Times a checked refresh, tests that a flipped bit is noticed, and compares the sampler's log-probabilities with
    the learner's."""
    if needs := bench.lacking(steps=False):
        return Report([Fact("sync", "refresh, checked", None, needs=needs)])
    learner, sampler, config = bench.learner, bench.sampler, bench.config
    checked_sync = bench.sync()
    seconds = bench.seconds(lambda: checked_sync.refresh(learner, sampler))
    size = sum(tensor.numel() for bucket in learner.weight_buckets() for _, tensor in bucket)
    size *= BYTES[config.rollout.precision]
    was_noticed = 0.0
    try:
        checked_sync.refresh(learner, Flipping(sampler))
    except WeightSyncError:
        was_noticed = 1.0
    checked_sync.refresh(learner, sampler)
    groups = sampler.generate(Draw(bench.prompts(), 2))
    # The sampler sleeps as in a run, so that the learner has its memory.
    sampler.sleep()
    gaps = [
        sampler_logprob - learner_logprob
        for group, logprobs in zip(groups, learner.logprobs(groups), strict=True)
        for completion, learned in zip(group.completions, logprobs, strict=True)
        for sampler_logprob, learner_logprob in zip(completion.sampler_logprobs, learned.tolist(), strict=True)
    ]
    checked_sync.refresh(learner, sampler)
    rounding = "float32" if in_float32(config.learner, config.rollout) else "bfloat16"
    mean_gap, shift = fmean(map(abs, gaps)), abs(fmean(gaps))
    slowest, what = slowest_refresh(bench, size), f"refresh of {size / 2**20:,.0f} MiB, checked"
    facts = [
        Fact("sync", what, seconds, "s", high=slowest, failing=bench.slow),
        Fact("sync", "flipped bit noticed", was_noticed, low=1.0),
        Fact("sync", "mismatch of log-probabilities", mean_gap, "nats", high=LARGEST_GAP[rounding]),
        Fact("sync", "… of their mean", shift, "nats", high=LARGEST_SHIFT[rounding]),
    ]
    return Report(facts, {"refresh_seconds": seconds})


def slowest_refresh(bench: Bench, size: float) -> float:
    """Returns the seconds that a refresh of `size` bytes may take: one, and ten times as long as reading and writing
    them all."""
    return 1.0 + 20 * size / bench.bandwidth


def whole_round(bench: Bench) -> Report:
    """Measures a few rounds of `grpo train`. The run has its own engines, so the bench's must not have started yet. It
    is killed after its last round: at its end it would save all states, tens of gigabytes at a real size."""
    if needs := bench.lacking(steps=True):
        return Report([Fact("round", "rounds finished", None, needs=needs)])
    bench.build()
    output = bench.folder / "round"
    shutil.rmtree(output, ignore_errors=True)
    words = [*bench.words, f"num_steps={WARM_UP + ROUNDS}", path_word("output_dir", output)]
    metrics = output / METRICS_FILE

    def finished_rounds() -> list[dict[str, Any]]:
        return read_metrics(metrics) if metrics.exists() else []

    command = [sys.executable, "-m", "grpo.cli", "train", *words]
    exit_status = exit_code(command, enough=lambda: len(finished_rounds()) == WARM_UP + ROUNDS)
    rows = [] if exit_status else finished_rounds()
    rounds_finished = Fact("round", "rounds finished", len(rows), low=WARM_UP + ROUNDS)
    if not rows:
        return Report([rounds_finished])
    walls, *phases = (
        [row[m.phase_seconds(name)] for row in rows[WARM_UP:]] for name in ("round", "sample", "learn", "sync")
    )
    other_shares = [1 - (sampled + learned) / wall for wall, sampled, learned, _ in zip(walls, *phases, strict=True)]
    overhead = median(wall - sum(phase_seconds) for wall, *phase_seconds in zip(walls, *phases, strict=True))
    sleep_seconds = median(row.get(m.phase_seconds("sleep"), 0.0) for row in rows[WARM_UP:])
    highest = None
    if bench.device.type == "cuda":
        size = BYTES[bench.config.rollout.precision] * bench.shape.parameters
        highest = (slowest_refresh(bench, size) + LONGEST_REST_SECONDS) / median(walls)
        # Other processes measure on this GPU too.
        torch.cuda.empty_cache()
    facts = [
        rounds_finished,
        Fact("round", "seconds of a round", median(walls), "s"),
        Fact("round", "… without sampling, learning, refresh", overhead, "s"),
        Fact("round", "… of these sleeping and waking", sleep_seconds, "s"),
        Fact("round", "neither sampling nor learning", median(other_shares), high=highest, failing=LOOK),
    ]
    return Report(facts, {"round_overhead_seconds": max(0.0, overhead)})
