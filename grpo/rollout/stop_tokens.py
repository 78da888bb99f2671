"""This module finds the tokens that end a completion."""

from __future__ import annotations

from pathlib import Path

from transformers import GenerationConfig, PretrainedConfig, PreTrainedTokenizerBase


def stop_token_ids(model_path: str | Path, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Returns every token that ends a completion: the tokenizer's end of sequence and the model's own."""
    return sorted({*configured_ends(model_path), *filter(_is_given, [tokenizer.eos_token_id])})


def configured_ends(model_path: str | Path) -> list[int]:
    """Returns the tokens that end a completion by the model's generation_config.json, or by its config.json if there is
    no such file."""
    try:
        configured = GenerationConfig.from_pretrained(model_path).eos_token_id
    except OSError:
        configured = _of_config(model_path)
    return [*filter(_is_given, configured if isinstance(configured, list) else [configured])]


def _is_given(token: int | None) -> bool:
    return token is not None


def _of_config(model_path: str | Path) -> int | list[int] | None:
    """Returns what config.json says, and not the default of the model's class, which may be any word of another
    tokenizer."""
    try:
        config, _ = PretrainedConfig.get_config_dict(model_path)
    except OSError:
        return None
    return config.get("eos_token_id", config.get("text_config", {}).get("eos_token_id"))
