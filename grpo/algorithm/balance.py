"""This module evens out the work of learner ranks before anything is packed.

Ranks draw equally many prompts, but their completions differ in length, and silent groups are not computed. The rank
with most to do would keep all others waiting. So trees, or some of their branches, move from ranks with much to ranks
with little. Every token's weight is final before, so the gradient is the same wherever a branch is computed. In passes
without a gradient the log-probabilities then come back to the rank whose branches they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from grpo.algorithm.packing import LooseTree
from grpo.interfaces import Collective

Cost = Callable[[int, int], float]
"""Cost(before, tokens) is the work of so many input tokens that come after `before` others: (0, 250) is a prompt of 250
tokens, (250, 800) a completion that follows it."""

Value = TypeVar("Value")

# No rank has more than this share above the mean if its branches allow it.
TOLERANCE = 0.02


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece is some branches of one tree: those numbered `branches` of tree `tree` of rank `home`."""

    home: int
    tree: int
    branches: tuple[int, ...]


TreeCosts = tuple[float, tuple[float, ...]]
"""The cost of a tree's prompt, and of each of its branches. A tree that is cut in two has its prompt in both."""


@dataclass(frozen=True, slots=True)
class Share:
    """A share is what one rank computes of all ranks' trees. `imbalance` is the busiest rank's work over the mean's."""

    pieces: list[Piece]
    trees: list[LooseTree]
    imbalance: float


def shared(trees: Sequence[LooseTree], collective: Collective, cost: Cost) -> Share:
    """Returns this rank's share of the trees of all ranks. Collective."""
    costs = collective.gather([costs_of(tree, cost) for tree in trees])
    shares = assign(costs)
    loads = [sum(_weight(piece, costs) for piece in pieces) for pieces in shares]
    imbalance = max(loads) * len(loads) / sum(loads) if any(loads) else 1.0
    here = collective.rank
    leaving = {
        (rank, piece): cut(trees[piece.tree], piece)
        for rank, pieces in enumerate(shares)
        for piece in pieces
        if piece.home == here != rank
    }
    arriving: dict[tuple[int, Piece], LooseTree] = {}
    for sent in collective.gather(leaving):
        arriving |= sent
    own = [cut(trees[piece.tree], piece) if piece.home == here else arriving[here, piece] for piece in shares[here]]
    return Share(shares[here], own, imbalance)


def at_home(
    trees: Sequence[LooseTree], share: Share, values: Sequence[tuple[Value, ...]], collective: Collective
) -> list[tuple[Value, ...]]:
    """Brings back what ranks have computed: `values` holds one value for each branch of each tree of the share.
    Returns one for each branch of each of this rank's own `trees`. Collective."""
    here = collective.rank
    computed = dict(zip(share.pieces, values, strict=True))
    by_branch: dict[tuple[int, int], Value] = {}
    for sent in collective.gather({piece: value for piece, value in computed.items() if piece.home != here}):
        computed |= sent
    for piece, of_branches in computed.items():
        if piece.home == here:
            by_branch |= {(piece.tree, index): value for index, value in zip(piece.branches, of_branches, strict=True)}
    return [tuple(by_branch[place, index] for index in range(len(tree.branches))) for place, tree in enumerate(trees)]


def assign(costs: Sequence[Sequence[TreeCosts]]) -> list[list[Piece]]:
    """Shares out all trees, whose costs are given rank by rank. Every rank computes the same from the same costs.

    The busiest rank gives branches to the idlest, at most half of what they differ by, until it is within `TOLERANCE`
    of the mean. One that has nothing small enough to give is left out, and the others go on among themselves. So little
    moves, and nothing where ranks are even.

    >>> for pieces in assign([[(1.0, (4.0, 4.0, 4.0))], [(1.0, (2.0,))]]):
    ...     print([(piece.home, piece.branches) for piece in pieces])
    [(0, (1, 2))]
    [(1, (0,)), (0, (0,))]
    """
    shares = [
        [Piece(rank, index, tuple(range(len(branches)))) for index, (_, branches) in enumerate(own)]
        for rank, own in enumerate(costs)
    ]

    def weight(piece: Piece) -> float:
        return _weight(piece, costs)

    loads = [sum(map(weight, share)) for share in shares]
    giving = set(range(len(loads)))
    while giving:
        busiest, idlest = max(sorted(giving), key=loads.__getitem__), loads.index(min(loads))
        if loads[busiest] * len(giving) <= (1 + TOLERANCE) * sum(loads[rank] for rank in giving):
            break
        room = (loads[busiest] - loads[idlest]) / 2
        offers = [(piece, _fitting(piece, costs[piece.home][piece.tree], room)) for piece in shares[busiest]]
        piece, given = max(offers, key=lambda offer: weight(offer[1]) if offer[1].branches else 0.0)
        if not given.branches:
            giving.remove(busiest)
            continue
        left = replace(piece, branches=tuple(index for index in piece.branches if index not in given.branches))
        place = shares[busiest].index(piece)
        shares[busiest][place : place + 1] = [left] if left.branches else []
        shares[idlest].append(given)
        loads[busiest] += (weight(left) if left.branches else 0.0) - weight(piece)
        loads[idlest] += weight(given)
    return shares


def _weight(piece: Piece, costs: Sequence[Sequence[TreeCosts]]) -> float:
    prompt, branches = costs[piece.home][piece.tree]
    return prompt + sum(branches[index] for index in piece.branches)


def _fitting(piece: Piece, costs: TreeCosts, room: float) -> Piece:
    """Returns the part of a piece, its largest branches first, that with the prompt takes at most `room`."""
    prompt, branches = costs
    chosen, total = [], prompt
    for index in sorted(piece.branches, key=lambda index: (-branches[index], index)):
        if total + branches[index] <= room:
            chosen.append(index)
            total += branches[index]
    return replace(piece, branches=tuple(sorted(chosen)))


def costs_of(tree: LooseTree, cost: Cost) -> TreeCosts:
    """Returns what a tree costs, part by part."""
    prompt = len(tree.prompt)
    return cost(0, prompt), tuple(cost(prompt, length) for length in tree.lengths)


def cut(tree: LooseTree, piece: Piece) -> LooseTree:
    """Returns a piece of a tree: the tree itself where that is the whole of it."""
    if len(piece.branches) == len(tree.branches):
        return tree
    return replace(tree, branches=tuple(tree.branches[index] for index in piece.branches))
