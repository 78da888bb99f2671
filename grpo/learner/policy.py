"""The policy as the learner needs it: packed tokens in, log-probabilities of targets out."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from grpo.algorithm.logprobs import token_logprobs
from grpo.config import ModelConfig, UserError
from grpo.learner.attention import NAME, spans
from grpo.learner.sequence_parallel import SequenceGroup
from grpo.types import MicroBatch, Tree

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

    def __init__(self, language_model: nn.Module, chunk: int, together: SequenceGroup | None = None):
        """`together`: the ranks that compute each row with this one."""
        super().__init__()
        self.language_model = language_model
        self._together = together
        self.head = LogprobHead(base_model(language_model).get_output_embeddings().weight, chunk)

    def forward(self, micro: MicroBatch, temperature: float) -> tuple[Tensor, Tensor]:
        """log π and entropy [targets], float32, of the micro-batch's targets at `temperature`."""
        if self._together is not None:
            return self._shared(micro, temperature, self._together)
        hidden = self._hidden(micro.token_ids, micro.position_ids, micro.trees)
        return self.head(hidden[micro.predictors], micro.targets, temperature)

    def _shared(self, micro: MicroBatch, temperature: float, together: SequenceGroup) -> tuple[Tensor, Tensor]:
        """Of all targets, although this rank computes those that its own tokens predict."""
        token_ids, position_ids, trees = together.padded(micro)
        own = together.share(len(token_ids))
        hidden = self._hidden(token_ids[own], position_ids[own], trees)
        place = ((micro.predictors >= own.start) & (micro.predictors < own.stop)).nonzero().squeeze(1)
        found = self.head(hidden[micro.predictors[place] - own.start], micro.targets[place], temperature)
        logprobs, entropies = (together.whole(each, place, len(micro.targets)) for each in found)
        return logprobs, entropies

    def _hidden(self, token_ids: Tensor, position_ids: Tensor, trees: tuple[Tree, ...]) -> Tensor:
        """[tokens, width], of tokens of a row that `trees` fill."""
        output = base_model(self.language_model).get_decoder()(
            input_ids=token_ids[None],
            position_ids=position_ids[None],
            use_cache=False,
            tree_spans=spans(trees, self.head.weight.dtype, token_ids.device),
            together=self._together,
        )
        return output.last_hidden_state[0]


def base_model(language_model: nn.Module) -> PreTrainedModel:
    """The transformers model itself, inside or outside a peft wrapper."""
    return language_model if isinstance(language_model, PreTrainedModel) else language_model.get_base_model()


def load_policy(
    path: str | Path,
    model: ModelConfig,
    precision: str,
    chunk: int,
    lora_seed: int | None = None,
    together: SequenceGroup | None = None,
) -> Policy:
    """The model at `path` as a `Policy`, with fresh LoRA adapters, drawn from `lora_seed`, where the config asks for
    them and a seed is given.

    Raises UserError for architectures whose logits are not hidden·weightᵀ, or whose heads cannot be shared out.
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
    if together is not None:
        _check_heads(path, config, together.size)
    if lora_seed is not None and model.lora.rank:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(lora_seed)
            language_model = _with_lora(language_model, model)
    return Policy(language_model, chunk, together)


def _check_heads(path: str | Path, config: PretrainedConfig, ranks: int) -> None:
    heads = config.num_attention_heads
    shared = getattr(config, "num_key_value_heads", None) or heads
    if heads % ranks or (shared % ranks and ranks % shared):
        raise UserError(
            f"learner.sequence_parallel={ranks} cannot share out the {heads} attention heads ({shared} of keys and "
            f"values) of {path}: use a number that divides them"
        )


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
