"""This module chooses the group size G by what progress costs.

Two criteria each ask for a size, and the larger one is chosen.

    cost          The size at which progress costs fewest tokens, or seconds. A step's progress is the mean gradient
                  over the root of its noise (`signal_to_noise`). Adam divides a common factor of the gradient away, so
                  how much of the infinite group's gradient is left decides nothing by itself.
    fluctuation   Near its plateau the curve fluctuates with a variance ∝ 1/G (arXiv:2606.30789). The
                  standard deviation must stay below a share of the improvement that may be left. Early in a run much
                  is left, and small groups suffice. Near the plateau G grows, at most by a factor of 2 at a time, so
                  that the effect of each larger size is measured before the next.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grpo.dynamics.difficulty import Array, Difficulty
from grpo.dynamics.identity import drift

LADDER = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192, 256)


# The variance of what a prompt alone asks of the policy, over that of one completion's score. With this value the law
# gives the measured speeds of the tiny model at other group sizes and batches (benchmarks/README.md, "What if").
PROMPT_NOISE = 1.0


def sizes_between(smallest: int, largest: int) -> tuple[int, ...]:
    """Returns the sizes of the ladder from `smallest` to `largest`, or `smallest` alone if none lies in between."""
    return tuple(size for size in LADDER if smallest <= size <= largest) or (smallest,)


@dataclass(frozen=True, slots=True)
class GroupSizeRule:
    """A group size rule bounds the choice of the size.

    smallest, largest   smallest and largest size allowed
    fluctuation         largest standard deviation about the plateau, as a share of the improvement left
    exponent, mean_exponent   the dials' α and β
    hold_samples        whether a step keeps its number of samples when G changes, instead of its number of prompts
    """

    smallest: int
    largest: int
    fluctuation: float
    exponent: float = 1.0
    mean_exponent: float = 0.0
    hold_samples: bool = False

    @property
    def sizes(self) -> tuple[int, ...]:
        """The allowed sizes."""
        return sizes_between(self.smallest, self.largest)


@dataclass(frozen=True, slots=True)
class GroupSizeChoice:
    """This type holds the chosen size, and the size that each criterion asks for.

    `by_fluctuation` is None when nothing is forecast or no fluctuation was measured.
    """

    size: int
    by_cost: int
    by_fluctuation: float | None

    @property
    def reason(self) -> str:
        """The line for the log says which criterion decided."""
        if self.by_fluctuation is None or self.by_fluctuation <= self.by_cost:
            return f"progress is cheapest at G = {self.by_cost}"
        return f"fluctuation asks for {self.by_fluctuation:.1f}, cost for {self.by_cost}"


def choose_group_size(
    difficulty: Difficulty,
    rule: GroupSizeRule,
    current: int,
    process_variance: float,
    improvement_left: float | None,
    prompt_cost: float,
    completion_cost: float,
) -> GroupSizeChoice:
    """Chooses the smallest allowed size that meets both criteria, or the largest allowed size if none does.

    process_variance   variance of the curve about its law beyond sampling error, measured at size `current`
    improvement_left   upper bound of the gain until the run's end; None while nothing is forecast
    prompt_cost, completion_cost   both in the same unit, for example tokens or seconds
    """
    by_fluctuation = None
    if improvement_left is not None and process_variance > 0:
        allowed = rule.fluctuation * max(improvement_left, 1e-3)
        by_fluctuation = min(current * process_variance / allowed**2, 2.0 * current)
    costs = {size: cost_of_progress(difficulty, rule, size, prompt_cost, completion_cost) for size in rule.sizes}
    by_cost = min(costs, key=lambda size: costs[size])
    wanted = max(by_fluctuation or 0, by_cost)
    size = next((size for size in rule.sizes if size >= wanted), rule.sizes[-1])
    return GroupSizeChoice(size, by_cost, by_fluctuation)


def cost_of_progress(
    difficulty: Difficulty, rule: GroupSizeRule, size: int, prompt_cost: float, completion_cost: float
) -> float:
    """Returns the cost of one unit of progress at this size, up to a factor that all sizes share.

    With a fixed number of prompts a step costs in proportion to a group. With a fixed number of samples it always costs
    the same, but the number of prompts, and with its root the progress, falls as a group grows. It is ∞ when every
    group is silent.
    """
    ratio = float(signal_to_noise(difficulty, size, rule.exponent, rule.mean_exponent))
    group = prompt_cost + size * completion_cost
    return (group**0.5 if rule.hold_samples else group) / ratio if ratio else float("inf")


def signal_to_noise(
    difficulty: Difficulty,
    size: int,
    exponent: float,
    mean_exponent: float = 0.0,
    prompt_noise: float | Array = PROMPT_NOISE,
) -> Array:
    """Returns the mean gradient of one group over the root of its noise.

    A group is a sample of two stages, prompts and their completions (Cochran, Sampling Techniques, 1977, chapter 10).
    By the identity of arXiv:2607.00152 its gradient is w·σ²·Δs, w = σ^(−α)·p^(−β). Δs is the difference of the mean
    scores of right and wrong completions. It has a part that all prompts share, the signal; a part of the prompt's
    own, of variance ρ; and the noise of its completions, of variance 1/(G·σ²). So the ratio is

        E[w·σ²] / √(ρ·E[w²·σ⁴] + E[w²·σ²]/G)

    up to a factor that all sizes share. It grows with the root of the number of groups, and is 0 when every group is
    silent. ρ is `prompt_noise`, of any shape, which is that of the result.
    """
    rates, shares = difficulty.pass_rates, difficulty.weights
    signal = float(shares @ drift(rates, size, exponent, mean_exponent=mean_exponent))
    # `drift` at exponent a is E[σ^(2−a)], so w²·σ² is that at 2α, and w²·σ⁴ that at 2α − 2.
    within, between = (
        float(shares @ drift(rates, size, 2 * exponent - less, mean_exponent=2 * mean_exponent)) for less in (0, 2)
    )
    noise = within / size + np.asarray(prompt_noise) * between
    return signal / noise**0.5 if signal > 1e-12 and within > 1e-12 else np.zeros_like(noise)
