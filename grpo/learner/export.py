"""The trained model is exported as a Hugging Face directory that transformers and vLLM load."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from grpo.learner.learner import DeepSpeedLearner
from grpo.learner.policy import DTYPES, base_model
from grpo.learner.weights import weight_buckets


def export(
    learner: DeepSpeedLearner, tokenizer: PreTrainedTokenizerBase, directory: str | Path, precision: str
) -> Path:
    """Writes weights (LoRA merged), config and tokenizer. Collective; rank 0 writes.

    The folder appears whole or not at all.
    """
    final = Path(directory)
    writing = final.with_name(f".writing-{final.name}")
    weights: dict[str, torch.Tensor] = {}
    for bucket in weight_buckets(learner.policy, 2**30, DTYPES[precision]):
        if learner.collective.rank == 0:
            weights |= {name: tensor.cpu().clone() for name, tensor in bucket}
    if learner.collective.rank == 0:
        shutil.rmtree(writing, ignore_errors=True)
        model = base_model(learner.policy.language_model)
        model.save_pretrained(writing, state_dict=weights)
        tokenizer.save_pretrained(writing)
        shutil.rmtree(final, ignore_errors=True)
        os.rename(writing, final)
    learner.collective.barrier()
    return final
