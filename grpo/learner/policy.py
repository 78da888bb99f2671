"""This module makes of a transformers model a policy that maps packed tokens to log-probabilities of targets."""

from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from grpo.algorithm.logprobs import PLAIN, LogitRule, logprobs_alone, token_logprobs
from grpo.learner.attention import TreeRow
from grpo.learner.group_logprobs import sent
from grpo.learner.norms import fuse_norms
from grpo.learner.sequence_parallel import SequenceGroup
from grpo.types import MicroBatch, Tree

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


class LogprobHead(nn.Module):
    """Computes log-probabilities of given targets from hidden states and the model's output layer.

    It is a module of its own, because ZeRO-3 gathers a parameter around the forward and backward pass of the
    module that holds it. Weight and bias are the model's own (its input embedding where those are tied).
    """

    def __init__(self, layer: nn.Module, chunk: int, rule: LogitRule = PLAIN):
        super().__init__()
        self.weight = layer.weight
        self.bias = getattr(layer, "bias", None)
        self._chunk = chunk
        self.rule = rule

    def forward(
        self, hidden: Tensor, targets: Tensor, temperature: float, entropies: bool = True
    ) -> tuple[Tensor, ...]:
        """Returns log π and entropy of each target, [targets] each; without `entropies` log π alone, without a
        gradient."""
        # Some models add up their layers in float32 whatever the precision of their weights (Mamba 2).
        hidden = hidden.to(self.weight.dtype)
        head_inputs = hidden, self.weight, targets, temperature, self._chunk, self.bias, self.rule
        return token_logprobs(*head_inputs) if entropies else (logprobs_alone(*head_inputs),)


class Policy(nn.Module):
    """A policy is a causal language model of transformers with a `LogprobHead`.

    With `in_trees` the model's attention is `grpo.learner.attention.tree_attention`, and packed rows are computed
    directly. Otherwise the model is unchanged, and every completion is computed after its prompt in a row of its own.
    This is for models that carry state from token to token outside of attention.
    """

    def __init__(
        self,
        language_model: nn.Module,
        chunk: int,
        rule: LogitRule = PLAIN,
        in_trees: bool = True,
        together: SequenceGroup | None = None,
    ):
        """`together` are the ranks that compute each row with this one (sequence parallelism), or None."""
        super().__init__()
        fuse_norms(language_model)
        self.language_model = language_model
        self.in_trees = in_trees
        self._together = together
        self.head = LogprobHead(base_model(language_model).get_output_embeddings(), chunk, rule)
        # The frozen weights below adapters are read from where they came from. No checkpoint holds them a second time.
        self.register_state_dict_post_hook(_without_frozen)
        self.register_load_state_dict_post_hook(_frozen_may_miss)

    def forward(self, micro: MicroBatch, temperature: float, entropies: bool = True) -> tuple[Tensor, ...]:
        """Returns log π and entropy [targets], float32, of the micro-batch's targets at `temperature`. Without
        `entropies` it returns log π alone, without a gradient: reading all logits for entropies takes longer."""
        if self._together is not None:
            return self._shared(micro, temperature, entropies, self._together)
        if self.in_trees:
            hidden = self._hidden(micro.token_ids, micro.position_ids, micro.trees)
        else:
            hidden = self._hidden_one_by_one(micro)
        predictors = sent(micro.predictors, hidden.device)
        return self.head(hidden[predictors], micro.targets, temperature, entropies)

    def _shared(
        self, micro: MicroBatch, temperature: float, entropies: bool, together: SequenceGroup
    ) -> tuple[Tensor, ...]:
        """Returns what `forward` does for all targets of a row that several ranks compute together. This rank computes
        only those that its own tokens predict, and gathers the others."""
        token_ids, position_ids, trees = together.padded(micro)
        own_tokens = together.share(len(token_ids))
        hidden = self._hidden(token_ids[own_tokens], position_ids[own_tokens], trees)
        # The predictors are in main memory. A device could say how many are this rank's only when it has come so far.
        place = ((micro.predictors >= own_tokens.start) & (micro.predictors < own_tokens.stop)).nonzero().squeeze(1)
        predictors = sent(micro.predictors[place] - own_tokens.start, hidden.device)
        place = sent(place, hidden.device)
        own_values = self.head(hidden[predictors], micro.targets[place], temperature, entropies)
        return tuple(together.whole(values, place, len(micro.targets)) for values in own_values)

    def _hidden(self, token_ids: Tensor, position_ids: Tensor, trees: tuple[Tree, ...]) -> Tensor:
        """Returns hidden states [tokens, width] of a row that `trees` fill."""
        output = decoder_of(self.language_model)(
            input_ids=token_ids[None],
            position_ids=position_ids[None],
            use_cache=False,
            tree_row=TreeRow(trees, self.head.weight.dtype, token_ids.device),
            together=self._together,
        )
        return output.last_hidden_state.squeeze(0)

    def _hidden_one_by_one(self, micro: MicroBatch) -> Tensor:
        """Returns hidden states [tokens, width] as `_hidden` does, but computes each completion in a row of its own.
        All rows form one batch, so that all ranks call every layer equally often."""
        rows = _rows_of_their_own(micro.trees)
        longest = max(map(len, rows))
        # Padding comes at the end of a row, where no token of a causal model attends to it.
        index = torch.stack([torch.nn.functional.pad(row, (0, longest - len(row))) for row in rows])
        # `place` says where each token of the packed row is computed. A prompt's tokens are taken from the row of its
        # last completion.
        place = torch.empty(len(micro.token_ids), dtype=torch.long)
        for number, row in enumerate(rows):
            place[row] = torch.arange(len(row)) + number * longest
        device = micro.token_ids.device
        decoder = decoder_of(self.language_model)
        # An index in main memory would make the host wait for the device.
        index, place = sent(index, device), sent(place, device)
        output = decoder(input_ids=micro.token_ids[index], use_cache=False)
        return output.last_hidden_state.flatten(0, 1)[place]


def _frozen(policy: nn.Module) -> set[str]:
    """Returns the names of all weights that are not trained. A tied weight has several names."""
    parameters = policy.named_parameters(remove_duplicate=False)
    return {name for name, parameter in parameters if not parameter.requires_grad}


def _without_frozen(policy: nn.Module, state: dict[str, Tensor], prefix: str, metadata: object) -> None:
    for name in _frozen(policy):
        state.pop(prefix + name, None)


def _frozen_may_miss(policy: nn.Module, keys: NamedTuple) -> None:
    """Lets a state without frozen weights be loaded strictly."""
    frozen_names = _frozen(policy)
    keys.missing_keys[:] = [name for name in keys.missing_keys if name not in frozen_names]


def _rows_of_their_own(trees: tuple[Tree, ...]) -> list[Tensor]:
    """Returns, for each completion, the positions of its prompt's tokens and its own in the packed row. A prompt
    without completions gives only its own positions."""
    rows = []
    for tree in trees:
        end_of_prompt = tree.start + tree.own_prompt_length
        prompt = torch.cat([torch.arange(tree.shared), torch.arange(tree.start, end_of_prompt)])
        starts = accumulate(tree.branches, initial=end_of_prompt)
        branches = [torch.arange(start, start + length) for start, length in zip(starts, tree.branches, strict=False)]
        rows.extend([torch.cat([prompt, branch]) for branch in branches] or [prompt])
    return rows


def base_model(language_model: nn.Module) -> PreTrainedModel:
    """Returns the transformers model itself, inside or outside a peft wrapper."""
    return language_model if isinstance(language_model, PreTrainedModel) else language_model.get_base_model()


def decoder_of(language_model: nn.Module) -> nn.Module:
    """Returns the part of a model that computes hidden states from tokens.

    `get_decoder` of some classes (Llama 4) returns a model with an output layer. Its only model within is the decoder.
    """
    decoder = base_model(language_model).get_decoder()
    while isinstance(decoder, PreTrainedModel) and decoder.get_output_embeddings() is not None:
        within = [child for child in decoder.children() if isinstance(child, PreTrainedModel)]
        if len(within) != 1:
            break
        [decoder] = within
    return decoder
