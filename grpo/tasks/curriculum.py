"""Which problem is asked at which position of the stream of prompts.

An order is a function of (seed, position), so a cursor resumes it at once; `Online` also depends on what was measured
(its `learn`), which a resumed run reads back from its own log.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from grpo.config import CurriculumConfig
from grpo.tasks.selection import solve_rate
from grpo.types import Problem

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray["float"]
    Indices = NDArray["int"]

JEFFREYS = 0.5
"""Added to right and to wrong completions (the Jeffreys prior): a rate of 0/64 is not 0 for sure."""


class Order(Protocol):
    def indices(self, start: int, count: int) -> Indices:
        """The problems at positions start … start + count − 1 of the stream."""

    def visit(self, position: int) -> int:
        """A number that tells apart the times that one problem is asked."""

    def learn(self, outcomes: Sequence[tuple[int, int, int]], cursor: int) -> None:
        """(problem, correct, tried) of a round's prompts; afterwards the stream stands at `cursor`."""


class Blocks:
    """Blocks of positions, each filled by `draw(number of the block)`: a function of seed and position only. Where a
    block holds a problem once at most (`once`), as an epoch does, the visit is the block, else the position."""

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

    def learn(self, outcomes: Sequence[tuple[int, int, int]], cursor: int) -> None:
        """Nothing that is measured changes this order."""


def uniform(size: int, seed: int) -> Blocks:
    """Every epoch asks each problem once, in an order drawn from (seed, epoch)."""
    import numpy as np

    return Blocks(lambda epoch: np.random.default_rng((seed, epoch)).permutation(size), size, once=True)


def weighted(weights: Callable[[int], Floats], block: int, seed: int) -> Blocks:
    """Every block asks a problem in proportion to its weight, to within one time. `weights(position)` are those of the
    block that begins there."""
    return Blocks(lambda number: resampled(weights(number * block), block, (seed, number)), block)


class Online:
    """Problems drawn by the gradient that is expected of them, E[σ^(2−α)] under the posterior of each pass rate.

    The prior is Beta(prior·p + ½, prior·(1 − p) + ½) with the pass rate p of the data set; what a round measured is
    added by `learn` and fades with `half_life`, since the policy changes. A problem that was asked rests, longer when
    its group was silent. Where not enough are rested, those of longest rest are taken. The visit is the position.
    """

    def __init__(self, rates: Floats, config: CurriculumConfig, exponent: float, seed: int) -> None:
        import numpy as np

        self._config, self._exponent, self._seed = config, exponent, seed
        self._prior = np.stack([rates, 1 - rates]) * config.prior_samples + JEFFREYS
        self._seen = np.zeros_like(self._prior)  # [right or wrong, problem], as of `_asked_at`
        self._asked_at = np.zeros(len(rates))
        self._rests_until = np.zeros(len(rates))
        self._out: set[int] = set()  # given out since the last `learn`

    def indices(self, start: int, count: int) -> Indices:
        import numpy as np

        found: list[int] = []
        while len(found) < count:
            drawn = self._draw(start + len(found), count - len(found))
            found += drawn
            self._out = set() if len(self._out) + len(drawn) >= self._prior.shape[1] else self._out | {*drawn}
        return np.array(found, int)

    def visit(self, position: int) -> int:
        return position

    def learn(self, outcomes: Sequence[tuple[int, int, int]], cursor: int) -> None:
        faded = self._faded(cursor)
        for index, correct, tried in outcomes:
            self._seen[:, index] = faded[:, index] + (correct, tried - correct)
            self._asked_at[index] = cursor
            silent = correct in (0, tried)
            self._rests_until[index] = cursor + (self._config.rest_silent if silent else self._config.rest)
        self._out = set()

    def weights(self, cursor: int) -> Floats:
        """Expected σ^(2−α) of each problem."""
        return expected_gradient(*(self._prior + self._faded(cursor)), self._exponent)

    def _faded(self, cursor: int) -> Floats:
        return self._seen * 0.5 ** ((cursor - self._asked_at) / self._config.half_life)

    def _draw(self, cursor: int, count: int) -> list[int]:
        """At most `count` different problems (Efraimidis & Spirakis: the largest keys log(u)/w)."""
        import numpy as np

        uniform = np.random.default_rng((self._seed, cursor)).random(self._prior.shape[1])
        keys = np.log(uniform) / self.weights(cursor)
        resting = np.maximum(self._rests_until - cursor, 0)
        keys[resting > 0] = keys.min() - resting[resting > 0]
        keys[[*self._out]] = -np.inf
        best = np.argsort(-keys, kind="stable")[:count]
        return [int(index) for index in best if keys[index] > -np.inf]


def expected_gradient(right: Floats, wrong: Floats, exponent: float) -> Floats:
    """E[(p(1 − p))^((2 − α)/2)] for p ~ Beta(right, wrong): of a group's σ^(2−α), the factor that the dial leaves of
    its gradient (arXiv:2607.00152), in the limit of large groups."""
    import numpy as np
    from scipy.special import betaln

    half = max(0.0, (2 - exponent) / 2)
    return np.exp(betaln(right + half, wrong + half) - betaln(right, wrong))


def resampled(weights: Floats, count: int, seed: tuple[int, int]) -> Indices:
    """`count` indices, each as often as its share of the weights to within one (systematic resampling), in random
    order."""
    import numpy as np

    random = np.random.default_rng(seed)
    edges = np.cumsum(weights) * (count / weights.sum())
    places = np.minimum(np.searchsorted(edges, random.random() + np.arange(count), side="right"), len(weights) - 1)
    return random.permutation(places)


def build_order(problems: Sequence[Problem], config: CurriculumConfig, exponent: float, seed: int) -> Order:
    """The configured order; `exponent` is the dial's α. Raises `UserError` for a column of pass rates that holds
    something else."""
    import numpy as np

    if config.name == "uniform":
        return uniform(len(problems), seed)
    given = (solve_rate(problem, config.solve_rate_column) for problem in problems)
    rates = np.array([config.without_solve_rate if rate is None else rate for rate in given])
    if config.name == "online":
        return Online(rates, config, exponent, seed)
    if config.name == "weighted":
        counted = np.stack([rates, 1 - rates]) * config.prior_samples + JEFFREYS
        gradient = expected_gradient(*counted, exponent)
        return weighted(lambda position: gradient, config.block, seed)

    def near_target(position: int) -> Floats:
        share = min(1.0, position / config.anneal_prompts)
        target = config.easy + (config.hard - config.easy) * share
        return np.exp(-((rates - target) ** 2) / (2 * config.width**2))

    return weighted(near_target, config.block, seed)
