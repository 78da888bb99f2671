"""From groups to packed rows: the one place that lays tokens out.

A row holds trees. A tree is a prompt followed by completions that continue it; position ids restart at
the end of the prompt for each of them, and a completion attends to the prompt and to itself. So a prompt
is computed once for all its completions, with exactly the same log-probabilities and gradients as if each
had been computed alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from grpo.types import Completion, MicroBatch, Tree


@dataclass(frozen=True, slots=True)
class Row:
    """One completion to learn from, with what each of its tokens carries.

    `weight` is the share of each token in the step's loss; `old_logprobs` and `reference_logprobs` are
    float32 tensors [completion tokens], or None where the loss does not need them.
    """

    completion: Completion
    advantage: float
    weight: float
    old_logprobs: torch.Tensor | None = None
    reference_logprobs: torch.Tensor | None = None

    @property
    def input_length(self) -> int:
        return len(self.completion.token_ids) - 1


@dataclass(frozen=True, slots=True)
class Seedling:
    """A prompt's token ids and the rows that continue it: a tree before it has a place."""

    prompt: tuple[int, ...]
    rows: tuple[Row, ...]
    padded_length: int = 0

    @property
    def branches(self) -> tuple[int, ...]:
        return tuple(max(row.input_length, self.padded_length) for row in self.rows)

    @property
    def length(self) -> int:
        return len(self.prompt) + sum(self.branches)


ONE_A_ROW = "one a row"
"""Layout of models that compute every completion in a row of its own, and all of a micro-batch at once."""


def plant(prompt: tuple[int, ...], rows: Sequence[Row], layout: str, budget: int) -> list[Seedling]:
    """The trees of one group under `layout`, each within `budget` tokens where it can be.

    "shared" fills a tree with completions until the budget is reached, then repeats the prompt in the
    next one. The others give every completion a tree of its own.
    """
    if layout != "shared":
        return [Seedling(prompt, (row,)) for row in rows]
    seedlings: list[Seedling] = []
    current: list[Row] = []
    length = len(prompt)
    for row in rows:
        if current and length + row.input_length > budget:
            seedlings.append(Seedling(prompt, tuple(current)))
            current, length = [], len(prompt)
        current.append(row)
        length += row.input_length
    return [*seedlings, Seedling(prompt, tuple(current))] if current else seedlings


def bins(seedlings: Sequence[Seedling], budget: int, layout: str = "shared") -> list[list[Seedling]]:
    """First-fit decreasing: trees into rows of at most `budget` tokens. A larger tree has a row alone.

    Under `ONE_A_ROW` every tree counts as many tokens as the longest beside it, which is the first: it is filled up to
    that when they are computed.
    """
    result: list[list[Seedling]] = []
    lengths: list[int] = []
    for seedling in sorted(seedlings, key=lambda item: -item.length):
        for index, length in enumerate(lengths):
            counted = result[index][0].length if layout == ONE_A_ROW else seedling.length
            if length + counted <= budget:
                result[index].append(seedling)
                lengths[index] += counted
                break
        else:
            result.append([seedling])
            lengths.append(seedling.length)
    return result


def pad(seedlings: Sequence[Seedling]) -> list[Seedling]:
    """Every completion stretched to the longest of them, as rectangular batches do."""
    longest = max((row.input_length for seedling in seedlings for row in seedling.rows), default=0)
    return [Seedling(seedling.prompt, seedling.rows, longest) for seedling in seedlings]


def pack(seedlings: Sequence[Seedling]) -> MicroBatch:
    """One micro-batch of these trees, in order. Without any it is a single token that nothing learns
    from: what a rank computes when it has no work left and others have."""
    tokens: list[int] = []
    positions: list[int] = []
    trees: list[Tree] = []
    predictors: list[int] = []
    rows: list[Row] = []
    for seedling in seedlings:
        start, prompt_length = len(tokens), len(seedling.prompt)
        trees.append(Tree(start, prompt_length, seedling.branches))
        tokens.extend(seedling.prompt)
        positions.extend(range(prompt_length))
        for row, branch in zip(seedling.rows, seedling.branches, strict=True):
            here = len(tokens)
            predictors.append(start + prompt_length - 1)
            predictors.extend(range(here, here + row.input_length))
            tokens.extend(row.completion.token_ids[:-1])
            tokens.extend([0] * (branch - row.input_length))
            positions.extend(range(prompt_length, prompt_length + branch))
            rows.append(row)
    if not trees:
        tokens, positions, trees = [0], [0], [Tree(0, 1, ())]
    return _micro_batch(tokens, positions, tuple(trees), predictors, rows)


def _micro_batch(
    tokens: list[int], positions: list[int], trees: tuple[Tree, ...], predictors: list[int], rows: list[Row]
) -> MicroBatch:
    lengths = torch.tensor([len(row.completion.token_ids) for row in rows], dtype=torch.long)

    def spread(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32).repeat_interleave(lengths)

    def joined(parts: list[torch.Tensor | None]) -> torch.Tensor | None:
        return None if not parts or parts[0] is None else torch.cat(parts).float()

    return MicroBatch(
        token_ids=torch.tensor(tokens, dtype=torch.long),
        position_ids=torch.tensor(positions, dtype=torch.long),
        trees=trees,
        predictors=torch.tensor(predictors, dtype=torch.long),
        targets=torch.tensor([token for row in rows for token in row.completion.token_ids], dtype=torch.long),
        sequence_index=torch.arange(len(rows)).repeat_interleave(lengths),
        advantages=spread([row.advantage for row in rows]),
        weights=spread([row.weight for row in rows]),
        sampler_logprobs=torch.tensor(
            [value for row in rows for value in row.completion.sampler_logprobs], dtype=torch.float32
        ),
        old_logprobs=joined([row.old_logprobs for row in rows]),
        reference_logprobs=joined([row.reference_logprobs for row in rows]),
    )


def attention_mask(tree: Tree, window: int | None = None) -> torch.Tensor:
    """[tokens, tokens] bool over one tree: True where a query (row) may see a key (column). With a `window` a query
    sees so many positions, its own included."""
    branch = torch.zeros(tree.end - tree.start, dtype=torch.long)
    position = torch.arange(tree.end - tree.start)
    first = tree.prompt_length
    for index, length in enumerate(tree.branches, start=1):
        branch[first : first + length] = index
        position[first : first + length] = torch.arange(tree.prompt_length, tree.prompt_length + length)
        first += length
    related = ((branch[:, None] == branch[None, :]) | (branch[None, :] == 0)).tril()
    return related if window is None else related & (position[:, None] - position[None, :] < window)
