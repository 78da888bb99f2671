"""Prints what `grpo.prove.exchange.sync` finds: as it is, over a slow link, and with a comparison that sees nothing.

Usage: python -m tests.prove.sync_worker FOLDER. It is a process of its own, for DeepSpeed keeps its groups for good.
"""

import json
import sys
import time
from pathlib import Path
from unittest import mock

from grpo.host import environment

environment.prepare()

from grpo.prove import exchange
from grpo.prove.bench import Bench
from grpo.weight_sync import refresh


def main(folder: str) -> None:
    bench = Bench("tiny", Path(folder), [], device="cpu")
    sampler = type(bench.sampler)
    load = sampler.load_weights

    def over_a_slow_link(self, bucket):
        time.sleep(1.5)
        load(self, bucket)

    found = {"": verdicts(bench)}
    with mock.patch.object(sampler, "load_weights", over_a_slow_link):
        found["slow link"] = verdicts(bench)
    with mock.patch.object(refresh, "differing", lambda ours, theirs: []):
        found["blind comparison"] = verdicts(bench)
    print(json.dumps(found))


def verdicts(bench: Bench) -> dict[str, str]:
    return {fact.what: fact.verdict for fact in exchange.sync(bench).facts}


if __name__ == "__main__":
    main(sys.argv[1])
