"""This program prints the verdicts of `grpo.prove.exchange.sync` and `grpo.prove.link`: unchanged, over a slow link,
with a comparison that sees nothing, and with a flipped bit.

It is a process of its own, because DeepSpeed keeps its process groups for good. Usage: python -m
tests.prove.sync_worker FOLDER
"""

import json
import sys
import time
from pathlib import Path
from unittest import mock

from grpo.host import environment

environment.prepare()

from grpo.prove import exchange, link
from grpo.prove.bench import Bench
from grpo.weight_sync import refresh
from grpo.weight_sync.channel import Channel


def main(folder: str) -> None:
    bench = Bench("tiny", Path(folder), [], device="cpu")
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
