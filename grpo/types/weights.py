"""This module names the forms in which weights travel to a sampler, and the parts of an adapted weight."""

from __future__ import annotations

MERGED, BASE, ADAPTERS = "merged", "base", "adapters"
"""These are the forms in which a refresh sends weights. `MERGED` means all weights, with LoRA adapters added in. `BASE`
means the frozen weights beside their adapters. A receiver that keeps the frozen weights is sent only `ADAPTERS` from
then on. Without LoRA the form is always `MERGED`."""

BASE_SUFFIX, DOWN_SUFFIX, UP_SUFFIX = ".base", ".lora_A", ".lora_B"
"""With LoRA, these suffixes follow the name of an adapted weight in a bucket. They mark the frozen weight, A and the
scaled B of W = base + B·A."""
