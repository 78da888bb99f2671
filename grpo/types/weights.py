"""This module names the forms in which weights travel to a sampler, and the parts of an adapted weight."""

MERGED, BASE, ADAPTERS = "merged", "base", "adapters"
"""These are the forms in which a refresh sends weights. `MERGED` means all weights, with LoRA adapters added in. `BASE`
means the frozen weights and, beside them, their adapters. A sampler that holds the frozen weights is sent only
`ADAPTERS` from then on. Without LoRA the form is always `MERGED`."""

DOWN_SUFFIX, UP_SUFFIX = ".lora_A", ".lora_B"
"""These suffixes follow the name of an adapted weight. They mark A and the scaled B of W + B·A."""

ADAPTER, ADAPTER_NUMBER, NO_FILE = "adapter", 1, "/no/file"
"""vLLM knows the learner's adapter by this name and number. It wants a path too, which it never reads."""


def adapted_weight(name: str) -> tuple[str, str]:
    """Splits off the suffix of an adapter's half. Returns the name of the adapted weight and the suffix, or "" where
    the name is that of a weight.

    >>> adapted_weight("layers.0.mlp.up_proj.weight.lora_A"), adapted_weight("head.weight")
    (('layers.0.mlp.up_proj.weight', '.lora_A'), ('head.weight', ''))
    """
    suffix = next((ending for ending in (DOWN_SUFFIX, UP_SUFFIX) if name.endswith(ending)), "")
    return name.removesuffix(suffix), suffix
