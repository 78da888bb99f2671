"""A curriculum decides which problem is asked at which position of the stream of prompts.

An order is a function of (seed, position), so setting the cursor is enough to resume it. `Online` also depends on the
measured pass rates (see `Online.record_outcomes`); a resumed run reads these rates back from its own log.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from grpo.config import CurriculumConfig
from grpo.config.errors import require
from grpo.tasks.problem_selection import rated_column, solve_rate
from grpo.types import Problem

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray["float"]
    Indices = NDArray["int"]


@dataclass(frozen=True, slots=True)
class Grouping:
    """A grouping holds the group size and the exponents by which advantages are normalized.

    size            the group size G
    exponent        α, the exponent of the standard deviation σ of a group's rewards
    mean_exponent   β, the exponent of a group's mean reward
    """

    size: int
    exponent: float = 1.0
    mean_exponent: float = 0.0


JEFFREYS = 0.5
"""This is added to the counts of correct and of wrong completions (the Jeffreys prior), since a measured rate of 0/64
does not prove a pass rate of 0."""


class Order(Protocol):
    """An order says which problem (by its index) stands at each position of the stream."""

    def indices(self, start: int, count: int) -> Indices:
        """Returns the indices of the problems at positions start … start + count − 1 of the stream."""

    def visit(self, position: int) -> int:
        """Returns a number that differs each time the same problem is asked."""

    def record_outcomes(self, outcomes: Sequence[tuple[int, int, int]], cursor: int) -> None:
        """Takes a round's outcomes: (problem's index, completions correct, completions tried) for each problem.

        `cursor` is the stream's position after that round.
        """


class Blocks:
    """This order divides the stream into blocks of positions and fills each block by `draw(block's number)`.

    The order depends on seed and position only. `once` says that `draw` gives each problem at most once, as in an
    epoch; the visit is then the block's number. Otherwise the visit is the position.
    """

    def __init__(self, draw: Callable[[int], Indices], block: int, once: bool = False) -> None:
        self._draw = functools.lru_cache(maxsize=4)(draw)
        self._block = block
        self._once = once

    def indices(self, start: int, count: int) -> Indices:
        import numpy as np

        places = (divmod(position, self._block) for position in range(start, start + count))
        return np.array([self._draw(number)[place] for number, place in places], int)

    def visit(self, position: int) -> int:
        return position // self._block if self._once else position

    def record_outcomes(self, outcomes: Sequence[tuple[int, int, int]], cursor: int) -> None:
        """Does nothing, since measured pass rates do not change this order."""


def uniform(size: int, seed: int) -> Blocks:
    """Returns an order that asks each problem once per epoch, shuffled by (seed, epoch)."""
    import numpy as np

    return Blocks(lambda epoch: np.random.default_rng((seed, epoch)).permutation(size), size, once=True)


def weighted(weights: Callable[[int], Floats], block: int, seed: int) -> Blocks:
    """Returns an order in which each block asks every problem in proportion to its weight, rounded up or down.

    `weights(position)` returns the weights for the block that begins at `position`.
    """
    return Blocks(lambda number: resampled(weights(number * block), block, (seed, number)), block)


class Online:
    """This order draws problems in proportion to their expected gradient, see `expected_gradient`.

    The prior of a pass rate is Beta(n·p + ½, n·(1 − p) + ½), with n = `prior_samples` and the data set's pass rate p.
    `record_outcomes` adds the outcomes of each round; they fade with `half_life`, since the policy changes.

    After it was asked, a problem rests for `rest` positions, or `rest_silent` when its group was silent (all correct or
    all wrong). When too few problems are rested, those closest to the end of their rest are taken. The visit is the
    position.

    All prompts between two calls of `record_outcomes` come from one draw, however many are taken at a time.
    """

    def __init__(self, rates: Floats, config: CurriculumConfig, grouping: Grouping, seed: int) -> None:
        import numpy as np

        self._config, self._grouping, self._seed = config, grouping, seed
        self._prior = np.stack([rates, 1 - rates]) * config.prior_samples + JEFFREYS
        self._seen = np.zeros_like(self._prior)  # [right or wrong, problem], as of `_asked_at`
        self._asked_at = np.zeros(len(rates))
        self._rests_until = np.zeros(len(rates))
        self._out: dict[int, int] = {}  # problems given out since the last `record_outcomes` → their positions
        self._drawn_at: int | None = None  # the position at which they were drawn

    def indices(self, start: int, count: int) -> Indices:
        import numpy as np

        # A stream that was set back gives the same positions out again, for example after a look at the first prompts.
        self._out = {index: position for index, position in self._out.items() if position < start}
        indices: list[int] = []
        while len(indices) < count:
            first = start + len(indices)
            if self._drawn_at is None or first < self._drawn_at:
                self._drawn_at = first
            drawn = self._draw(self._drawn_at, count - len(indices))
            indices += drawn
            self._out |= {index: position for position, index in enumerate(drawn, start=first)}
            if len(self._out) == self._prior.shape[1]:
                self._out, self._drawn_at = {}, None
        return np.array(indices, int)

    def visit(self, position: int) -> int:
        return position

    def record_outcomes(self, outcomes: Sequence[tuple[int, int, int]], cursor: int) -> None:
        counts = self._faded(cursor)
        for index, correct, tried in outcomes:
            self._seen[:, index] = counts[:, index] + (correct, tried - correct)
            self._asked_at[index] = cursor
            silent = tried and correct in (0, tried)
            self._rests_until[index] = cursor + (self._config.rest_silent if silent else self._config.rest)
        self._out, self._drawn_at = {}, None

    def weights(self, cursor: int) -> Floats:
        """Returns the expected gradient of each problem at the position `cursor`."""
        return expected_gradient(*(self._prior + self._faded(cursor)), self._grouping)

    def _faded(self, cursor: int) -> Floats:
        return self._seen * 0.5 ** ((cursor - self._asked_at) / self._config.half_life)

    def _draw(self, cursor: int, count: int) -> list[int]:
        """Draws at most `count` different problems (Efraimidis & Spirakis: the largest keys log(u)/w)."""
        import numpy as np

        uniform = np.random.default_rng((self._seed, cursor)).random(self._prior.shape[1])
        keys = np.log(uniform) / self.weights(cursor)
        resting = np.maximum(self._rests_until - cursor, 0)
        keys[resting > 0] = keys.min() - resting[resting > 0]
        keys[[*self._out]] = -np.inf
        best = np.argsort(-keys, kind="stable")[:count]
        return [int(index) for index in best if keys[index] > -np.inf]


def expected_gradient(right: Floats, wrong: Floats, grouping: Grouping) -> Floats:
    """Returns E[σ^(2−α)·(k/G)^(−β)] of a group whose pass rate is p ~ Beta(right, wrong); silent groups count as 0.

    σ = √(k(G−k))/G is the standard deviation of the rewards of a group with k of G right. This is the factor by which
    normalization with the exponents α and β scales the gradient of a group (arXiv:2607.00152). The expectation is
    exact, by enumeration of k. In the limit of large groups a problem that is never solved would have the largest
    gradient at β = 1 (MaxRL), but a group of G is nearly always silent on such a problem.

    The probability of k is that of Pólya's urn (the beta-binomial distribution). The probability of k + 1 is
    (G − k)/(k + 1) · (right + k)/(wrong + G − k − 1) times that of k.
    """
    import numpy as np

    size, expected = grouping.size, np.zeros_like(right)
    chance = np.ones_like(right)  # that none is right
    for draw in range(size):
        chance *= (wrong + draw) / (right + wrong + draw)
    for correct in range(1, size):
        failed = size - correct
        chance *= (failed + 1) / correct * (right + correct - 1) / (wrong + failed)
        variance = correct * failed / size**2
        expected += chance * variance ** (1 - grouping.exponent / 2) * (correct / size) ** -grouping.mean_exponent
    return expected


def resampled(weights: Floats, count: int, seed: tuple[int, int]) -> Indices:
    """Draws `count` indices in random order by systematic resampling: each index comes count · weight / sum(weights)
    times, rounded up or down."""
    import numpy as np

    random = np.random.default_rng(seed)
    edges = np.cumsum(weights) * (count / weights.sum())
    places = np.minimum(np.searchsorted(edges, random.random() + np.arange(count), side="right"), len(weights) - 1)
    return random.permutation(places)


def check_rates(problems: Iterable[Problem], config: CurriculumConfig) -> None:
    """Raises `UserError` when the curriculum needs pass rates and no problem has one."""
    if config.name not in ("weighted", "anneal"):
        return
    problems = [*problems]
    column = rated_column(problems, config.solve_rate_column)
    require(
        any(solve_rate(problem, column) is not None for problem in problems),
        f"task.curriculum.name={config.name} goes by pass rates, and no problem has one in the column {column!r}: set "
        "task.curriculum.solve_rate_column to the column that holds them, or measure them with grpo solve-rates",
    )


def build_order(problems: Sequence[Problem], config: CurriculumConfig, grouping: Grouping, seed: int) -> Order:
    """Builds the configured order. "online" and "weighted" read `grouping`, since they weigh problems by gradient.

    Raises `UserError` when the column of pass rates holds anything that is not a pass rate.
    """
    import numpy as np

    if config.name == "uniform":
        return uniform(len(problems), seed)
    column = rated_column(problems, config.solve_rate_column)
    solve_rates = (solve_rate(problem, column) for problem in problems)
    rates = np.array([config.without_solve_rate if rate is None else rate for rate in solve_rates])
    if config.name == "online":
        return Online(rates, config, grouping, seed)
    if config.name == "weighted":
        prior = np.stack([rates, 1 - rates]) * config.prior_samples + JEFFREYS
        gradient = expected_gradient(*prior, grouping)
        return weighted(lambda position: gradient, config.block, seed)

    def near_target(position: int) -> Floats:
        share = min(1.0, position / config.anneal_prompts)
        target = config.easy + (config.hard - config.easy) * share
        distance = (rates - target) ** 2
        # The nearest problem has weight 1. Otherwise all weights would be 0 where no problem is near the target.
        return np.exp((distance.min() - distance) / (2 * config.width**2))

    return weighted(near_target, config.block, seed)
