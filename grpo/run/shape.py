"""This module reads the sizes of a model from its config alone, without its weights."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from grpo.config import ModelConfig
from grpo.config.memory_estimate import ModelShape
from grpo.learner.loading import with_lora


def model_shape(path: Path, trust_remote_code: bool = False, adapted: ModelConfig | None = None) -> ModelShape:
    """Computes the sizes of the model at `path` from its config. For `adapted` see `shape_of`."""
    config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    return shape_of(config, trust_remote_code, adapted)


def shape_of(
    config: PretrainedConfig, trust_remote_code: bool = False, adapted: ModelConfig | None = None
) -> ModelShape:
    """Computes the sizes of the model that `config` describes, with the adapters that `adapted` asks for. Raises
    UserError for adapters that cannot be trained."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
        parameters, adapters = sum(parameter.numel() for parameter in model.parameters()), 0
        if adapted and adapted.lora.rank:
            learning = with_lora(model, adapted).parameters()
            adapters = sum(parameter.numel() for parameter in learning if parameter.requires_grad)
    text = config.get_text_config()
    # Mamba 2 has another name for its heads, and some models have none.
    heads = setting_of(text, "num_attention_heads") or setting_of(text, "num_heads") or 1
    width = setting_of(text, "head_dim") or text.hidden_size // heads
    return ModelShape(
        parameters=parameters,
        adapters=adapters,
        layers=text.num_hidden_layers,
        width=text.hidden_size,
        inner_width=inner_width(text),
        vocabulary=text.vocab_size,
        query_width=heads * width,
        key_value_width=(setting_of(text, "num_key_value_heads") or heads) * width,
    )


def setting_of(config: PretrainedConfig, name: str) -> int | None:
    """Returns the integer setting `name` of a model's config, or None if there is none.

    The config is read as a dictionary, since its attribute would raise for a setting that differs between layers.
    """
    value = config.to_dict().get(config.attribute_map.get(name, name))
    return value if isinstance(value, int) else None


def inner_width(config: PretrainedConfig) -> int:
    """Returns the inner width of the feed-forward layers.

    GPT-2 and related models call it n_inner, and leave it out if it is four times the model's width.
    """
    widths = (getattr(config, name, None) for name in ("intermediate_size", "n_inner"))
    return next((width for width in widths if width), 4 * config.hidden_size)
