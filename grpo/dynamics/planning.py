"""A run planned before it starts: group size, refresh interval and steps, from pass rates, lengths and a budget.

What a budget of tokens buys at group size G is a number of steps, and each step moves the policy by the mean drift
E_p[E[σ^(2−α)]] of its groups (arXiv:2607.00152): their product is compared over G, at one learning rate and as if
noise did not matter, which favours small groups; the fidelity asked for holds against that. The refresh interval
comes from the stability threshold, at the stiffness that a run needs to get to its plateau within its steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grpo.dynamics.difficulty import Difficulty
from grpo.dynamics.group_size import LADDER, cost_per_group
from grpo.dynamics.identity import drift, mean_fidelity, silent_rate
from grpo.dynamics.oscillator import oscillator, stiffness_of
from grpo.dynamics.refresh import LADDER as INTERVALS
from grpo.dynamics.thresholds import critical_gain, gain

EXPONENTS = (0.0, 0.5, 1.0, 1.5, 2.0)
# Of the gradient, for the harder half of the prompts.
FAIR_SHARE = 0.4


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What is known before a run.

    prompt_tokens, completion_tokens   mean lengths
    budget_tokens                      completion and prompt tokens to sample in all
    prompts_per_step                   prompts in one optimizer step
    momentum, exponent, ddof           Adam's β₁ and the dial
    max_shortfall                      fidelity that may be lost
    smallest, largest                  group sizes looked at
    relaxations                        relaxation times of the curve that the run is to hold: 3 is 95 % of the way
    staleness                          a key of `thresholds.RADII`
    longest_interval                   largest refresh interval looked at: ratios drift however stable the loop is
    gain_share                         share of its stability threshold that c = κτ/(1−μ) may reach
    """

    prompt_tokens: float = 100.0
    completion_tokens: float = 500.0
    budget_tokens: float = 1e9
    prompts_per_step: int = 128
    momentum: float = 0.9
    exponent: float = 1.0
    ddof: int = 0
    max_shortfall: float = 0.1
    smallest: int = 2
    largest: int = 64
    relaxations: float = 3.0
    staleness: str = "sample_and_hold"
    longest_interval: int = 8
    gain_share: float = 0.5


@dataclass(frozen=True, slots=True)
class SizeOption:
    """One group size: its silent share, fidelity, tokens per non-silent group, the steps that the budget buys, and
    the drift they add up to as a share of the best size's."""

    size: int
    silent: float
    fidelity: float
    group_tokens: float
    steps: int
    progress: float


@dataclass(frozen=True, slots=True)
class IntervalOption:
    """One refresh interval: c and its threshold, the damping ratio, and whether it is allowed."""

    interval: int
    gain: float
    threshold: float
    damping_ratio: float
    allowed: bool


@dataclass(frozen=True, slots=True)
class RunProposal:
    """The options, and which of each is proposed."""

    sizes: tuple[SizeOption, ...]
    intervals: tuple[IntervalOption, ...]
    size: SizeOption
    interval: IntervalOption
    reason: str


def propose(difficulty: Difficulty, request: PlanRequest) -> RunProposal:
    """The size that moves furthest among those of enough fidelity, or of the highest where none has enough; the
    longest interval that keeps its margin."""
    sizes = size_options(difficulty, request)
    faithful = [each for each in sizes if each.fidelity >= 1 - request.max_shortfall]
    if faithful:
        size = max(faithful, key=lambda each: each.progress)
        reason = f"of the sizes with fidelity ≥ {1 - request.max_shortfall:.0%} it gets furthest with the budget"
    else:
        size = max(sizes, key=lambda each: each.fidelity)
        reason = f"no size up to {request.largest} has fidelity ≥ {1 - request.max_shortfall:.0%}; this has the most"
    intervals = interval_options(size.steps, request)
    interval = [each for each in intervals if each.allowed][-1]
    return RunProposal(sizes, intervals, size, interval, reason)


def size_options(difficulty: Difficulty, request: PlanRequest) -> tuple[SizeOption, ...]:
    """One option a group size of the ladder."""
    rates, shares = difficulty.pass_rates, difficulty.weights
    rows = []
    for size in (each for each in LADDER if request.smallest <= each <= request.largest):
        tokens = request.prompts_per_step * (request.prompt_tokens + size * request.completion_tokens)
        steps = int(request.budget_tokens // tokens)
        moved = steps * float(shares @ drift(rates, size, request.exponent, request.ddof))
        rows.append((size, tokens, steps, moved))
    best = max(moved for *_, moved in rows) or 1.0
    return tuple(
        SizeOption(
            size=size,
            silent=float(shares @ silent_rate(rates, size)),
            fidelity=mean_fidelity(rates, shares, size, request.exponent, request.ddof),
            group_tokens=cost_per_group(difficulty, size, request.prompt_tokens, request.completion_tokens),
            steps=steps,
            progress=moved / best,
        )
        for size, _, steps, moved in rows
    )


def speaking_band(size: int, most_silent: float = 0.5) -> tuple[float, float]:
    """The pass rates at which at most `most_silent` of the groups of this size are silent: p^G + (1 − p)^G ≤ that."""
    rates = np.linspace(0, 0.5, 1001)
    low = float(rates[np.argmax(silent_rate(rates, size) <= most_silent)])
    return low, 1 - low


def balanced_exponent(difficulty: Difficulty, size: int, ddof: int = 0) -> float:
    """The smallest exponent of `EXPONENTS` that gives the harder half of the prompts that can speak (0 < p < 1) at
    least `FAIR_SHARE` of the gradient; GRPO's 1 where none does. A higher one lifts hard prompts and adds noise."""
    inside = (difficulty.pass_rates > 0) & (difficulty.pass_rates < 1)
    rates, shares = difficulty.pass_rates[inside], difficulty.weights[inside] / difficulty.weights[inside].sum()
    below = np.cumsum(shares) - shares
    harder = np.clip((0.5 - below) / shares, 0, 1)
    for exponent in EXPONENTS:
        each = shares * drift(rates, size, exponent, ddof)
        if harder @ each >= FAIR_SHARE * each.sum():
            return exponent
    return 1.0


def interval_options(steps: int, request: PlanRequest) -> tuple[IntervalOption, ...]:
    """One option a refresh interval, at the stiffness of a curve that relaxes `relaxations` times in `steps`."""
    found = []
    for interval in (each for each in INTERVALS if each <= request.longest_interval):
        stiffness = stiffness_of(max(steps, 1) / request.relaxations, request.momentum, interval)
        c = gain(request.momentum, stiffness, interval)
        threshold = critical_gain(request.staleness, request.momentum, interval)
        ratio = oscillator(request.momentum, stiffness, interval).damping_ratio
        found.append(
            IntervalOption(interval, c, threshold, ratio, interval == 1 or c <= request.gain_share * threshold)
        )
    return tuple(found)
