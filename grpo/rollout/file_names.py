"""Names of weights as a model's files have them, which is what vLLM's loader knows them by.

Transformers gives some models' weights other names than their files have: `mlp.gate` is what Mixtral's files call
`block_sparse_moe.gate`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import PrefixChange, WeightRenaming

from grpo.interfaces import BASE_SUFFIX, DOWN_SUFFIX, UP_SUFFIX, Bucket

Rename = Callable[[str], str]
"""From transformers' name of a weight to that of the files. What follows the name of an adapted weight stays."""


def file_names(model_path: str, trust_remote_code: bool = False) -> Rename:
    """The names of one model's weights. Tensors stay whole: vLLM takes experts that lie in one tensor as they are."""
    config = AutoConfig.from_pretrained(model_path, trust_remote_code=trust_remote_code)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    changes = [
        change.reverse_transform()
        for change in reversed(get_model_conversion_mapping(model, add_legacy=False))
        if isinstance(change, WeightRenaming) and not isinstance(change, PrefixChange)
    ]

    def rename(name: str) -> str:
        plain, dot, kind = name.rpartition(".")
        suffix = dot + kind if dot + kind in (BASE_SUFFIX, DOWN_SUFFIX, UP_SUFFIX) else ""
        name = plain if suffix else name
        for change in changes:
            name, _ = change.rename_source_key(name)
        return name + suffix

    return rename


def renamed(bucket: Bucket, rename: Rename) -> list[tuple[str, torch.Tensor]]:
    """The same tensors under the names of the files."""
    return [(rename(name), tensor) for name, tensor in bucket]
