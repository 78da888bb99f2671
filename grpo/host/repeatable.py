"""This module asks torch and vLLM for kernels that give the same bits each time (`deterministic`)."""

import os

import torch

BATCH_INVARIANT = "VLLM_BATCH_INVARIANT"


def make_repeatable(on_gpu: bool) -> None:
    """Asks torch for deterministic kernels, and on a GPU vLLM for kernels whose results do not depend on what else is
    in a batch. Called before vLLM is imported. Servers that this process starts inherit it.

    On a CPU vLLM has no such kernels, and needs none: its batches give the same bits as long as they are the same.
    """
    torch.use_deterministic_algorithms(True)
    # Every tensor is written before it is read here, so filling it first would only take time.
    torch.utils.deterministic.fill_uninitialized_memory = False
    if on_gpu:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        os.environ.setdefault(BATCH_INVARIANT, "1")
