"""This module gives out prompts as an endless stream, in the order of a curriculum.

Several sets of problems are mixed into one stream, each with its share of the prompts. Prompts are dealt to ranks so
that every rank's engine has about equally much to write.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from statistics import fmean
from typing import TYPE_CHECKING

from grpo.config import UserError
from grpo.tasks.curriculum import Order, resampled
from grpo.tasks.solve_rates import MEASURED_LENGTH
from grpo.types import Problem, Prompt

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Indices = NDArray["int"]

BLOCK = 64
"""In every block of this many positions, each set has its share of the block, rounded up or down."""


class PromptStream:
    """A prompt stream gives out prompts without end, in the order of a curriculum.

    `cursor` counts the prompts given out over all ranks. The prompt at a position depends on the order and the position
    only, so setting the cursor is enough to resume. The ranks' shares always make up the same stream, however many
    prompts are taken at a time. Which rank gets a prompt depends on how long completions of its problem were, see
    `grpo.tasks.prompt_stream`: when the problem was last sampled, or when `grpo solve-rates` measured it.

    Raises `UserError` when there are no problems.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        encode: Callable[[Problem], tuple[int, ...]],
        order: Order,
        *,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if not problems:
            raise UserError("there are no problems to train on; check task.data.")
        self._problems = tuple(problems)
        self._encode = functools.lru_cache(maxsize=4096)(lambda index: encode(self._problems[index]))
        self._order = order
        self._lengths = dict(_measured_lengths(self._problems))
        self._rank = rank
        self._world_size = world_size
        self.cursor = 0

    def __len__(self) -> int:
        """Returns the number of problems in one epoch."""
        return len(self._problems)

    def next_prompts(self, count: int) -> list[Prompt]:
        """Moves the cursor by `count` positions, and returns the prompts at this rank's positions among them."""
        first = self.cursor
        indices = [int(index) for index in self._order.indices(first, count)]
        self.cursor += count
        ranks = dealt(self._expected_lengths(indices), self._world_size, first)
        return [
            Prompt(self._problems[index], self._encode(index), self._order.visit(position), position)
            for position, (index, rank) in enumerate(zip(indices, ranks, strict=True), start=first)
            if rank == self._rank
        ]

    def _expected_lengths(self, indices: Sequence[int]) -> list[float]:
        """Returns the mean tokens of a completion of each problem. For unknown problems, it is the mean of the others'
        that were asked for, or 1."""
        known = [self._lengths[index] for index in indices if index in self._lengths]
        usual = fmean(known) if known else 1.0
        return [self._lengths.get(index, usual) for index in indices]

    def record_lengths(self, lengths: Mapping[str, float]) -> None:
        """Takes how long completions were: problem id → their mean number of tokens, over all ranks."""
        self._lengths |= {self._places[name]: length for name, length in lengths.items() if name in self._places}

    def record_outcomes(self, outcomes: Mapping[str, tuple[int, int]], cursor: int) -> None:
        """Passes the outcomes of a round to the order: problem id → (correct, tried) completions, over all ranks.

        `cursor` is the stream's position after that round.
        """
        counts = [(self._places[name], *outcome) for name, outcome in outcomes.items() if name in self._places]
        self._order.record_outcomes(counts, cursor)

    @functools.cached_property
    def _places(self) -> dict[str, int]:
        return {problem.problem_id: index for index, problem in enumerate(self._problems)}


def _measured_lengths(problems: Sequence[Problem]) -> Iterator[tuple[int, float]]:
    """Yields the index of each problem whose completions were measured, and their mean number of tokens."""
    for index, problem in enumerate(problems):
        length = problem.metadata.get(MEASURED_LENGTH)
        if isinstance(length, int | float) and 0 < length < math.inf:
            yield index, float(length)


def dealt(lengths: Sequence[float], ranks: int, first: int = 0) -> list[int]:
    """Returns the rank of each of some consecutive prompts of the stream, of which the first stands at `first`.

    `lengths` are the expected lengths of the prompts' completions. Each rank gets one of every `ranks` consecutive
    prompts: the rank with the least to write so far gets the prompt with the longest completions. So each rank has the
    same number of prompts of every optimizer step as without lengths. If all lengths are equal, prompt p goes to rank p
    mod `ranks`.

    >>> dealt([900, 100, 800, 200], ranks=2)
    [0, 1, 1, 0]
    >>> dealt([100, 100, 100, 100], ranks=2, first=3)
    [1, 0, 1, 0]
    """
    loads, places = [0.0] * ranks, range(len(lengths))
    dealt_to = [0] * len(lengths)
    for start in places[::ranks]:
        longest_first = sorted(places[start : start + ranks], key=lambda place: -lengths[place])
        idlest_first = sorted(range(ranks), key=lambda rank: (loads[rank], (rank - first) % ranks))
        for place, rank in zip(longest_first, idlest_first, strict=False):
            dealt_to[place] = rank
            loads[rank] += lengths[place]
    return dealt_to


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
        self._draw = functools.lru_cache(maxsize=4)(lambda block: resampled(self._weights, BLOCK, (self._seed, block)))

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
