"""How many completions a prompt gets: the smallest group that the estimated difficulty and the noise allow.

Three reasons make a group larger, each a size of its own; the largest of the three is wanted.

    fidelity      the mean gradient must keep 1 − ε of its limit G → ∞ (`identity.mean_fidelity`)
    fluctuation   about the plateau the curve fluctuates with a variance ∝ 1/G (`oscillator.stationary_variance`):
                  its standard deviation must stay below a share of the improvement that may be left. Early on much
                  is left and small, hot groups do; near the plateau the run is cooled, at most to twice the size
                  at a time: what a larger group shows is looked at first
    cost          what one non-silent group costs, (prompt + G·completion) / (1 − silent rate), is least there
"""

from __future__ import annotations

from dataclasses import dataclass

from grpo.dynamics.difficulty import Difficulty
from grpo.dynamics.identity import silent_rate, smallest_group_size

LADDER = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192, 256)


@dataclass(frozen=True, slots=True)
class GroupSizeRule:
    """What bounds the choice.

    smallest, largest   of the sizes allowed
    shortfall           ε, the loss of fidelity that is accepted
    fluctuation         standard deviation about the plateau, as a share of the improvement left
    exponent, ddof      the dial's
    """

    smallest: int
    largest: int
    shortfall: float
    fluctuation: float
    exponent: float = 1.0
    ddof: int = 0

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(size for size in LADDER if self.smallest <= size <= self.largest) or (self.smallest,)


@dataclass(frozen=True, slots=True)
class GroupSizeChoice:
    """The size wanted, and which size each reason asks for (None: it asks for nothing)."""

    size: int
    by_fidelity: int | None
    by_fluctuation: float | None
    by_cost: int

    @property
    def reason(self) -> str:
        fluctuation = "–" if self.by_fluctuation is None else f"{self.by_fluctuation:.1f}"
        fidelity = self.by_fidelity or "> largest"
        return f"fidelity asks for {fidelity}, fluctuation for {fluctuation}, cost for {self.by_cost}"


def choose_group_size(
    difficulty: Difficulty,
    rule: GroupSizeRule,
    current: int,
    process_variance: float,
    improvement_left: float | None,
    prompt_cost: float,
    completion_cost: float,
) -> GroupSizeChoice:
    """The smallest allowed size that meets all three reasons, or the largest allowed one.

    process_variance   variance of the curve about its law beyond sampling error, measured at size `current`
    improvement_left   upper bound of plateau minus present pass rate; None while no plateau is known
    prompt_cost, completion_cost   in any one unit, tokens or seconds
    """
    by_fidelity = smallest_group_size(
        difficulty.pass_rates, difficulty.weights, rule.shortfall, rule.exponent, rule.ddof, rule.largest
    )
    by_fluctuation = None
    if improvement_left is not None and process_variance > 0:
        allowed = rule.fluctuation * max(improvement_left, 1e-3)
        by_fluctuation = min(current * process_variance / allowed**2, 2.0 * current)
    by_cost = cheapest_size(difficulty, rule.sizes, prompt_cost, completion_cost)
    wanted = max(by_fidelity or rule.largest, by_fluctuation or 0, by_cost)
    size = next((size for size in rule.sizes if size >= wanted), rule.sizes[-1])
    return GroupSizeChoice(size, by_fidelity, by_fluctuation, by_cost)


def cheapest_size(difficulty: Difficulty, sizes: tuple[int, ...], prompt_cost: float, completion_cost: float) -> int:
    """The size at which one non-silent group costs least; the smallest of equals."""
    return min(sizes, key=lambda size: cost_per_group(difficulty, size, prompt_cost, completion_cost))


def cost_per_group(difficulty: Difficulty, size: int, prompt_cost: float, completion_cost: float) -> float:
    """Expected cost of one non-silent group of `size` completions. ∞ when every group is silent."""
    kept = 1 - float(difficulty.weights @ silent_rate(difficulty.pass_rates, size))
    return (prompt_cost + size * completion_cost) / kept if kept > 1e-9 else float("inf")
