"""This module measures how fast learner and sampler are at the bench's size, and whether they fit into memory."""

from __future__ import annotations

from itertools import count

import torch

from grpo.algorithm.batches import BatchMaker
from grpo.config.estimate import memory_estimate
from grpo.prove.bench import Bench
from grpo.prove.facts import SLOW, Fact, Report
from grpo.run import preflight
from grpo.telemetry import peak_tflops
from grpo.types import Completion, RolloutGroup, RoundPlan

GIB = 2**30
# What is asked of a GPU: shares of its dense peak and of its memory's bandwidth.
LEAST_MFU, LEAST_ROOFLINE = 0.4, 0.6


def learner(bench: Bench) -> Report:
    """Takes optimizer steps on a round of made-up completions."""
    learning, config, size = bench.learner, bench.config, bench.size
    make = BatchMaker(config.normalization, config.objective, config.learner, learning.collective)
    plan = RoundPlan(size.group_size, 1, size.prompts)
    [batch] = make(learning.add_logprobs([bench.made_up()]), plan)
    on_gpu = bench.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    reports = []
    seconds = bench.seconds(lambda: reports.append(learning.step(batch)))
    speed = sum(len(micro.token_ids) for micro in batch.micro_batches) / seconds
    facts = [
        Fact("learner", "gradient norm", reports[-1].gradient_norm, low=1e-12, high=1e6),
        Fact("learner", "packed tokens", speed, "tokens/s"),
        Fact("learner", "arithmetic", reports[-1].flops / seconds / 1e12, "TFLOP/s"),
    ]
    if peak := peak_tflops(bench.device):
        mfu = reports[-1].flops / seconds / 1e12 / peak
        facts.append(Fact("learner", "share of the dense peak (MFU)", mfu, low=LEAST_MFU, failing=SLOW))
    if on_gpu:
        shape = preflight.model_shape(bench.path)
        estimated = memory_estimate(config, shape, 1, preflight.device_gib(config))[-1][2]
        taken = torch.cuda.max_memory_allocated() / GIB
        facts.append(Fact("learner", f"peak memory ÷ estimate of {estimated:.1f} GiB", taken / estimated, high=1.1))
    return Report(facts, {"learning_tokens_per_second": speed})


def sampler(bench: Bench) -> Report:
    """Samples a round and parts of one, and holds the round against the time that reading weights and cache takes."""
    size, facts, speeds = bench.size, [], []
    for num_prompts in sorted({1, max(1, size.prompts // 4), size.prompts}):
        seconds, completions = _sampled(bench, num_prompts)
        tokens = sum(len(completion.token_ids) for completion in completions)
        speeds.append((len(completions), tokens / seconds))
        facts.append(Fact("sampler", f"tokens, {len(completions):,} completions at once", tokens / seconds, "tokens/s"))
    shape = preflight.model_shape(bench.path)
    number = {"bfloat16": 2, "float32": 4}[bench.config.rollout.precision]
    length = size.prompt_tokens + tokens / len(completions) / 2
    cache = 2 * shape.layers * shape.key_value_width * number * length * len(completions)
    steps = max(len(completion.token_ids) for completion in completions)
    least = steps * (shape.parameters * number + cache) / bench.bandwidth
    on_gpu = bench.device.type == "cuda"
    facts += [
        Fact("sampler", "memory bandwidth of a copy", bench.bandwidth / 1e9, "GB/s"),
        Fact("sampler", "share of the roofline", least / seconds, low=LEAST_ROOFLINE if on_gpu else None, failing=SLOW),
    ]
    return Report(facts + (_sleep(bench) if on_gpu else []), {"sampling_tokens_per_second": speeds})


def _sampled(bench: Bench, num_prompts: int) -> tuple[float, list[Completion]]:
    """Returns the seconds for the groups of so many prompts, and their completions."""
    # Anew each time: what a prompt has left in the engine's cache would be read, not computed.
    asked = (bench.prompts(seed)[:num_prompts] for seed in count())
    made: list[list[RolloutGroup]] = []
    seconds = bench.seconds(lambda: made.append(bench.sampler.generate(next(asked), bench.size.group_size)))
    return seconds, [completion for group in made[-1] for completion in group.completions]


def _sleep(bench: Bench) -> list[Fact]:
    before = torch.cuda.mem_get_info(bench.device)[0]
    bench.sampler.sleep()
    freed = torch.cuda.mem_get_info(bench.device)[0] - before
    total = torch.cuda.mem_get_info(bench.device)[1]
    # All but graphs and what was there before weights and cache.
    least = 0.7 * bench.config.rollout.gpu_memory_fraction * total / GIB
    return [Fact("sampler", "memory that sleep frees", freed / GIB, "GiB", low=least)]
