"""This module makes random Llamas small enough for unit tests. Their head_dim is 32, so that vLLM's CPU kernels take
them."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from grpo.models.files import ModelFiles
from tests import warm


def files_of(path: str | Path, tokenizer: PreTrainedTokenizerBase | None = None) -> ModelFiles:
    """Returns the files of a model. `tokenizer` stands for the one that the folder lacks."""
    files = ModelFiles(Path(path))
    if tokenizer is not None:
        vars(files)["tokenizer"] = tokenizer
    return files


def facts_of(folder: Path, name: str, timeout: float = 400) -> Any:
    """Returns the facts that the worker `name` of these tests has measured on two ranks, with a tiny model."""
    facts = folder / "facts.json"
    worker = ["-m", f"tests.learner.{name}", tiny_llama(folder / "model"), facts]
    done = warm.ranks(2, worker, warm.LEARNER, timeout)
    assert done.returncode == 0, done.stderr
    return json.loads(facts.read_text())


def tiny_llama(directory: Path, tied: bool = True, vocabulary: int = 64, layers: int = 2) -> Path:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        tie_word_embeddings=tied,
        max_position_embeddings=128,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config)
    for parameter in model.parameters():
        # Random weights of the usual size give nearly uniform predictions, which hide errors.
        parameter.data.mul_(4) if parameter.dim() > 1 else None
    model.save_pretrained(directory)
    return directory
