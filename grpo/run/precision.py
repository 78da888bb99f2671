"""This module chooses the number formats that the configuration leaves open."""

from __future__ import annotations

from dataclasses import replace

import torch

from grpo.config import TrainConfig
from grpo.host import ranks


def with_precision(config: TrainConfig) -> TrainConfig:
    """Replaces "auto" precisions in the config by bfloat16 if this machine computes bfloat16 fast, else by float32.

    An "auto" precision of the model's head becomes float32 on a GPU, else the model's own.
    """
    on_gpu = ranks.on_gpu(config)
    native = on_gpu or torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    chosen = "bfloat16" if native else "float32"
    changed = {
        name: replace(engine, precision=chosen)
        for name in ("learner", "rollout")
        if (engine := getattr(config, name)).precision == "auto"
    }
    if config.model.head_precision == "auto":
        changed["model"] = replace(config.model, head_precision="float32" if on_gpu else "model")
    return replace(config, **changed)
