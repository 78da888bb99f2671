"""This module gives out prompts as an endless stream, in the order of a curriculum."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean

from grpo.config import UserError
from grpo.tasks.curriculum import Order
from grpo.tasks.dealing import dealt
from grpo.tasks.solve_rates import MEASURED_LENGTH
from grpo.types import Problem, Prompt


class PromptStream:
    """A prompt stream gives out prompts without end, in the order of a curriculum.

    `cursor` counts the prompts given out over all ranks. The prompt at a position depends on the order and the position
    only, so setting the cursor is enough to resume. The ranks' shares always make up the same stream, however many
    prompts are taken at a time. Which rank gets a prompt depends on how long completions of its problem were, see
    `grpo.tasks.dealing`: when the problem was last sampled, or when `grpo solve-rates` measured it.

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
