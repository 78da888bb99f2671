"""This module finds the tokens that end a completion."""

from __future__ import annotations

from pathlib import Path

from transformers import GenerationConfig, PreTrainedTokenizerBase


def stop_token_ids(model_path: str | Path, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Returns every token that ends a completion: the tokenizer's end of sequence and the generation config's."""
    try:
        configured = GenerationConfig.from_pretrained(model_path).eos_token_id
    except OSError:
        configured = None
    several = configured if isinstance(configured, list) else [configured]
    return sorted({token for token in (*several, tokenizer.eos_token_id) if token is not None})
