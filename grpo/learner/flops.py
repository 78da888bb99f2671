"""This module counts the floating-point operations that a model needs, however it is computed: MFU's numerator."""

from dataclasses import dataclass

import torch
from torch import nn

from grpo.learner.small_copy import EXPERTS, PER_TOKEN
from grpo.types import MicroBatch, Tree


@dataclass(frozen=True, slots=True)
class FlopCount:
    """Counts the floating-point operations of a forward and backward pass as PaLM does (arXiv:2204.02311, appendix B).

    For each weight and token these are 2 forward, 2 for the input's gradient, and 2 for the weight's gradient where
    the weight is trained. Recomputation does not count.

    per_token    all layers' matrices, at each packed token
    per_target   the output embedding, at each target
    per_pair     scores and weighted values in all layers, for each token and each token that it attends
    """

    per_token: float
    per_target: float
    per_pair: float

    def of_run(self, before: int, tokens: int) -> float:
        """Returns the operations of `tokens` inputs that follow `before` others. With `before` > 0 they are a
        completion's inputs, to which `tokens` + 1 targets belong. With 0 they are a prompt's, without targets."""
        targets = tokens + 1 if before else 0
        pairs = before * tokens + tokens * (tokens + 1) // 2
        return self.per_token * tokens + self.per_target * targets + self.per_pair * pairs

    def of(self, micro: MicroBatch) -> float:
        """Returns the operations of one micro-batch."""
        pairs = sum(attended_pairs(tree) for tree in micro.trees)
        return self.per_token * len(micro.token_ids) + self.per_target * len(micro.targets) + self.per_pair * pairs


def attended_pairs(tree: Tree) -> int:
    """Counts pairs (token, token it attends, itself included): causal over the prompt, and over prompt and completion.
    Tokens of a shared beginning are attended here, and count as attending where they stand.

    >>> attended_pairs(Tree(0, 2, (1, 2)))  # 1 + 2, then 3, then 3 + 4
    13
    """
    prompt, shared = tree.prompt_length, tree.shared
    prompt_pairs = prompt * (prompt + 1) // 2 - shared * (shared + 1) // 2
    return prompt_pairs + sum(prompt * branch + branch * (branch + 1) // 2 for branch in tree.branches)


def whole_shape(parameter: nn.Parameter) -> torch.Size:
    """Returns a parameter's full shape, also under ZeRO-3, where a rank holds only a shard."""
    return torch.Size(getattr(parameter, "ds_shape", parameter.shape))


def flop_count(language_model: nn.Module, head: nn.Parameter) -> FlopCount:
    """Returns the counts of a transformers model, whole or sharded. A layer's experts count as far as a token is sent
    to them. The input embedding does not count: it is a lookup, not a product."""
    config = language_model.config.get_text_config()
    lookup = language_model.get_input_embeddings().weight
    experts, per_token = (
        next((value for name in names if isinstance(value := getattr(config, name, 0), int) and value), 0)
        for names in (EXPERTS, PER_TOKEN)
    )

    def used(shape: torch.Size) -> float:
        """Returns the number of weights that a token is multiplied with. A layer's experts are one tensor."""
        chosen = experts and per_token and len(shape) == 3 and shape[0] == experts
        return shape.numel() * (per_token / experts if chosen else 1)

    layers = sum(
        used(whole_shape(parameter)) * (6 if parameter.requires_grad else 4)
        for parameter in language_model.parameters()
        if len(whole_shape(parameter)) > 1 and parameter is not head and parameter is not lookup
    )
    # State-space models have no attention heads, and no pairs.
    heads = getattr(config, "num_attention_heads", 0)
    width = getattr(config, "head_dim", None) or config.hidden_size // max(1, heads)
    return FlopCount(
        per_token=layers,
        per_target=whole_shape(head).numel() * (6 if head.requires_grad else 4),
        per_pair=12 * config.num_hidden_layers * heads * width,
    )
