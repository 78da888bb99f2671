"""This module packs prompts and completions into rows. No other module lays tokens out.

A packed row holds trees. A tree is a prompt followed by completions that continue it. Position ids restart at the end
of the prompt for each completion, and a completion attends to the prompt and to itself. So a prompt is computed once
for all its completions, with exactly the log-probabilities and gradients that each completion would have alone. In the
same way a row computes once the beginning that all its prompts share, such as instructions and examples.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import torch

from grpo.algorithm.shapes import Mask, Targets
from grpo.types import Completion, MicroBatch, Tree


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch is one completion to learn from, with the values that its tokens need in the loss. A completion whose
    history was rewritten makes several branches (see `branches_of`).

    `token_weight` is the share of each token in the step's loss. `old_logprobs` and `reference_logprobs` are float32
    tensors [completion tokens], or None when the loss does not need them.
    """

    completion: Completion
    advantage: float
    token_weight: float
    old_logprobs: Targets | None = None
    reference_logprobs: Targets | None = None

    @property
    def input_length(self) -> int:
        """Returns the number of tokens that are fed to the model: all but the last one, which is only a target."""
        return len(self.completion.token_ids) + self.completion.num_observed - 1

    def predictors(self, last_of_prompt: int, start: int) -> Iterable[int]:
        """Returns where in a row the token stands that predicts each target, for a branch that begins at `start` behind
        a prompt whose last token stands at `last_of_prompt`.

        >>> from grpo.types import Completion, Observed
        >>> completion = Completion((1, 2, 3), (-1.0,) * 3, "", False, observed=(Observed(2, (7, 8)),))
        >>> list(Branch(completion, 0.5, 0.2).predictors(9, 20))
        [9, 20, 23]
        """
        num_targets = len(self.completion.token_ids)
        if not self.completion.observed:
            return chain((last_of_prompt,), range(start, start + num_targets - 1))
        shifts = Counter[int]()
        for piece in self.completion.observed:
            shifts[piece.at] += len(piece.token_ids)
        places = enumerate(accumulate(shifts[place] for place in range(num_targets)))
        return (start + place + shift - 1 if place + shift else last_of_prompt for place, shift in places)


def branches_of(
    prompt: tuple[int, ...],
    completion: Completion,
    advantage: float = 0.0,
    token_weight: float = 0.0,
    old_logprobs: Targets | None = None,
    reference_logprobs: Targets | None = None,
) -> list[tuple[tuple[int, ...], Branch]]:
    """Returns (prompt, branch) for each branch of a completion, see `Completion.branches`. The log-probabilities
    of the completion's tokens are divided among them."""
    branches, first = [], 0
    for own_prompt, part in completion.branches(prompt):
        own = slice(first, first := first + len(part.token_ids))
        old, reference = (None if values is None else values[own] for values in (old_logprobs, reference_logprobs))
        branches.append((own_prompt, Branch(part, advantage, token_weight, old, reference)))
    return branches


@dataclass(frozen=True, slots=True)
class LooseTree:
    """A loose tree is a prompt with its completions, before it has a place in a packed row.

    `padded_length`, if it is set, is the length that every branch is padded to.

    >>> from grpo.types import Completion
    >>> branch = Branch(Completion((1, 2, 3), (-1.0, -1.0, -1.0), "", False), advantage=0.5, token_weight=0.2)
    >>> tree = LooseTree((10, 11), (branch, branch))
    >>> tree.lengths, tree.length
    ((2, 2), 6)
    """

    prompt: tuple[int, ...]
    branches: tuple[Branch, ...]
    padded_length: int = 0

    @property
    def lengths(self) -> tuple[int, ...]:
        """Returns the number of input tokens of each branch, padding included."""
        return tuple(max(branch.input_length, self.padded_length) for branch in self.branches)

    @property
    def length(self) -> int:
        """Returns the number of tokens that the tree takes in a row."""
        return len(self.prompt) + sum(self.lengths)


LEAST_SHARED = 8
"""A common beginning of fewer tokens is computed again for each prompt, which costs less than gathering its keys."""

ONE_A_ROW = "one a row"
"""This layout is for models that cannot compute trees. Such a model computes a micro-batch as a rectangular batch of
padded sequences, each a prompt with one completion."""


def trees_of(branches: Sequence[tuple[tuple[int, ...], Branch]], layout: str, row_tokens: int) -> list[LooseTree]:
    """Builds the trees of one group, given (prompt, branch) of all its branches, under `layout`. Each has at most
    `row_tokens` tokens if possible.

    "shared" fills a tree with branches of one prompt until the row would be full, then repeats the prompt in the next
    tree. Every other layout gives each branch a tree of its own.
    """
    if layout != "shared":
        return [LooseTree(prompt, (branch,)) for prompt, branch in branches]
    by_prompt: dict[tuple[int, ...], list[Branch]] = {}
    for prompt, branch in branches:
        by_prompt.setdefault(prompt, []).append(branch)
    return [tree for prompt, own in by_prompt.items() for tree in _filled(prompt, own, row_tokens)]


def all_branches(trees: Iterable[LooseTree]) -> list[Branch]:
    """Returns the branches of all trees, in order."""
    return [branch for tree in trees for branch in tree.branches]


def _filled(prompt: tuple[int, ...], branches: Sequence[Branch], row_tokens: int) -> list[LooseTree]:
    """Builds the trees of one prompt, each filled with branches up to `row_tokens`."""
    trees: list[LooseTree] = []
    current: list[Branch] = []
    length = len(prompt)
    for branch in branches:
        if current and length + branch.input_length > row_tokens:
            trees.append(LooseTree(prompt, tuple(current)))
            current, length = [], len(prompt)
        current.append(branch)
        length += branch.input_length
    return [*trees, LooseTree(prompt, tuple(current))] if current else trees


def rows_of(trees: Sequence[LooseTree], row_tokens: int, layout: str = "shared") -> list[list[LooseTree]]:
    """Puts trees into rows of at most `row_tokens` tokens, by first-fit decreasing. A larger tree gets a row alone.

    Under `ONE_A_ROW` every tree counts the tokens of the longest tree in its row, which is the first, because all trees
    of a row are padded to that length when the row is computed.
    """
    rows: list[list[LooseTree]] = []
    lengths: list[int] = []
    # The length of a tree is a sum over its branches.
    for tree_length, tree in sorted(((tree.length, tree) for tree in trees), key=lambda pair: -pair[0]):
        for index, length in enumerate(lengths):
            added_length = rows[index][0].length if layout == ONE_A_ROW else tree_length
            if length + added_length <= row_tokens:
                rows[index].append(tree)
                lengths[index] += added_length
                break
        else:
            rows.append([tree])
            lengths.append(tree_length)
    return rows


def pad(trees: Sequence[LooseTree]) -> list[LooseTree]:
    """Pads every completion to the length of the longest completion, as rectangular batches do."""
    longest = max((branch.input_length for tree in trees for branch in tree.branches), default=0)
    return [LooseTree(tree.prompt, tree.branches, longest) for tree in trees]


def common_beginning(prompts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Returns the tokens that all of several prompts begin with, without the last token of any prompt. It is empty
    where fewer than `LEAST_SHARED` tokens are common.

    >>> common_beginning([(7, 7, 7, 7, 7, 7, 7, 7, 1, 2), (7, 7, 7, 7, 7, 7, 7, 7, 1, 3, 4)])
    (7, 7, 7, 7, 7, 7, 7, 7, 1)
    """
    if len(prompts) < 2:
        return ()
    # The first and the last in order differ soonest.
    first, last = min(prompts), max(prompts)
    most = min(map(len, prompts)) - 1
    count = next((place for place in range(most) if first[place] != last[place]), most)
    return first[:count] if count >= LEAST_SHARED else ()


def pack(trees: Sequence[LooseTree], layout: str = "shared") -> MicroBatch:
    """Packs `trees`, in order, into one micro-batch. Under layout "shared" the common beginning of all prompts stands
    there once, at the beginning of the row, as a tree without completions.

    Without any tree, the micro-batch is a single token that nothing is learned from. A rank computes it when it has no
    work left and other ranks still have some.
    """
    beginning = common_beginning([tree.prompt for tree in trees]) if layout == "shared" else ()
    beginning_length = len(beginning)
    tokens = list(beginning)
    positions = list(range(beginning_length))
    placed_trees = [Tree(0, beginning_length, ())] if beginning_length else []
    predictors: list[int] = []
    branches: list[Branch] = []
    for tree in trees:
        start, prompt_length = len(tokens), len(tree.prompt)
        placed_trees.append(Tree(start, prompt_length, tree.lengths, beginning_length))
        tokens.extend(tree.prompt[beginning_length:])
        positions.extend(range(beginning_length, prompt_length))
        last_of_prompt = len(tokens) - 1
        for branch, length in zip(tree.branches, tree.lengths, strict=True):
            branch_start = len(tokens)
            predictors.extend(branch.predictors(last_of_prompt, branch_start))
            tokens.extend(branch.completion.whole[:-1])
            tokens.extend([0] * (length - branch.input_length))
            positions.extend(range(prompt_length, prompt_length + length))
            branches.append(branch)
    if not placed_trees:
        tokens, positions, placed_trees = [0], [0], [Tree(0, 1, ())]
    return _micro_batch(tokens, positions, tuple(placed_trees), predictors, branches)


def _micro_batch(
    tokens: list[int], positions: list[int], trees: tuple[Tree, ...], predictors: list[int], branches: list[Branch]
) -> MicroBatch:
    """Makes the tensors of a micro-batch. A branch's advantage and weight are repeated for each of its targets."""
    lengths = torch.tensor([len(branch.completion.token_ids) for branch in branches], dtype=torch.long)

    def spread(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32).repeat_interleave(lengths)

    def joined(parts: list[torch.Tensor | None]) -> torch.Tensor | None:
        # All branches of a step have them, or none.
        present_parts = [part for part in parts if part is not None]
        return torch.cat(present_parts).float() if present_parts else None

    return MicroBatch(
        token_ids=_integers(tokens),
        position_ids=_integers(positions),
        trees=trees,
        predictors=_integers(predictors),
        targets=_integers(chain.from_iterable(branch.completion.token_ids for branch in branches)),
        sequence_index=torch.arange(len(branches)).repeat_interleave(lengths),
        advantages=spread([branch.advantage for branch in branches]),
        token_weights=spread([branch.token_weight for branch in branches]),
        sampler_logprobs=_tensor(
            array("f", chain.from_iterable(branch.completion.sampler_logprobs for branch in branches)), torch.float32
        ),
        old_logprobs=joined([branch.old_logprobs for branch in branches]),
        reference_logprobs=joined([branch.reference_logprobs for branch in branches]),
    )


def _integers(numbers: Iterable[int]) -> torch.Tensor:
    return _tensor(array("q", numbers), torch.long)


def _tensor(numbers: array, dtype: torch.dtype) -> torch.Tensor:
    """Returns a tensor in the memory of `numbers`. For a row of tens of thousands `torch.tensor` takes four times as
    long."""
    return torch.frombuffer(numbers, dtype=dtype) if numbers else torch.zeros(0, dtype=dtype)


def attention_mask(tree: Tree, window: int | None = None, device: torch.device | None = None) -> Mask:
    """Returns the attention mask of one tree: True where a query (first axis) sees a
    key. Keys are the prompt's shared beginning, if it has one, and the tree's own tokens.

    With a `window`, a query sees only the latest `window` positions, its own included.
    """
    keys = tree.shared + tree.end - tree.start
    branch = torch.zeros(keys, dtype=torch.long, device=device)
    position = torch.arange(keys, device=device)
    first = tree.prompt_length
    for index, length in enumerate(tree.branches, start=1):
        branch[first : first + length] = index
        position[first : first + length] = torch.arange(tree.prompt_length, tree.prompt_length + length, device=device)
        first += length
    is_ancestor = ((branch[:, None] == branch[None, :]) | (branch[None, :] == 0)).tril()
    is_visible = is_ancestor if window is None else is_ancestor & (position[:, None] - position[None, :] < window)
    return is_visible[tree.shared :]
