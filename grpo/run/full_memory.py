"""This module tells a person what to change when a GPU has no memory left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from grpo.config import UserError

LEARNING = (
    "lower learner.micro_batch_tokens, or set learner.gradient_checkpointing=true, learner.zero_stage=3 or "
    "learner.offload_states=true; where the sampler shares the GPU, lower rollout.gpu_memory_fraction too"
)
SAMPLING = "lower rollout.gpu_memory_fraction or rollout.max_concurrent"
REFRESHING = "lower weight_sync.bucket_mib or rollout.gpu_memory_fraction"
# vLLM's own allocator raises a RuntimeError of this text where an engine wakes and the GPU has no room for it.
OF_VLLM = "CUDA Error: out of memory"
# The advice for each phase; phases that are not named here get `LEARNING`.
HELPS = dict.fromkeys(("starting the sampler", "sample", "wait", "evaluation", "sleep"), SAMPLING) | {
    "sync": REFRESHING
}


@contextmanager
def explaining_oom(phase: str) -> Iterator[None]:
    """Turns torch's OutOfMemoryError, and what vLLM raises instead, into a UserError that names the phase and the keys
    that lower memory use. It may also decorate a function."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and OF_VLLM not in str(error):
            raise
        message = " ".join(str(error).split()).partition(" Including")[0][:300]
        helps = HELPS.get(phase, LEARNING)
        raise UserError(f"the GPU has no memory left ({phase}): {helps}. {message}") from error
