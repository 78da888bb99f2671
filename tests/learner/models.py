"""A random Llama small enough for unit tests, with head_dim 32 so that vLLM's CPU kernels take it."""

import string
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


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


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """One token a character, ids 3 to 63; 1 begins and 2 ends a sequence."""
    characters = string.digits + string.ascii_lowercase + " .,:;+-*/=?!()[]<>_#&%$@'\"^"
    vocabulary = {"<pad>": 0, "<s>": 1, "</s>": 2} | {c: 3 + i for i, c in enumerate(characters[:61])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<pad>"))
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
