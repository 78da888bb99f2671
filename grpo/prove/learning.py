"""This module measures the speed and memory of optimizer steps, with each way to save memory (ZeRO, offloading, …)."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from grpo.config.memory_estimate import RUNTIME_GIB, memory_estimate
from grpo.host import device_memory, kernels
from grpo.prove.bench import Bench, allocated_gib, config_of, peak_gib, peak_of_tensors_gib, reset_peak
from grpo.prove.facts import LOOK, WRONG, Fact, Report
from grpo.prove.own_process import measured_apart
from grpo.prove.roofline import ENOUGH, Speeds, count, policy_of
from grpo.prove.sizes import WAYS
from grpo.telemetry.hardware import peak_tflops
from grpo.types import Batch

NORM = "gradient norm"
# A learner's tensors may take this multiple of the estimated memory, by the kind of device. The verdict on more stands
# beside it. On a CPU some copies live for a moment longer.
HIGHEST_MEMORY = {"cuda": (1.2, LOOK), "cpu": (1.25, WRONG)}
# Gradient norms of two ways differ by rounding, because sums are taken in another order.
NORM_BOUNDS = {"float32": 1e-4, "bfloat16": 2e-2}
# Longer rows bring no speed. At most `MOST_LENGTHS` lengths are tried.
LONGEST_ROW, MOST_LENGTHS = 2**16, 5
# The number of micro-batches in which the wait for the host is measured.
WATCHED = 8


def learner(bench: Bench, ways: Sequence[str] = tuple(WAYS)) -> Iterator[Report]:
    """Yields a report of each of `ways`, measured in processes of its own on all GPUs of this machine. The gradient
    norm of each is compared with the first one's."""
    num_ranks = max(1, torch.cuda.device_count()) if bench.device.type == "cuda" else 1
    first = math.nan
    if bench.device.type != "cuda":
        yield Report([Fact("learner", "share of the peak, and of waiting for the host", None, needs="needs a GPU")])
    for way, words in WAYS.items():
        if way not in ways:
            continue
        if needs := _lacking(bench, words, num_ranks):
            yield Report([Fact("learner", f"{way}: packed tokens", None, needs=needs)])
            continue
        # The first way also says how long rows should be.
        measures = "learning,rows" if math.isnan(first) else "learning"
        report = measured_apart(bench, measures, "learner", way, words, num_ranks)
        norm = next((fact.measured for fact in report.facts if fact.what == f"{way}: {NORM}" and fact.measured), None)
        if norm and not math.isnan(first):
            bound = NORM_BOUNDS[bench.config.learner.precision]
            off = Fact("learner", f"{way}: norm off by", abs(norm / first - 1), high=bound)
            # The machine's constants come from the first way, which is the learner as configured. So they are left out
            # here.
            report = Report([off if fact.what == f"{way}: {NORM}" else fact for fact in report.facts])
        elif norm:
            first = norm
        yield report


def _lacking(bench: Bench, words: Sequence[str], num_ranks: int) -> str:
    """Returns a message if the GPUs have too little free memory for a learner with the overrides `words`, else ""."""
    if bench.device.type != "cuda":
        return ""
    other_bench = Bench(bench.size_name, bench.folder, [*bench.overrides, *words])
    needed_gib, free_gib = estimated_gib(other_bench, num_ranks) + RUNTIME_GIB, other_bench.room.free_gib
    return f"needs {needed_gib:.0f} GiB of a GPU, of which {free_gib:.0f} are free" if needed_gib > free_gib else ""


def estimated_gib(bench: Bench, num_ranks: int) -> float:
    """Returns the estimated GiB of a learner's tensors, without a sampler and without CUDA's own memory."""
    config = replace(bench.config, rollout=replace(bench.config.rollout, engine="vllm_server"))
    gib = device_memory.device_gib(config.device)
    estimate = memory_estimate(config, bench.shape, num_ranks, gib)[-1][2]
    return estimate - (RUNTIME_GIB if gib else 0.0)


def learning(bench: Bench) -> Report:
    """Measures speed and memory of optimizer steps on a round of made-up completions. Collective."""
    bench.build()
    device, reports = bench.device, []
    allocated_before = allocated_gib(device)
    device_gib = (
        device_memory.device_gib(bench.config.device)
        or device_memory.available_gib(bench.config.device) + allocated_before
    )

    def two_steps() -> None:
        """Takes two steps, because the second one comes with the optimizer's moments."""
        batch = bench.batch(bench.made_up())
        reset_peak(device)
        reports.extend(bench.learner.step(batch) for _ in range(2))

    peak_memory, at_rest = peak_of_tensors_gib(two_steps, device), allocated_gib(device)
    engine, batch = bench.learner, bench.batch(bench.made_up())
    own_tokens = sum(len(micro.token_ids) for micro in batch.micro_batches)
    [tokens] = engine.collective.sum([own_tokens])
    seconds = bench.seconds(lambda: reports.append(engine.step(batch)), 2)
    num_ranks, peak = engine.collective.world_size, peak_tflops(device)
    tflops = reports[-1].flops / seconds / 1e12 / num_ranks
    estimate = estimated_gib(bench, num_ranks)
    facts = [
        Fact("learner", NORM, reports[0].gradient_norm, low=1e-12, high=1e6),
        Fact("learner", "packed tokens", tokens / seconds, "tokens/s"),
    ]
    on_gpu = device.type == "cuda"
    if peak:
        least = least_mfu(bench, batch, 1e12 * peak)
        facts.append(Fact("learner", "share of the peak (MFU)", tflops / peak, low=least, failing=LOOK))
    else:
        facts.append(Fact("learner", "arithmetic", tflops, "TFLOP/s"))
    if on_gpu:
        facts.append(Fact("learner", "share of waiting for the host", _waiting(bench, batch)))
    # On a CPU what is offloaded is in the same memory, which the estimate leaves out.
    offloaded = bench.config.learner.offload_optimizer and not on_gpu
    multiple, failing = HIGHEST_MEMORY[device.type]
    highest = None if offloaded else multiple * estimate
    what = f"peak memory (est. {estimate:.2g})"
    facts.append(Fact("learner", what, peak_memory, "GiB", high=highest, failing=failing))
    basis = {
        "gpus": torch.cuda.device_count() if on_gpu else 0,
        "device_gib": device_gib,
        "at_rest_gib": at_rest,
        "packed_tokens": tokens,
        "checkpointing": bench.config.learner.gradient_checkpointing,
        "logit_chunk": bench.config.learner.logit_chunk_tokens,
        "vocabulary": bench.shape.vocabulary,
    }
    return Report(facts, {"learning_tokens_per_second": tokens / seconds / num_ranks}, basis)


def least_mfu(bench: Bench, batch: Batch, peak: float) -> float | None:
    """Returns the least MFU that a GPU of `peak` operations a second must reach, by the count of the first row. Returns
    None where no row alone decides, because the host takes the steps, and for what is not counted."""
    config = bench.config
    learner = config.learner
    uncounted = config.model.lora.rank or learner.sequence_parallel > 1 or learner.precision != "bfloat16"
    if learner.offload_optimizer or uncounted:
        return None
    policy = policy_of(config_of(bench.size.shape), learner)
    return ENOUGH * count(policy, batch.micro_batches[0], Speeds(peak, bench.bandwidth)).mfu


def rows(bench: Bench) -> Report:
    """Measures speed and peak memory of the same step at several row lengths (learner.micro_batch_tokens).
    Collective."""
    size, device, engine = bench.size, bench.device, bench.learner
    step_tokens = size.prompts * (size.prompt_tokens + size.group_size * size.completion_tokens)
    longest_sequence = size.prompt_tokens + size.completion_tokens
    lengths = [2**power for power in range(6, 17) if longest_sequence <= 2**power <= min(LONGEST_ROW, 2 * step_tokens)]
    facts, measured_rows = [], []
    for tokens in lengths[-MOST_LENGTHS:]:
        if device.type == "cuda" and _row_gib(bench, tokens) > device_memory.device_gib(bench.config.device):
            break
        batch = bench.batch(bench.made_up(), tokens)
        [num_tokens] = engine.collective.sum([sum(len(micro.token_ids) for micro in batch.micro_batches)])
        reset_peak(device)
        try:
            speed = num_tokens / bench.seconds(lambda batch=batch: engine.step(batch), 1)
        except torch.OutOfMemoryError:
            # Longer rows take more still.
            break
        facts.append(Fact("learner", f"in rows of {tokens:,}", speed, "tokens/s"))
        measured_rows.append((tokens, speed, peak_gib(device)))
    return Report(facts, basis={"rows": measured_rows})


def _row_gib(bench: Bench, tokens: int) -> float:
    words = [*bench.overrides, f"learner.micro_batch_tokens={tokens}"]
    return estimated_gib(Bench(bench.size_name, bench.folder, words), bench.learner.collective.world_size) + RUNTIME_GIB


def _waiting(bench: Bench, batch: Batch) -> float:
    """Returns the share of a step in which no kernel runs. Only the first `WATCHED` micro-batches are profiled, because
    the profiler would take longer to read the events of all of them than the step takes."""
    watched_batch = replace(batch, micro_batches=batch.micro_batches[:WATCHED])
    seconds = bench.seconds(lambda: bench.learner.step(watched_batch), 1)
    profiler = kernels.watched()
    bench.learner.step(watched_batch)
    return max(0.0, 1 - kernels.busy_seconds(profiler) / seconds)
