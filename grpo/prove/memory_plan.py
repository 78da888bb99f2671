"""This module fits a proof into a GPU's free memory, before any engine starts there.

A proof that needs more would end in the middle with a CUDA error. The learner's rows are shortened where that
suffices, unless their length was given. Otherwise the part is skipped, and its line says how much memory it needs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from grpo.config import TrainConfig
from grpo.config.memory_estimate import GIB, ModelShape, memory_estimate

ROWS = "learner.micro_batch_tokens"
OFFLOAD = "learner.offload_optimizer=true"


@dataclass(frozen=True, slots=True)
class Room:
    """A room is one GPU's memory in GiB: the total, and what is free."""

    gpu_gib: float
    free_gib: float


def refreshing_gib(config: TrainConfig, shape: ModelShape, num_ranks: int, gpu_gib: float) -> float:
    """Returns the GiB of a rank that samples and sends weights but takes no step. Before the first step AdamW lacks its
    two moments, of four bytes a parameter each."""
    sampling = memory_estimate(config, shape, num_ranks, gpu_gib)[-1][1]
    is_offloaded = config.learner.offload_optimizer or config.learner.offload_states
    return sampling - (0.0 if is_offloaded else 8 * shape.parameters / num_ranks / GIB)


def fitting_rows(config: TrainConfig, shape: ModelShape, num_ranks: int, room: Room) -> int | None:
    """Returns the row length in tokens with which learning fits: the configured one, halved until it fits. Returns None
    if no row that can hold the longest sequence fits."""
    tokens = config.learner.micro_batch_tokens
    while tokens >= config.model.max_length:
        shorter = replace(config, learner=replace(config.learner, micro_batch_tokens=tokens))
        if memory_estimate(shorter, shape, num_ranks, room.gpu_gib)[-1][2] <= room.free_gib:
            return tokens
        tokens //= 2
    return None


def lacking(config: TrainConfig, shape: ModelShape, room: Room, steps: bool) -> str:
    """Returns "" if one rank that samples and learns in turn fits into its GPU, else a message with the memory that it
    needs and what to try. Without `steps` the rank takes no optimizer steps: it samples and sends weights."""

    def needed(chosen: TrainConfig) -> float:
        if not steps:
            return refreshing_gib(chosen, shape, 1, room.gpu_gib)
        return max(memory_estimate(chosen, shape, 1, room.gpu_gib)[-1][1:])

    if needed(config) <= room.free_gib:
        return ""
    lighter = replace(config, learner=replace(config.learner, offload_optimizer=True))
    # With the optimizer offloaded there is room for other rows.
    rows = fitting_rows(lighter, shape, 1, room) or 0
    lighter.learner.micro_batch_tokens = rows
    fits = needed(lighter) <= room.free_gib and (rows or not steps)
    advice = OFFLOAD if fits else "a smaller size"
    return f"needs {needed(config):.0f} GiB of a GPU, of which {room.free_gib:.0f} are free: try {advice}"
