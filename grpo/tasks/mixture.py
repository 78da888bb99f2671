"""This module mixes the orders of several sets of problems into one stream, each with its share of the prompts."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from grpo.tasks.curriculum import Order, resampled

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Indices = NDArray["int"]

BLOCK = 64
"""In every block of this many positions, each set has its share of the block, rounded up or down."""


class Mixture:
    """This order takes each position from one of several sets' orders, in proportion to the sets' weights.

    The set of a position depends on seed and position only. Each order sees only the positions of its own set, counted
    from 0, so a set's problems come in the same order as without the other sets. Problems are numbered across all
    sets, beginning with the first set.
    """

    def __init__(self, orders: Sequence[Order], sizes: Sequence[int], weights: Sequence[float], seed: int) -> None:
        """Takes the order of each set, its number of problems, and its weight."""
        import numpy as np

        self._orders = orders
        self._first = [0, *accumulate(sizes)]
        self._weights = np.array(weights, float)
        self._seed = seed
        self._counts = [np.zeros(len(orders), int)]  # positions of each set before each block
        self._draw = functools.lru_cache(maxsize=4)(self._drawn)

    def indices(self, start: int, count: int) -> Indices:
        import numpy as np

        sets = np.array([self._set_at(position) for position in range(start, start + count)], int)
        indices = np.empty(count, int)
        for number, order in enumerate(self._orders):
            places = np.flatnonzero(sets == number)
            if len(places):
                indices[places] = self._first[number] + order.indices(self._before(start)[number], len(places))
        return indices

    def visit(self, position: int) -> int:
        number = self._set_at(position)
        return self._orders[number].visit(int(self._before(position)[number]))

    def record_outcomes(self, outcomes: Sequence[tuple[int, int, int]], cursor: int) -> None:
        for number, order in enumerate(self._orders):
            first, end = self._first[number], self._first[number + 1]
            own_outcomes = [(index - first, *counts) for index, *counts in outcomes if first <= index < end]
            order.record_outcomes(own_outcomes, int(self._before(cursor)[number]))

    def _set_at(self, position: int) -> int:
        block, place = divmod(position, BLOCK)
        return int(self._draw(block)[place])

    def _before(self, position: int) -> Indices:
        """Returns, for each set, how many positions before `position` belong to the set."""
        import numpy as np

        block, place = divmod(position, BLOCK)
        while len(self._counts) <= block:
            number = len(self._counts) - 1
            self._counts.append(self._counts[-1] + np.bincount(self._draw(number), minlength=len(self._orders)))
        return self._counts[block] + np.bincount(self._draw(block)[:place], minlength=len(self._orders))

    def _drawn(self, block: int) -> Indices:
        return resampled(self._weights, BLOCK, (self._seed, block))
