"""This module compares the memory that a run asks for with the memory that this machine has."""

from __future__ import annotations

from pathlib import Path

import psutil
import torch

from grpo.config import TrainConfig
from grpo.config.memory_estimate import ModelShape, certain_memory, engine_weights, offloaded_bytes
from grpo.host import ranks

GIB_ELSEWHERE = 80.0
"""A GPU that this machine lacks is taken to have this many GiB."""
# A container may use this many bytes of its machine's memory, or "max".
CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")


def too_much_memory(config: TrainConfig, shape: ModelShape, world_size: int, local: int) -> str:
    """Returns a line that says what is asked and what is there if learner and sampler alone need more memory than this
    machine has, or else "". `local` is the number of ranks on a machine."""
    if gib := device_gib(config):
        kept = offloaded_bytes(config, shape, world_size) / 2**30
        asked = (
            f"the learner's weights, gradients and optimizer take {kept:,.1f} GiB of each GPU, which has {gib:,.1f}: "
            "use more ranks with learner.zero_stage=3, learner.offload_optimizer=true, model.lora.rank, or a smaller "
            "model"
        )
        return asked if kept > gib else ""
    learner, sampler = certain_memory(config, shape, world_size, local)
    there = main_memory_gib()
    asked = (
        f"this run asks for {learner + sampler:,.1f} GiB of main memory (learner {learner:,.1f}, sampler "
        f"{sampler:,.1f}), and this machine has {there:,.1f}: lower "
        f"rollout.kv_cache_gib={config.rollout.kv_cache_gib:g} or the number of ranks or servers, or use a smaller "
        "model"
    )
    return asked if learner + sampler > there else ""


def main_memory_gib() -> float:
    """Returns the main memory of this machine in GiB, or what a container may use of it."""
    total = psutil.virtual_memory().total
    limit = CONTAINER_LIMIT.read_text().strip() if CONTAINER_LIMIT.exists() else "max"
    return min(total, int(limit) if limit.isdecimal() else total) / 2**30


def too_small_a_share(config: TrainConfig, shape: ModelShape) -> str:
    """Returns a warning if vLLM's share of a GPU, in the learner's process, is smaller than its weights, or else ""."""
    gib, fraction = device_gib(config), config.rollout.gpu_memory_fraction
    weights = engine_weights(config, shape) / 2**30
    if config.rollout.engine != "vllm" or not gib or weights < fraction * gib:
        return ""
    return (
        f"rollout.gpu_memory_fraction={fraction:g} is {fraction * gib:.1f} GiB of a GPU, and the sampler's weights "
        f"alone take {weights:.1f}: raise it (up to 0.85 with learner.offload_states=true), or let several ranks "
        "share an engine by rollout.tensor_parallel"
    )


def device_gib(config: TrainConfig) -> float:
    """Returns the size of this rank's GPU in GiB: 0 for a run on CPUs, `GIB_ELSEWHERE` if this machine has no GPU."""
    if not ranks.on_gpu(config):
        return 0.0
    return torch.cuda.mem_get_info()[1] / 2**30 if torch.cuda.is_available() else GIB_ELSEWHERE


def available_gib(config: TrainConfig) -> float:
    """Returns the free memory of this rank's device in GiB, or `GIB_ELSEWHERE` for a GPU that this machine lacks."""
    if ranks.on_gpu(config):
        return torch.cuda.mem_get_info()[0] / 2**30 if torch.cuda.is_available() else GIB_ELSEWHERE
    return psutil.virtual_memory().available / 2**30
