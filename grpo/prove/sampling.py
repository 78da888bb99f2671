"""This module measures the sampler's speed at the bench's size, and the memory that its sleep frees."""

import sys
import time
from dataclasses import replace
from itertools import count

import torch

from grpo.config.memory_estimate import BYTES, ModelShape
from grpo.interfaces import Draw
from grpo.prove.bench import GIB, Bench
from grpo.prove.facts import LOOK, Fact, Report
from grpo.prove.own_process import measured_apart
from grpo.prove.roofline import ENOUGH
from grpo.types import Completion

# Sleeping and waking only map memory.
LONGEST_SLEEP_SECONDS = 5.0
# The tokens of each completion of the warm-up.
WARM_UP_TOKENS = 32
# The steps of decoding that are watched, after these first ones.
WATCHED, FIRST = 50, 10
# Each call asks other prompts, because the engine's cache would hold those that it has seen.
_seeds = count(1)


def without_graphs(bench: Bench) -> Report:
    """Measures sampling without CUDA graphs and torch.compile in a process of its own, if the device is a GPU."""
    if bench.device.type != "cuda":
        return Report([Fact("sampler", "without CUDA graphs", None, needs="needs a GPU")])
    report = measured_apart(bench, "sampler", "sampler", "without CUDA graphs", ["rollout.enforce_eager=true"])
    # The speed is kept, which shows what graphs are worth. Other facts are kept only if they are missing or must be 0.
    return Report([fact for fact in report.facts if fact.unit == "tokens/s" or fact.measured is None or fact.high == 0])


def sampler(bench: Bench) -> Report:
    """Measures sampling of a round and of parts of one, and compares the round with the roofline: the seconds that
    reading weights and KV cache takes."""
    if needs := bench.lacking(steps=False):
        return Report([Fact("sampler", "tokens at once", None, needs=needs)])
    size, facts, speeds = bench.size, [], []
    for num_prompts in sorted({1, max(1, size.prompts // 4), size.prompts}):
        seconds, completions = _sampled(bench, num_prompts)
        tokens = sum(len(completion.token_ids) for completion in completions)
        speeds.append((len(completions), tokens / seconds))
        facts.append(Fact("sampler", f"{len(completions):,} completions at once", tokens / seconds, "tokens/s"))
    shape = bench.shape
    number = BYTES[bench.config.rollout.precision]
    length = size.prompt_tokens + tokens / len(completions) / 2
    steps = max(len(completion.token_ids) for completion in completions)
    least = steps * step_bytes(shape, number, len(completions), length) / bench.bandwidth
    on_gpu = bench.device.type == "cuda"
    longest = size.prompt_tokens + size.completion_tokens
    host_seconds, waiting = _decoding(bench)
    # The engine's process works while the GPU does, so that the longer of the two decides.
    lowest = ENOUGH * least / max(least, steps * host_seconds) if on_gpu else None
    facts += [
        Fact("sampler", "memory bandwidth of a copy", bench.bandwidth / 1e9, "GB/s"),
        Fact("sampler", "share of the roofline", least / seconds, low=lowest, failing=LOOK),
        Fact("sampler", "processor time of a step", 1e3 * host_seconds, "ms"),
    ]
    if waiting is not None:
        facts.append(Fact("sampler", "share of waiting for the host", waiting))
    basis = {
        "completions": len(completions),
        "completion_tokens": tokens,
        "sampler_weights_gib": shape.parameters * number / GIB,
        "cache_gib": 2 * shape.layers * shape.key_value_width * number * longest * len(completions) / GIB,
    }
    sleep_facts = _sleep(bench) if on_gpu else [Fact("sampler", "memory that sleep frees", None, needs="needs a GPU")]
    return Report(facts + sleep_facts, {"sampling_tokens_per_second": speeds}, basis)


def step_bytes(shape: ModelShape, number: int, completions: int, length: float, tied: bool = False) -> float:
    """Returns the bytes that a step of decoding reads: all weights, and the cache of completions of `length` tokens. A
    number takes `number` bytes. An input embedding that is not `tied` to the output layer is read in some rows only.

    >>> shape = ModelShape(1000, 2, 8, 16, 50, 8, 4)
    >>> step_bytes(shape, 2, 3, 10.0) == 2 * (1000 - 50 * 8) + 3 * 10 * (2 * 2 * 4 * 2)
    True
    """
    looked_up = 0 if tied else shape.vocabulary * shape.width
    cache = 2 * shape.layers * shape.key_value_width * length * completions
    return number * (shape.parameters - looked_up + cache)


def _sampled(bench: Bench, num_prompts: int) -> tuple[float, list[Completion]]:
    """Returns the seconds to sample the groups of `num_prompts` prompts, and their completions.

    The warm-up samples only `WARM_UP_TOKENS` of each completion: at a real size whole completions take a minute, and
    differ little in time.
    """
    _generate(bench, num_prompts, WARM_UP_TOKENS)
    start = time.perf_counter()
    completions = _generate(bench, num_prompts)
    return time.perf_counter() - start, completions


def _generate(bench: Bench, num_prompts: int, tokens: int = sys.maxsize) -> list[Completion]:
    """Samples the groups of `num_prompts` prompts, at most `tokens` of each completion."""
    sampling = bench.config.rollout.sampling
    sampling = replace(sampling, max_tokens=min(tokens, sampling.max_tokens))
    draw = Draw(bench.prompts(next(_seeds))[:num_prompts], bench.size.group_size, sampling)
    return [completion for group in bench.sampler.generate(draw) for completion in group.completions]


def _decoding(bench: Bench) -> tuple[float, float | None]:
    """Returns the processor seconds of the engine in a step of decoding, and the share of the step in which no kernel
    runs, or None on a CPU.

    They are differences between calls for `FIRST` + `WATCHED` tokens and for `FIRST`, so prompts do not count.
    """
    on_gpu = bench.device.type == "cuda"

    def processor() -> float:
        """Returns the processor seconds of the process that takes the engine's steps, which is this one on a CPU."""
        return _longest(bench, "processor_seconds") if on_gpu else time.thread_time()

    def taken(tokens: int) -> tuple[int, float, float]:
        start, own = time.perf_counter(), processor()
        completions = _generate(bench, bench.size.prompts, tokens)
        seconds = time.perf_counter() - start, processor() - own
        return max(len(completion.token_ids) for completion in completions), *seconds

    def busy(tokens: int) -> float:
        bench.sampler.ask_workers("watch_kernels")
        _generate(bench, bench.size.prompts, tokens)
        return _longest(bench, "watch_kernels")

    before, after = taken(FIRST), taken(FIRST + WATCHED)
    steps, seconds, own_seconds = (late - early for early, late in zip(before, after, strict=True))
    own_seconds /= max(1, steps)
    if not on_gpu:
        return own_seconds, None
    return own_seconds, max(0.0, 1 - (busy(FIRST + WATCHED) - busy(FIRST)) / seconds)


def _longest(bench: Bench, method: str) -> float:
    return max(worker["seconds"] for worker in bench.sampler.ask_workers(method))


def _sleep(bench: Bench) -> list[Fact]:
    # Weights that no refresh has sent are copied to main memory by the first sleep, as no later one does.
    bench.sync().refresh(bench.learner, bench.sampler)
    free_before, total = torch.cuda.mem_get_info(bench.device)
    start = time.perf_counter()
    bench.sampler.sleep()
    seconds = time.perf_counter() - start
    freed_bytes = torch.cuda.mem_get_info(bench.device)[0] - free_before
    # Sleep must free this much. CUDA graphs stay, and so does what was there before weights and cache.
    least = 0.7 * bench.config.rollout.gpu_memory_fraction * total / GIB
    return [
        Fact("sampler", "memory that sleep frees", freed_bytes / GIB, "GiB", low=least),
        Fact("sampler", "going to sleep", seconds, "s", high=LONGEST_SLEEP_SECONDS, failing=LOOK),
    ]
