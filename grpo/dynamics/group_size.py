"""This module chooses a step's batch, B prompts with G completions each, by what progress costs.

Two criteria are met, and the cheapest batch that meets both is chosen.

    cost          A step costs tokens or seconds, and its progress is the signal-to-noise ratio of its gradient
                  (`step.progress_of_step`). Cost over progress is made small. The gradient's length decides nothing by
                  itself, since Adam divides a common factor of the gradient away.
    fluctuation   Near its plateau the curve fluctuates with a variance ∝ 1/G (arXiv:2606.30789), here 1/(B·G). The
                  standard deviation must stay below a share of the improvement that may be left. Early in a run much
                  is left, and small batches suffice. Near the plateau they grow, at most by a factor of 2 at a time, so
                  that the effect of each larger batch is measured before the next.

If cost is counted in tokens, the fewest prompts are always cheapest, since progress grows as √B and cost as B. So the
lower bound on prompts and the fluctuation decide. If cost is counted in seconds, the best number of prompts takes as
much time as the fixed part of a step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from grpo.dynamics.difficulty import Difficulty
from grpo.dynamics.step import BatchSetting, StepCost, progress_of_step

LADDER = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192, 256)


def sizes_between(smallest: int, largest: int) -> tuple[int, ...]:
    """Returns the sizes of the ladder from `smallest` to `largest`, or `smallest` alone if none lies in between."""
    return tuple(size for size in LADDER if smallest <= size <= largest) or (smallest,)


@dataclass(frozen=True, slots=True)
class BatchRule:
    """A batch rule bounds the choice of the batch.

    smallest, largest   smallest and largest group size allowed
    fewest, most        fewest and most prompts per step allowed, which are equal where the prompts are held fixed
    samples             number of completions per step, where this is held fixed instead of the prompts; else 0
    multiple            the prompts are a multiple of this, so that all ranks get equally many
    fluctuation         largest standard deviation about the plateau, as a share of the improvement left
    """

    smallest: int
    largest: int
    fewest: int
    most: int
    fluctuation: float
    samples: int = 0
    multiple: int = 1

    def prompts(self, now: int, size: int) -> tuple[int, ...]:
        """Returns the numbers of prompts that may follow `now`, with groups of `size`: half, as many or twice as many.

        If all of these are out of bounds, as after a resume with other bounds, it returns `now` moved into the bounds.
        With `samples`, it returns only the number of prompts that `samples` completions make up.
        """
        if self.samples:
            return (self._shared(self.samples / size),)
        numbers = {self._shared(now * factor) for factor in (0.5, 1.0, 2.0)}
        allowed = tuple(sorted(number for number in numbers if self.fewest <= number <= self.most))
        return allowed or (min(max(now, self.fewest), self.most),)

    def _shared(self, number: float) -> int:
        return max(1, round(number / self.multiple)) * self.multiple

    def candidates(self, now: BatchSetting) -> list[BatchSetting]:
        """Returns the batches that the rule allows to follow `now`."""
        sizes = sizes_between(self.smallest, self.largest)
        pairs = [(size, number) for size in sizes for number in self.prompts(now.prompts_per_step, size)]
        return [replace(now, group_size=size, prompts_per_step=number) for size, number in pairs]


@dataclass(frozen=True, slots=True)
class BatchChoice:
    """A batch choice says which batch the next round gets, and why.

    chosen          the batch of the next round
    by_cost         the batch with which progress is cheapest
    by_fluctuation  completions a step that keep the curve calm enough, or None if any number does
    """

    chosen: BatchSetting
    by_cost: BatchSetting
    by_fluctuation: float | None

    @property
    def reason(self) -> str:
        """Returns a line for the log that says which criterion decided."""
        if self.chosen == self.by_cost:
            return f"progress is cheapest at {_words(self.by_cost)}"
        return f"fluctuation asks for {self.by_fluctuation:.0f} completions a step, cost for {_words(self.by_cost)}"


def _words(setting: BatchSetting) -> str:
    return f"{setting.prompts_per_step} prompts × G = {setting.group_size}"


def choose_batch(
    difficulty: Difficulty, rule: BatchRule, now: BatchSetting, cost: StepCost, by_fluctuation: float | None = None
) -> BatchChoice:
    """Chooses the batch at which progress is cheapest, of those with at least `by_fluctuation` completions.

    If no batch has that many, the batch with the most completions is chosen. Where the number of completions is held
    fixed (`BatchRule.samples`), `by_fluctuation` is ignored.
    """
    costs = {setting: cost_of_progress(difficulty, setting, cost) for setting in rule.candidates(now)}
    by_cost = min(costs, key=lambda setting: costs[setting])
    if by_fluctuation is None or rule.samples:
        return BatchChoice(by_cost, by_cost, None)
    least_completions = min(by_fluctuation, max(map(completions, costs)))
    calm = [setting for setting in costs if completions(setting) >= least_completions]
    return BatchChoice(min(calm, key=lambda setting: costs[setting]), by_cost, by_fluctuation)


def completions(setting: BatchSetting) -> int:
    """Returns the number of completions of one step."""
    return setting.prompts_per_step * setting.group_size


def cost_of_progress(difficulty: Difficulty, setting: BatchSetting, cost: StepCost) -> float:
    """Returns the cost of one unit of progress, up to a factor that all batches share. It is ∞ when every group is
    silent."""
    progress = float(progress_of_step(setting, difficulty))
    return cost.of(setting, difficulty) / progress if progress else float("inf")


def calm_completions(
    rule: BatchRule, now: BatchSetting, process_variance: float, improvement_left: float | None
) -> float | None:
    """Returns the completions per step that keep the fluctuation within the rule, at most twice as many as now.

    The result is None without a forecast or a measured fluctuation. `process_variance` is the variance of the curve
    about its law beyond sampling error, under the present batch. `improvement_left` is an upper bound of the gain until
    the run's end.
    """
    if improvement_left is None or process_variance <= 0:
        return None
    allowed = rule.fluctuation * max(improvement_left, 1e-3)
    return completions(now) * min(process_variance / allowed**2, 2.0)
