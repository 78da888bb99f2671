"""This module chooses the number formats that the configuration leaves open."""

from __future__ import annotations

from dataclasses import replace

import torch

from grpo.config import TrainConfig
from grpo.config.errors import require
from grpo.config.placement import uses_running_servers
from grpo.host import ranks


def with_precision(config: TrainConfig, samples: bool = True) -> TrainConfig:
    """Replaces "auto" precisions in the config by bfloat16 if this machine computes bfloat16 fast, else by float32.

    An "auto" precision of the model's head becomes float32 on a GPU, else the model's own. Raises UserError for a
    bfloat16 sampler on a GPU that does not compute bfloat16, which vLLM refuses. Running servers, which may be on other
    GPUs, refuse it themselves. `samples` says whether the command samples at all.
    """
    on_gpu = ranks.on_gpu(config)
    native = _multiplies_bfloat16(on_gpu)
    samples_here = samples and not uses_running_servers(config)
    require(
        native or not on_gpu or not samples_here or config.rollout.precision != "bfloat16",
        "rollout.precision=bfloat16 needs a GPU of compute capability 8.0 or newer: set rollout.precision=float32",
    )
    precision = "bfloat16" if native else "float32"
    parts = {
        name: replace(engine, precision=precision)
        for name in ("learner", "rollout")
        if (engine := getattr(config, name)).precision == "auto"
    }
    if config.model.head_precision == "auto":
        parts["model"] = replace(config.model, head_precision="float32" if on_gpu else "model")
    return replace(config, **parts)


def _multiplies_bfloat16(on_gpu: bool) -> bool:
    """Says whether this machine's GPU, or its CPU, has instructions for bfloat16. A GPU that is not here, as in a dry
    run, is taken for a new one."""
    if on_gpu:
        return not torch.cuda.is_available() or torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
