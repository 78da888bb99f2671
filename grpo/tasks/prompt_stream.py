"""This module gives out prompts as an endless stream, in the order of a curriculum."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

from grpo.config import UserError
from grpo.tasks.curriculum import Order
from grpo.types import Problem, Prompt


class PromptStream:
    """A prompt stream gives out prompts without end, in the order of a curriculum.

    `cursor` counts the prompts given out over all ranks. The prompt at a position depends on the order and the position
    only, so setting the cursor is enough to resume. A position belongs to rank `position % world_size`, so the ranks'
    shares always make up the same stream, however many prompts are taken at a time.

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
        self._rank = rank
        self._world_size = world_size
        self.cursor = 0

    def __len__(self) -> int:
        """Returns the number of problems in one epoch."""
        return len(self._problems)

    def next_prompts(self, count: int) -> list[Prompt]:
        """Moves the cursor by `count` positions, and returns the prompts at this rank's positions among them."""
        first = self.cursor
        indices = self._order.indices(first, count)
        self.cursor += count
        return [
            Prompt(self._problems[index], self._encode(int(index)), self._order.visit(position))
            for position, index in enumerate(indices, start=first)
            if position % self._world_size == self._rank
        ]

    def record_outcomes(self, outcomes: Mapping[str, tuple[int, int]], cursor: int) -> None:
        """Passes the outcomes of a round to the order: problem id → (correct, tried) completions, over all ranks.

        `cursor` is the stream's position after that round.
        """
        counts = [(self._places[name], *outcome) for name, outcome in outcomes.items() if name in self._places]
        self._order.record_outcomes(counts, cursor)

    @functools.cached_property
    def _places(self) -> dict[str, int]:
        return {problem.problem_id: index for index, problem in enumerate(self._problems)}
