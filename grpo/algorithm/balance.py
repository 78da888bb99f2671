"""This module balances the work of learner ranks before anything is packed.

Ranks draw equally many prompts, but their completions differ in length, and silent groups are not computed. The busiest
rank would keep all others waiting. So whole trees, or some of their branches, move from busier to idler ranks. Every
token's weight is final before the move, so the gradient does not depend on where a branch is computed. In passes
without a gradient, the log-probabilities are sent back to the rank that the branch came from.

Then it lays the trees of all ranks out in packed rows: equally many on every rank, and of equal work. Under ZeRO 2 and
3 ranks exchange weights or gradients in every micro-batch, so each row takes as long as the slowest row that any rank
computes at the same time. Rows that only share a limit of tokens would differ in work by a third.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from grpo.algorithm.packing import ONE_A_ROW, LooseTree, pad, rows_of
from grpo.interfaces import Collective
from grpo.types import Mean

Cost = Callable[[int, int], float]
"""Cost(before, tokens) is the work of `tokens` input tokens that follow `before` others in a sequence: (0, 250) is a
prompt of 250 tokens, (250, 800) a completion of 800 tokens after this prompt."""

Value = TypeVar("Value")

# No rank's work exceeds the mean by more than this share, unless its branches are too large to move.
TOLERANCE = 0.02
TreeCosts = tuple[float, tuple[float, ...]]
"""The cost of a tree's prompt, and of each of its branches. If a tree is cut in two, each piece pays for the prompt."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece is a subset of a tree's branches: the branches with indices `branches` of tree `tree` of rank `home`."""

    home: int
    tree: int
    branches: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Share:
    """A share holds the trees that one rank computes, and for each tree the `Piece` that says where it comes from.

    `imbalance` is the busiest rank's work divided by the mean work of a rank.
    """

    pieces: list[Piece]
    trees: list[LooseTree]
    imbalance: float


def balanced(trees: Sequence[LooseTree], collective: Collective, cost: Cost) -> Share:
    """Returns this rank's share of the trees of all ranks. Collective."""
    costs = collective.gather([costs_of(tree, cost) for tree in trees])
    shares = assign(costs)
    loads = [sum(_weight(piece, costs) for piece in pieces) for pieces in shares]
    imbalance = max(loads) * len(loads) / sum(loads) if any(loads) else 1.0
    own_rank = collective.rank
    leaving = {
        (rank, piece): cut(trees[piece.tree], piece)
        for rank, pieces in enumerate(shares)
        for piece in pieces
        if piece.home == own_rank != rank
    }
    arriving_trees: dict[tuple[int, Piece], LooseTree] = {}
    for shared_pieces in collective.gather(leaving):
        arriving_trees |= shared_pieces
    own_trees = [
        cut(trees[piece.tree], piece) if piece.home == own_rank else arriving_trees[own_rank, piece]
        for piece in shares[own_rank]
    ]
    return Share(shares[own_rank], own_trees, imbalance)


def send_back(
    trees: Sequence[LooseTree], share: Share, values: Sequence[tuple[Value, ...]], collective: Collective
) -> list[tuple[Value, ...]]:
    """Returns one value for each branch of this rank's own `trees`, wherever it was computed. Collective.

    `values` holds one value for each branch of each tree that this rank has computed, that is of `share.trees`.
    """
    own_rank = collective.rank
    values_of_pieces = dict(zip(share.pieces, values, strict=True))
    by_branch: dict[tuple[int, int], Value] = {}
    for returned_values in collective.gather(
        {piece: value for piece, value in values_of_pieces.items() if piece.home != own_rank}
    ):
        values_of_pieces |= returned_values
    for piece, of_branches in values_of_pieces.items():
        if piece.home == own_rank:
            by_branch |= {(piece.tree, index): value for index, value in zip(piece.branches, of_branches, strict=True)}
    return [tuple(by_branch[place, index] for index in range(len(tree.branches))) for place, tree in enumerate(trees)]


def assign(costs: Sequence[Sequence[TreeCosts]]) -> list[list[Piece]]:
    """Returns the pieces that each rank computes, given the costs of each rank's trees. The result is deterministic.

    The busiest rank gives branches to the idlest, at most half of their difference in work, until the busiest is within
    `TOLERANCE` of the mean. A rank without branches small enough to give drops out, and the others go on. So few
    branches move, and none when ranks are balanced already.

    >>> for pieces in assign([[(1.0, (4.0, 4.0, 4.0))], [(1.0, (2.0,))]]):
    ...     print([(piece.home, piece.branches) for piece in pieces])
    [(0, (1, 2))]
    [(1, (0,)), (0, (0,))]
    """
    shares = [
        [Piece(rank, index, tuple(range(len(branches)))) for index, (_, branches) in enumerate(rank_costs)]
        for rank, rank_costs in enumerate(costs)
    ]

    def weight(piece: Piece) -> float:
        return _weight(piece, costs)

    loads = [sum(map(weight, share)) for share in shares]
    giving_ranks = set(range(len(loads)))
    while giving_ranks:
        busiest, idlest = max(sorted(giving_ranks), key=loads.__getitem__), loads.index(min(loads))
        if loads[busiest] * len(giving_ranks) <= (1 + TOLERANCE) * sum(loads[rank] for rank in giving_ranks):
            break
        room = (loads[busiest] - loads[idlest]) / 2
        offers = [(piece, _fitting(piece, costs[piece.home][piece.tree], room)) for piece in shares[busiest]]
        piece, part = max(offers, key=lambda offer: weight(offer[1]) if offer[1].branches else 0.0)
        if not part.branches:
            giving_ranks.remove(busiest)
            continue
        rest_of_piece = replace(piece, branches=tuple(index for index in piece.branches if index not in part.branches))
        place = shares[busiest].index(piece)
        shares[busiest][place : place + 1] = [rest_of_piece] if rest_of_piece.branches else []
        shares[idlest].append(part)
        loads[busiest] += (weight(rest_of_piece) if rest_of_piece.branches else 0.0) - weight(piece)
        loads[idlest] += weight(part)
    return shares


def _weight(piece: Piece, costs: Sequence[Sequence[TreeCosts]]) -> float:
    prompt, branches = costs[piece.home][piece.tree]
    return prompt + sum(branches[index] for index in piece.branches)


def _fitting(piece: Piece, costs: TreeCosts, room: float) -> Piece:
    """Returns the branches of a piece that, together with the prompt, cost at most `room`, chosen largest first."""
    prompt, branches = costs
    indices, total = [], prompt
    for index in sorted(piece.branches, key=lambda index: (-branches[index], index)):
        if total + branches[index] <= room:
            indices.append(index)
            total += branches[index]
    return replace(piece, branches=tuple(sorted(indices)))


def costs_of(tree: LooseTree, cost: Cost) -> TreeCosts:
    """Returns the cost of a tree's prompt and of each of its branches."""
    prompt = len(tree.prompt)
    return cost(0, prompt), tuple(cost(prompt, length) for length in tree.lengths)


def cut(tree: LooseTree, piece: Piece) -> LooseTree:
    """Returns `tree` with the branches of `piece` only, or `tree` itself if the piece holds all of its branches."""
    if len(piece.branches) == len(tree.branches):
        return tree
    return replace(tree, branches=tuple(tree.branches[index] for index in piece.branches))


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
