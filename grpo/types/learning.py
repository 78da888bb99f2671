"""This module holds the types of learning: a tree in a packed row, a micro-batch, an optimizer step's batch and
report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grpo.types.values import Mean

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree is a prompt and the completions that continue it, laid out one after another in a packed row.

    `start` is the position of the prompt's first token in the row. `branches` are the input lengths of the completions:
    one less than their number of tokens, because a last token predicts nothing. Each branch attends to the prompt and
    to itself, never to its siblings. The first `shared` tokens of the prompt, if any, stand only at the beginning of
    the row, where all trees that begin with them attend to them.

    A prompt of 3 tokens at the beginning of a row, with completions of 3, 1 and 2 tokens, takes 6 positions:

    >>> tree = Tree(start=0, prompt_length=3, branches=(2, 0, 1))
    >>> tree.end
    6
    >>> Tree(start=10, prompt_length=3, branches=(2, 0, 1), shared=2).end
    14
    """

    start: int
    prompt_length: int
    branches: tuple[int, ...]
    shared: int = 0

    @property
    def own_prompt_length(self) -> int:
        """Returns the number of the prompt's tokens that stand in the tree itself."""
        return self.prompt_length - self.shared

    @property
    def end(self) -> int:
        """Returns the position after the last token of the tree."""
        return self.start + self.own_prompt_length + sum(self.branches)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A micro-batch is one packed row, ready for one forward and backward pass.

    token_ids, position_ids   [tokens] int64
    trees                     where prompts and completions lie in the row, hence which tokens attend to which
    predictors                [targets] position whose hidden state predicts the target
    targets                   [targets] int64 completion tokens
    sequence_index            [targets] which completion of this micro-batch a target belongs to
    advantages                [targets] the completion's advantage, repeated for each of its tokens
    token_weights             [targets] share of each token in the loss of the whole optimizer step, as the
                              aggregation sets it
    sampler_logprobs          [targets] log-probabilities under the sampler that drew the tokens
    old_logprobs              [targets] the learner's at the start of the round; None when the current ones equal them,
                              or when the sampler's are used instead
    reference_logprobs        [targets], or None without a KL term
    selected                  [targets] what the configured token selection returned, or None without a selection

    The prompt [10, 11, 12] with the completions [1, 2, 3] and [4, 5] makes this row. The prompt stands there once. The
    last token of each completion is a target but no input. Positions restart after the prompt:

    >>> from grpo.algorithm.packing import Branch, LooseTree, pack
    >>> from grpo.types import Completion
    >>> completions = [Completion(ids, (-1.0,) * len(ids), "", False) for ids in ((1, 2, 3), (4, 5))]
    >>> row = pack([LooseTree((10, 11, 12), tuple(Branch(completion, 0.5, 0.2) for completion in completions))])
    >>> row.token_ids.tolist(), row.position_ids.tolist()
    ([10, 11, 12, 1, 2, 4], [0, 1, 2, 3, 4, 3])
    >>> row.targets.tolist(), row.predictors.tolist(), row.sequence_index.tolist()
    ([1, 2, 3, 4, 5], [2, 3, 4, 2, 5], [0, 0, 0, 1, 1])
    """

    token_ids: Tensor
    position_ids: Tensor
    trees: tuple[Tree, ...]
    predictors: Tensor
    targets: Tensor
    sequence_index: Tensor
    advantages: Tensor
    token_weights: Tensor
    sampler_logprobs: Tensor
    old_logprobs: Tensor | None = None
    reference_logprobs: Tensor | None = None
    selected: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch is this rank's share of one optimizer step. Every rank holds the same number of micro-batches.

    `learning_rate_factor` comes from the round's plan, and so does `entropy_coefficient`, which is None for the
    configured one. `old_known` says whether the learner's log-probabilities at the start of the round are known. With
    objective.old_logprobs=sampler they are known in the round's first step only, unless the KL is in the reward.
    `fresh` says that no step has learned from these samples before.
    """

    micro_batches: tuple[MicroBatch, ...]
    learning_rate_factor: float = 1.0
    old_known: bool = True
    entropy_coefficient: float | None = None
    fresh: bool = True


@dataclass(frozen=True, slots=True)
class StepReport:
    """A step report holds the measurements of one optimizer step, already summed over ranks.

    `applied` is False when NaN or infinite gradients made the learner skip the update. `flops` are the floating-point
    operations that the model's forward and backward passes need (see `grpo.learner.flops`).
    """

    step: int
    applied: bool
    gradient_norm: float
    learning_rate: float
    flops: float
    means: Mapping[str, Mean]
