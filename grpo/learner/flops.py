"""Counts the arithmetic that a model asks for, whatever a machine does with it: the numerator of MFU."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from grpo.types import MicroBatch, Tree


@dataclass(frozen=True, slots=True)
class FlopCount:
    """Counts the floating-point operations of a forward and backward pass, counted as PaLM does (arXiv:2204.02311,
    appendix B): 2 a weight and token forward, 2 for the input's gradient, 2 more for the weight's where it is
    trained; recomputation does not count.

    per_token    all layers' matrices, at each packed token
    per_target   the output embedding, at each target
    per_pair     scores and their use in all layers, for each token and each token that it attends
    """

    per_token: float
    per_target: float
    per_pair: float

    def of(self, micro: MicroBatch) -> float:
        """Returns the operations of one micro-batch."""
        pairs = sum(attended_pairs(tree) for tree in micro.trees)
        return self.per_token * len(micro.token_ids) + self.per_target * len(micro.targets) + self.per_pair * pairs


def attended_pairs(tree: Tree) -> int:
    """Counts pairs (token, token it attends, itself included): causal over the prompt, and over prompt and completion.

    >>> attended_pairs(Tree(0, 2, (1, 2)))  # 1 + 2, then 3, then 3 + 4
    13
    """
    prompt = tree.prompt_length
    return prompt * (prompt + 1) // 2 + sum(prompt * branch + branch * (branch + 1) // 2 for branch in tree.branches)


def flop_count(language_model: nn.Module, head: nn.Parameter) -> FlopCount:
    """Counts a dense transformers model, before DeepSpeed shards it (of a mixture of experts it would count all
    of them). The input embedding is a lookup, not a product."""
    config = language_model.config.get_text_config()
    lookup = language_model.get_input_embeddings().weight
    layers = sum(
        parameter.numel() * (6 if parameter.requires_grad else 4)
        for parameter in language_model.parameters()
        if parameter.dim() > 1 and parameter is not head and parameter is not lookup
    )
    # State-space models have no attention heads, and no pairs.
    heads = getattr(config, "num_attention_heads", 0)
    width = getattr(config, "head_dim", None) or config.hidden_size // max(1, heads)
    return FlopCount(
        per_token=layers,
        per_target=head.numel() * (6 if head.requires_grad else 4),
        per_pair=12 * config.num_hidden_layers * heads * width,
    )
