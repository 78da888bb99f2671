"""This module chooses a step's batch, B prompts with G completions each: the one at which a token gains most.

A larger batch aims a step better (`step.progress_of_step`), and costs more tokens or seconds. How much the better aim
is worth depends on the heat that a step pays whatever its batch (`grpo.dynamics.gain`). Where heat is small against the
signal, the smallest batch gains most for its cost. Where heat is large, small batches lose what they have learned, and
only larger ones gain anything. Where no batch gains anything, the learning rate is too high, and no batch mends it.

Where the learning rate may change too, it makes up for any aim: a step gains aim²·A/2C at its best rate. Then the batch
is chosen at which the square of the aim costs least, and the rate that suits it. Where the rate may not change, a
choice says whether it is so high that it would surely be lowered.
"""

from dataclasses import dataclass, replace
from itertools import product

from grpo.dynamics.difficulty import Difficulty
from grpo.dynamics.gain import CERTAIN, Gain
from grpo.dynamics.step import BatchSetting, StepCost, progress_of_step

# Another batch is taken where it gains this many times as much for its cost.
LEAST_MORE = 1.1
# A rate that may change goes to this share of that at which steps gain most, where they gain three quarters as much.
# Above it little more is gained, and what is lost by an error grows fast.
CALM = 0.5
# The rate falls by at least the first factor at a time, and changes by at most the second one.
LEAST_FACTOR, MOST_FACTOR = 1.4, 2.0
LADDER = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192, 256)


def sizes_between(smallest: int, largest: int) -> tuple[int, ...]:
    """Returns the sizes of the ladder from `smallest` to `largest`, or `smallest` alone if none lies in between."""
    return tuple(size for size in LADDER if smallest <= size <= largest) or (smallest,)


@dataclass(frozen=True, slots=True)
class BatchRule:
    """A batch rule bounds the choice of the batch.

    smallest, largest   smallest and largest group size allowed
    fewest, most        fewest and most prompts per step allowed, which are equal where the prompts are held fixed
    multiple            the prompts are a multiple of this, so that all ranks get equally many
    changes_rate        whether the learning rate follows the batch
    """

    smallest: int
    largest: int
    fewest: int
    most: int
    multiple: int = 1
    changes_rate: bool = False

    def prompts(self, now: int) -> tuple[int, ...]:
        """Returns the numbers of prompts that may follow `now`: half, the same or twice.

        If all of these are out of bounds, as after a resume with other bounds, it returns `now` moved into the bounds.
        """
        numbers = {max(1, round(now * factor / self.multiple)) * self.multiple for factor in (0.5, 1.0, 2.0)}
        allowed = tuple(sorted(number for number in numbers if self.fewest <= number <= self.most))
        return allowed or (min(max(now, self.fewest), self.most),)

    def candidates(self, now: BatchSetting) -> list[BatchSetting]:
        """Returns the batches that the rule allows to follow `now`: groups of at least half and at most twice the size.

        If all of these are out of bounds, it returns those with the nearest size in bounds."""
        allowed = sizes_between(self.smallest, self.largest)
        near = [size for size in allowed if now.group_size / 2 <= size <= 2 * now.group_size]
        sizes = near or [min(allowed, key=lambda size: abs(size - now.group_size))]
        pairs = product(sizes, self.prompts(now.prompts_per_step))
        return [replace(now, group_size=size, prompts_per_step=number) for size, number in pairs]


@dataclass(frozen=True, slots=True)
class BatchChoice:
    """A batch choice holds the chosen batch, the factor on the learning rate, and the reason of a change.

    `rate` is relative to the rate as it is, and 1 where the rule keeps the rate. `best_rate` is the factor at which the
    chosen batch would gain most, and `is_high` says that a rule which may change the rate would surely lower it,
    whatever batch is allowed.
    """

    chosen: BatchSetting
    rate: float
    best_rate: float
    is_high: bool
    reason: str


def choose_batch(
    difficulty: Difficulty, rule: BatchRule, first: BatchSetting, now: BatchSetting, cost: StepCost, gain: Gain
) -> BatchChoice:
    """Chooses the batch at which a unit of cost gains most. Aims are relative to that of the batch `first`.

    The batch stays as it is where another would gain less than `LEAST_MORE` as much again, or where it is too uncertain
    that it would gain more. Where no batch gains anything, it grows at most to the first one: then the rate is at
    fault, and the model is too coarse to tell larger batches apart. Where no group says anything, the largest is taken.
    """
    allowed = rule.candidates(now)
    whole = float(progress_of_step(first, difficulty))
    aims = {batch: float(progress_of_step(batch, difficulty)) / (whole or 1.0) for batch in {now, *allowed}}
    costs = {batch: cost.of(batch, difficulty) for batch in aims}
    if not any(aims.values()):
        return BatchChoice(max(allowed, key=completions), 1.0, 1.0, False, "no group says anything")
    if rule.changes_rate:
        worth = {batch: aim**2 / costs[batch] for batch, aim in aims.items()}
    else:
        worth = {batch: gain.of(aim) / costs[batch] for batch, aim in aims.items()}
    best = max(allowed, key=lambda batch: worth[batch])
    nothing = worth[best] <= 0
    if nothing:
        best = max((batch for batch in allowed if aims[batch] <= 1), key=lambda batch: aims[batch], default=now)
    chance = 1.0 if rule.changes_rate else gain.chance(aims[best], costs[best], aims[now], costs[now])
    if now in allowed and (0 < worth[best] < LEAST_MORE * worth[now] or chance < CERTAIN):
        best = now
    rate = _rate(aims[best] / gain.heat, gain.best_rate(aims[best])[0]) if rule.changes_rate else 1.0
    heat = gain.heat / aims[now] if aims[now] else float("inf")
    what = "steps gain nothing" if nothing else f"{chance:.0%} sure that a {cost.unit} gains more"
    if rule.changes_rate:
        what = f"steps gain most at {aims[best] / gain.heat:.2g} times the rate, and half of that is the aim"
    reason = f"{what}, since the heat of a step is {heat:.2g} of its signal"
    if not rule.smallest <= now.group_size <= rule.largest:
        sizes = " to ".join(map(str, sorted({rule.smallest, rule.largest})))
        bounds = f"dynamics.adaptive allows groups of {sizes} completions"
        reason = f"{bounds}; {reason}" if rule.changes_rate else bounds
    largest = replace(first, group_size=rule.largest, prompts_per_step=rule.most)
    best_aim = max(aims[best], float(progress_of_step(largest, difficulty)) / (whole or 1.0))
    is_high = CALM * gain.best_rate(best_aim)[1] < 1 / LEAST_FACTOR
    return BatchChoice(best, rate, aims[best] / gain.heat, is_high, reason)


def _rate(best: float, lowest: float) -> float:
    """Returns the factor on the learning rate, from that at which steps gain most and the lower end of its interval.

    A lower rate is taken as soon as it is expected to be better, and a higher one only where that is sure.
    """
    if CALM * best < 1 / LEAST_FACTOR:
        return max(CALM * best, 1 / MOST_FACTOR)
    return min(CALM * best, MOST_FACTOR) if CALM * lowest > 1 else 1.0


def completions(setting: BatchSetting) -> int:
    """Returns the number of completions of one step."""
    return setting.prompts_per_step * setting.group_size
