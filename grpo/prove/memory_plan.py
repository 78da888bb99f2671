"""This module fits a proof into what is free of a GPU, before any engine starts there.

A proof that needs more would end in the middle, with an error of CUDA. Rows of the learner are shortened where that
suffices, unless their length was given. Otherwise the part is skipped, and its line says what it would take.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from grpo.config import TrainConfig
from grpo.config.memory_estimate import GIB, ModelShape, memory_estimate

ROWS = "learner.micro_batch_tokens"
OFFLOAD = "learner.offload_optimizer=true"


@dataclass(frozen=True, slots=True)
class Room:
    """Room is the memory of one of a machine's GPUs in GiB: all of it, and what is free."""

    gpu_gib: float
    free_gib: float


def refreshing_gib(config: TrainConfig, shape: ModelShape, num_ranks: int, gpu_gib: float) -> float:
    """Returns the GiB of a rank that samples and sends weights, but takes no step. AdamW makes its two moments in the
    first step, of four bytes a parameter each."""
    sampling = memory_estimate(config, shape, num_ranks, gpu_gib)[-1][1]
    elsewhere = config.learner.offload_optimizer or config.learner.offload_states
    return sampling - (0.0 if elsewhere else 8 * shape.parameters / num_ranks / GIB)


def fitting_rows(config: TrainConfig, shape: ModelShape, num_ranks: int, room: Room) -> int | None:
    """Returns the length of rows with which learning fits: the configured one, halved as often as that takes. A row
    holds the longest sequence. None: learning does not fit."""
    tokens = config.learner.micro_batch_tokens
    while tokens >= config.model.max_length:
        shorter = replace(config, learner=replace(config.learner, micro_batch_tokens=tokens))
        if memory_estimate(shorter, shape, num_ranks, room.gpu_gib)[-1][2] <= room.free_gib:
            return tokens
        tokens //= 2
    return None


def lacking(config: TrainConfig, shape: ModelShape, room: Room, steps: bool) -> str:
    """Says what one rank lacks on its GPU that samples and learns in turn, and what to try; "" where it has enough.
    Without `steps` it learns nothing, and only sends its weights."""

    def needed(chosen: TrainConfig) -> float:
        if not steps:
            return refreshing_gib(chosen, shape, 1, room.gpu_gib)
        return max(memory_estimate(chosen, shape, 1, room.gpu_gib)[-1][1:])

    if needed(config) <= room.free_gib:
        return ""
    lighter = replace(config, learner=replace(config.learner, offload_optimizer=True))
    # Its rows are chosen anew.
    rows = fitting_rows(lighter, shape, 1, room) or 0
    lighter.learner.micro_batch_tokens = rows
    fits = needed(lighter) <= room.free_gib and (rows or not steps)
    advice = OFFLOAD if fits else "a smaller size"
    return f"needs {needed(config):.0f} GiB of a GPU, of which {room.free_gib:.0f} are free: try {advice}"
