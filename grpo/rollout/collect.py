"""How a round is filled with scored groups: once, again and again until none is silent, or where it is worth it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from grpo.config import BudgetConfig, RefillConfig
from grpo.interfaces import Collective, Sampler, Task
from grpo.rollout.source import Source
from grpo.types import Collected, RoundPlan, ScoredGroup

Spread = Callable[[Mapping[tuple[int, int], int], Sequence[tuple[int, int]], int], list[int]]
"""(correct, tried) → prompts of all ranks; (correct, tried) of this rank's; completions to spread → more for each."""


class PlainCollector:
    """Every prompt is asked once; silent groups stay in."""

    def __init__(self, source: Source):
        self._source = source

    def collect(self, plan: RoundPlan, steps_left: int) -> Collected:
        self._source.begin(plan, steps_left)
        scored = tuple(self._source.take(plan.prompts_per_round))
        self._source.rest()
        return Collected(scored, scored, plan, self._source.cursor)


class RefillingCollector:
    """DAPO's dynamic sampling (arXiv:2503.14476): silent groups make room for groups of other prompts.

    Waves are synchronous over ranks: each takes as many prompts per rank as the neediest rank lacks, so
    the stream of prompts stays one stream. After `max_waves` a rank that is still short falls back to its
    own silent groups ("silent") or learns from fewer ("short").
    """

    def __init__(self, source: Source, refill: RefillConfig, collective: Collective):
        self._source = source
        self._refill = refill
        self._collective = collective

    def collect(self, plan: RoundPlan, steps_left: int) -> Collected:
        wanted = plan.prompts_per_round // self._collective.world_size
        sampled: list[ScoredGroup] = []
        self._source.begin(plan, steps_left)
        for _ in range(self._refill.max_waves):
            informative = [scored for scored in sampled if not scored.silent]
            missing = self._collective.maximum(max(0, wanted - len(informative)))
            if not missing:
                break
            sampled += self._source.take(missing * self._collective.world_size)
        self._source.rest()
        kept = [scored for scored in sampled if not scored.silent][:wanted]
        if self._refill.fallback == "silent":
            silent = [scored for scored in sampled if scored.silent]
            kept += silent[: wanted - len(kept)]
        return Collected(tuple(kept), tuple(sampled), plan, self._source.cursor)


class BudgetedCollector:
    """Groups of unequal size: each prompt is asked a few times, and the rest of the round's completions goes where
    `spread` sees something to learn. Every rank spends prompts × G, as without, or less."""

    def __init__(self, task: Task, sampler: Sampler, budget: BudgetConfig, collective: Collective, spread: Spread):
        self._task = task
        self._sampler = sampler
        self._budget = budget
        self._collective = collective
        self._spread = spread

    def collect(self, plan: RoundPlan, steps_left: int) -> Collected:
        prompts = self._task.next_prompts(plan.prompts_per_round)
        first = min(self._budget.pilot, plan.group_size)
        looked = self._task.grade(self._sampler.generate(prompts, first))
        mine = [group.count for group in looked]
        everyone = sum((Counter(counts) for counts in self._collective.gather(mine)), Counter())
        further = self._spread(everyone, mine, (plan.group_size - first) * len(prompts))
        again = [index for index, count in enumerate(further) if count]
        asked = self._sampler.generate(
            [prompts[index] for index in again], [further[index] for index in again], first_sample=first
        )
        self._sampler.sleep()
        for index, group in zip(again, self._task.grade(asked), strict=True):
            looked[index] = _joined(looked[index], group)
        return Collected(tuple(looked), tuple(looked), plan, self._task.cursor)


def _joined(first: ScoredGroup, second: ScoredGroup) -> ScoredGroup:
    """One group of both groups' completions; they are of one prompt."""
    completions = first.group.completions + second.group.completions
    oldest = min(first.group.oldest_version, second.group.oldest_version)
    newest = max(first.group.newest_version, second.group.newest_version)
    group = replace(first.group, completions=completions, oldest_version=oldest, newest_version=newest)
    return ScoredGroup(group, first.grades + second.grades, first.included + second.included)
