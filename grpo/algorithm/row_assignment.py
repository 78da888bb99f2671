"""This module lays the trees of all ranks out in packed rows: equally many on every rank, and of equal work.

Under ZeRO 2 and 3 ranks exchange weights or gradients in every micro-batch, so each row takes as long as the slowest
row that any rank computes at the same time. Rows that only share a limit of tokens would differ in work by a third.
"""

from __future__ import annotations

from collections.abc import Sequence

from grpo.algorithm.balance import Cost, assign, costs_of, cut
from grpo.algorithm.packing import ONE_A_ROW, LooseTree, pad, rows_of
from grpo.interfaces import Collective
from grpo.types import Mean


def lay_out(
    trees: Sequence[LooseTree], collective: Collective, layout: str, row_tokens: int, cost: Cost
) -> tuple[list[list[LooseTree]], list[LooseTree]]:
    """Lays this rank's trees out in rows of at most `row_tokens` tokens. Every rank gets the same number of rows, and a
    rank with less work gets smaller or empty rows.

    Ranks that compute each row together (sequence parallelism) pool their trees first. Returns the rows, and this
    rank's own trees, uncut, with the padding that their branches have in the rows. Collective.
    """
    pooled_trees, from_this_rank = collective.pool(trees)
    if layout == "padded":
        pooled_trees = pad(pooled_trees)
    rows = rows_of(pooled_trees, row_tokens, layout)
    if collective.world_size == 1:
        return rows, pooled_trees[from_this_rank]
    # Rows that are padded to their longest tree are even already, and cutting them would not make them shorter.
    is_even = layout != ONE_A_ROW
    if is_even:
        rows = _fewest(pooled_trees, row_tokens, cost, rows)
    count = collective.maximum(len(rows))
    if is_even and count > len(rows):
        rows = even_rows(pooled_trees, count, row_tokens, cost) or rows
    return rows + [[] for _ in range(count - len(rows))], pooled_trees[from_this_rank]


def _fewest(
    trees: Sequence[LooseTree], row_tokens: int, cost: Cost, rows: list[list[LooseTree]]
) -> list[list[LooseTree]]:
    """Returns the trees in as few rows of equal work as possible, or `rows` if that takes more rows than `rows` has."""
    least = -(-sum(tree.length for tree in trees) // row_tokens)
    candidates = (even_rows(trees, count, row_tokens, cost) for count in range(max(1, least), len(rows) + 1))
    return next((even for even in candidates if even is not None), rows)


def even_rows(trees: Sequence[LooseTree], count: int, row_tokens: int, cost: Cost) -> list[list[LooseTree]] | None:
    """Returns the trees in `count` rows of equal work, or None if a row would have more than `row_tokens` tokens.

    Trees go one after another, the costliest first, to the row with the least work. Then branches move from the
    costliest to the cheapest row, as `assign` moves them between ranks.
    """
    rows: list[list[LooseTree]] = [[] for _ in range(count)]
    work = [0.0] * count
    totals = [prompt + sum(branches) for prompt, branches in (costs_of(tree, cost) for tree in trees)]
    for index in sorted(range(len(trees)), key=lambda index: -totals[index]):
        least = work.index(min(work))
        rows[least].append(trees[index])
        work[least] += totals[index]
    shares = assign([[costs_of(tree, cost) for tree in row] for row in rows])
    evened = [[cut(rows[piece.home][piece.tree], piece) for piece in pieces] for pieces in shares]
    return evened if all(_fits(row, row_tokens) for row in evened) else None


def _fits(row: Sequence[LooseTree], row_tokens: int) -> bool:
    """Tells whether a row has at most `row_tokens` tokens. A row with a single completion always fits."""
    alone = len(row) == 1 and len(row[0].branches) == 1
    return alone or sum(tree.length for tree in row) <= row_tokens


def imbalance(by_rank: Sequence[Sequence[float]], in_step: bool) -> Mean:
    """Returns the work that all ranks wait for, divided by the mean work of a rank.

    `by_rank` holds the work of each row of each rank. Ranks wait for the busiest rank; if they compute their rows
    `in_step`, they wait in each row for the rank whose row is the costliest. Without any work the mean has count 0.

    >>> by_rank = [[3.0, 1.0], [1.0, 3.0]]
    >>> imbalance(by_rank, in_step=False).value, imbalance(by_rank, in_step=True).value
    (1.0, 1.5)
    """
    total = sum(map(sum, by_rank))
    slowest = sum(map(max, zip(*by_rank, strict=True))) if in_step else max(map(sum, by_rank))
    return Mean(slowest * len(by_rank) / total, 1) if total else Mean(0.0, 0.0)
