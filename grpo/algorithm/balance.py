"""This module balances the work of learner ranks before anything is packed.

Ranks draw equally many prompts, but their completions differ in length, and silent groups are not computed. The busiest
rank would keep all others waiting. So whole trees, or some of their branches, move from busier to idler ranks. Every
token's weight is final before the move, so the gradient does not depend on where a branch is computed. In passes
without a gradient, the log-probabilities are sent back to the rank that the branch came from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from grpo.algorithm.packing import LooseTree
from grpo.interfaces import Collective

Cost = Callable[[int, int], float]
"""Cost(before, tokens) is the work of `tokens` input tokens that follow `before` others in a sequence: (0, 250) is a
prompt of 250 tokens, (250, 800) a completion of 800 tokens after this prompt."""

Value = TypeVar("Value")

# No rank's work exceeds the mean by more than this share, unless its branches are too large to move.
TOLERANCE = 0.02


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece is a subset of a tree's branches: the branches with indices `branches` of tree `tree` of rank `home`."""

    home: int
    tree: int
    branches: tuple[int, ...]


TreeCosts = tuple[float, tuple[float, ...]]
"""The cost of a tree's prompt, and of each of its branches. If a tree is cut in two, each piece pays for the prompt."""


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
