"""This part checks that the servers' weight channel delivers weights unchanged, and how near its speed is to a copy."""

import json
import subprocess
import sys
from collections import Counter
from dataclasses import asdict

import torch

from grpo.host.network import LOOPBACK
from grpo.prove.bench import Bench
from grpo.prove.facts import Fact, Report
from grpo.prove.far_end import SECONDS, TIMES
from grpo.weight_sync.channel import Host, manifest_of, open_end, packed
from grpo.weight_sync.checksum import checksums, differing

# The bucket has this many bytes on GPUs, and on a CPU.
GPU_BYTES, CPU_BYTES = 2**29, 2**25
# The channel must reach this share of a copy's bandwidth: from GPU to GPU, and in main memory, where a socket between
# two processes copies each byte several times.
LEAST_OF_GPUS, LEAST_OF_CPU = 0.5, 0.003


def channel(bench: Bench) -> Report:
    """Sends a bucket of weights to another process several times: by NCCL to another GPU, or by gloo on a CPU."""
    on_gpu, facts = bench.device.type == "cuda", []
    if not on_gpu or torch.cuda.device_count() < 2:
        facts.append(Fact("sync", "channel by NCCL", None, needs="needs two GPUs"))
    if on_gpu and torch.cuda.device_count() < 2:
        return Report(facts)
    other_device = torch.device("cuda", 1) if on_gpu else bench.device
    rate, least = (
        (_copy_between_gpus(bench, other_device), LEAST_OF_GPUS) if on_gpu else (bench.bandwidth, LEAST_OF_CPU)
    )
    speed, num_arrived = _sent(bench, other_device)
    way = "channel by NCCL" if on_gpu else "channel by gloo"
    what = f"{way} (a copy: {rate / 1e9:.3g})"
    return Report(
        [
            *facts,
            Fact("sync", what, speed / 1e9, "GB/s", low=least * rate / 1e9, failing=bench.slow),
            Fact("sync", f"{way}: buckets as sent", num_arrived, low=TIMES),
        ]
    )


def _copy_between_gpus(bench: Bench, other: torch.device) -> float:
    """Returns the bytes per second of a copy from one GPU to the other."""
    source = torch.ones(GPU_BYTES, dtype=torch.uint8, device=bench.device)
    target = torch.empty_like(source, device=other)
    return GPU_BYTES / bench.seconds(lambda: target.copy_(source))


def _sent(bench: Bench, other: torch.device) -> tuple[float, int]:
    """Returns the bytes per second of the channel, and how many buckets arrived unchanged; zeros if the other end is
    lost."""
    numbers = (GPU_BYTES if bench.device.type == "cuda" else CPU_BYTES) // 2
    bucket = [("weights", torch.randn(1024, numbers // 1024, device=bench.device).bfloat16())]
    place = Host(LOOPBACK, 2, SECONDS)
    meeting_and_manifest = json.dumps([asdict(place.meeting), asdict(manifest_of(bucket))])
    command = [sys.executable, "-m", "grpo.prove.far_end", str(other), meeting_and_manifest]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        end = open_end(place.store, LOOPBACK, 0, 2, bench.device, SECONDS)
        buffer, our_checksums = packed(bucket, bench.device), checksums(bucket)
        seconds = bench.seconds(lambda: end.send(buffer), TIMES - 1)
        answers, _ = process.communicate(timeout=SECONDS)
        end.close()
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        print(f"the other end of a weight channel was lost: {error}", file=sys.stderr)
        return 0.0, 0
    finally:
        process.kill()
        place.close()
    their_checksums = [Counter(json.loads(line)) for line in answers.splitlines()]
    return len(buffer) / seconds, sum(not differing(our_checksums, received) for received in their_checksums)
