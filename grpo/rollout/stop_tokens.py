"""This module finds the tokens that end a completion."""

from __future__ import annotations

from pathlib import Path

from transformers import GenerationConfig, PretrainedConfig, PreTrainedTokenizerBase


def stop_token_ids(model_path: str | Path, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Returns every token that ends a completion: the tokenizer's end of sequence and the model's own.

    The model's own are those of its generation_config.json, or of its config.json if there is no such file.
    """
    try:
        configured = GenerationConfig.from_pretrained(model_path).eos_token_id
    except OSError:
        configured = _of_config(model_path)
    token_ids = configured if isinstance(configured, list) else [configured]
    return sorted({token for token in (*token_ids, tokenizer.eos_token_id) if token is not None})


def _of_config(model_path: str | Path) -> int | list[int] | None:
    """Returns what config.json says, and not the default of the model's class, which may be any word of another
    tokenizer."""
    try:
        config, _ = PretrainedConfig.get_config_dict(model_path)
    except OSError:
        return None
    return config.get("eos_token_id", config.get("text_config", {}).get("eos_token_id"))
