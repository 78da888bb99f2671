"""The policy as the learner needs it: packed tokens in, log-probabilities of targets out."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from grpo.algorithm.logprobs import token_logprobs
from grpo.config import ModelConfig, UserError
from grpo.learner.attention import NAME, spans
from grpo.types import MicroBatch

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


class LogprobHead(nn.Module):
    """The output embedding, asked only for the log-probabilities of given targets.

    A module of its own, because ZeRO-3 gathers a parameter around the forward and backward pass of the
    module that holds it. The weight is the model's own (its input embedding where those are tied).
    """

    def __init__(self, weight: nn.Parameter, chunk: int):
        super().__init__()
        self.weight = weight
        self.chunk = chunk

    def forward(self, hidden: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        return token_logprobs(hidden, self.weight, targets, temperature, self.chunk)


class Policy(nn.Module):
    """A causal language model of transformers and the head above."""

    def __init__(self, language_model: nn.Module, chunk: int):
        super().__init__()
        self.language_model = language_model
        self.head = LogprobHead(base_model(language_model).get_output_embeddings().weight, chunk)

    def forward(self, micro: MicroBatch, temperature: float) -> tuple[Tensor, Tensor]:
        """log π and entropy [targets], float32, of the micro-batch's targets at `temperature`."""
        decoder = base_model(self.language_model).get_decoder()
        tree_spans = spans(micro.trees, self.head.weight.dtype, micro.token_ids.device)
        output = decoder(
            input_ids=micro.token_ids[None],
            position_ids=micro.position_ids[None],
            use_cache=False,
            tree_spans=tree_spans,
        )
        return self.head(output.last_hidden_state[0][micro.predictors], micro.targets, temperature)


def base_model(language_model: nn.Module) -> PreTrainedModel:
    """The transformers model itself, inside or outside a peft wrapper."""
    return language_model if isinstance(language_model, PreTrainedModel) else language_model.get_base_model()


def load_policy(path: str | Path, model: ModelConfig, precision: str, chunk: int, lora: bool = True) -> Policy:
    """The model at `path` as a `Policy`, with fresh LoRA adapters where the config asks for them.

    Raises UserError for architectures whose logits are not hidden·weightᵀ.
    """
    config = AutoConfig.from_pretrained(path, trust_remote_code=model.trust_remote_code)
    for unsupported in ("final_logit_softcapping", "logits_scaling", "logit_scale"):
        if getattr(config, unsupported, None) not in (None, 1.0):
            raise UserError(f"{path}: this architecture changes its logits ({unsupported}), which is not supported")
    language_model = AutoModelForCausalLM.from_pretrained(
        path,
        dtype=DTYPES[precision],
        attn_implementation=NAME,
        trust_remote_code=model.trust_remote_code,
    )
    if getattr(language_model.get_output_embeddings(), "bias", None) is not None:
        raise UserError(f"{path}: this architecture's output layer has a bias, which is not supported")
    if lora and model.lora.rank:
        language_model = _with_lora(language_model, model)
    return Policy(language_model, chunk)


def _with_lora(language_model: PreTrainedModel, model: ModelConfig) -> nn.Module:
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise UserError("model.lora.rank > 0 needs peft: pip install peft") from error
    targets = model.lora.target_modules
    adapter = LoraConfig(
        r=model.lora.rank,
        lora_alpha=model.lora.alpha,
        target_modules=targets if targets == "all-linear" else targets.split(","),
        task_type="CAUSAL_LM",
    )
    return get_peft_model(language_model, adapter)
