"""This program prints the verdicts of `grpo.prove.exchange.sync`, `grpo.prove.link` and `grpo.prove.computation.step`:
unchanged, over a slow link, with a comparison that sees nothing, with a flipped bit, with log-probabilities that are
a little too low, and with gradients that are too large by a twentieth.

It is a process of its own, because DeepSpeed keeps its process groups for good. Usage: python -m
tests.prove.sync_worker FOLDER
"""

import dataclasses
import json
import sys
import time
from pathlib import Path
from unittest import mock

from grpo.host import environment

environment.prepare()

from grpo.prove import computation, exchange, link
from grpo.prove.bench import Bench
from grpo.weight_sync import refresh
from grpo.weight_sync.channel import Channel
from grpo.weight_sync.refresh import in_float32


def main(folder: str) -> None:
    bench = Bench("tiny", Path(folder), list(computation.PLAIN_LOSS), device="cpu")
    sampler = type(bench.sampler)
    load = sampler.load_weights

    def over_a_slow_link(self, bucket):
        time.sleep(1.5)
        load(self, bucket)

    verdicts_of = {"": verdicts(bench)}
    with mock.patch.object(sampler, "load_weights", over_a_slow_link):
        verdicts_of["slow link"] = verdicts(bench)
    with mock.patch.object(refresh, "differing", lambda ours, theirs: []):
        verdicts_of["blind comparison"] = verdicts(bench)
    completed = sampler._completion
    # Rounding may explain a gap of this size, but not that all log-probabilities are too low. Processors differ in what
    # they compute fast.
    shift = (
        1.5
        * exchange.LARGEST_SHIFT["float32" if in_float32(bench.config.learner, bench.config.rollout) else "bfloat16"]
    )

    def too_low(self, output):
        completion = completed(self, output)
        return dataclasses.replace(completion, sampler_logprobs=tuple(x - shift for x in completion.sampler_logprobs))

    with mock.patch.object(sampler, "_completion", too_low):
        verdicts_of["too low"] = verdicts(bench)
    verdicts_of["step"] = verdicts(bench, computation.step)
    engine = type(bench.learner.engine)
    backward = engine.backward

    def too_large(self, loss, **options):
        return backward(self, 1.05 * loss, **options)

    with mock.patch.object(engine, "backward", too_large):
        verdicts_of["large gradients"] = verdicts(bench, computation.step)
    verdicts_of["channel"] = verdicts(bench, link.channel)
    send = Channel.send

    def over_a_slow_channel(self, buffer):
        time.sleep(len(buffer) / (link.LEAST_OF_CPU * bench.bandwidth))
        send(self, buffer)

    def flipped(self, buffer):
        buffer[0] ^= 1
        send(self, buffer)

    with mock.patch.object(Channel, "send", over_a_slow_channel):
        verdicts_of["slow channel"] = verdicts(bench, link.channel)
    with mock.patch.object(Channel, "send", flipped):
        verdicts_of["flipped bit"] = verdicts(bench, link.channel)
    print(json.dumps(verdicts_of))


def verdicts(bench: Bench, measure=exchange.sync) -> dict[str, str]:
    return {fact.what.partition(" (")[0]: fact.verdict for fact in measure(bench).facts}


if __name__ == "__main__":
    main(sys.argv[1])
