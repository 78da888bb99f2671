"""Collectors fill a round with scored groups: once, until none is silent, or where completions are worth most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from operator import attrgetter
from typing import TypeVar

from grpo.config import BudgetConfig, RefillConfig
from grpo.interfaces import Collective, Sampler, Task
from grpo.rollout.grading_thread import GradingThread, sampled_and_graded
from grpo.rollout.group_source import Source
from grpo.types import Collected, RoundPlan, ScoredGroup

Item = TypeVar("Item")

Spread = Callable[[Mapping[tuple[int, int], int], Sequence[tuple[int, int]], int], list[int]]
"""(correct, tried) → prompts of all ranks; (correct, tried) of this rank's; completions to spread → more for each."""

IsSilent = Callable[[ScoredGroup], bool]
"""It says whether nothing can be learned from a group."""


class PlainCollector:
    """Asks every prompt once. Silent groups stay in."""

    def __init__(self, source: Source):
        self._source = source

    def collect(self, plan: RoundPlan, steps_left: int) -> Collected:
        self._source.begin(plan, steps_left)
        scored = tuple(self._source.take(plan.prompts_per_round))
        self._source.rest()
        return Collected(in_steps(scored, plan.num_batches), scored, plan, self._source.cursor)

    def forget(self) -> None:
        self._source.forget()


class RefillingCollector:
    """Implements DAPO's dynamic sampling (arXiv:2503.14476): silent groups make room for groups of other prompts.

    Waves are those of all ranks together: each asks as many prompts as the round still lacks. So the prompts asked, and
    the groups of each step, are the same for every number of ranks. Groups are shared out afterwards, since one rank's
    prompts may have been the harder ones. After `max_waves` a round that is still short falls back to silent groups,
    spread over its steps ("silent"), or learns from fewer ("short").
    """

    def __init__(
        self,
        source: Source,
        refill: RefillConfig,
        collective: Collective,
        is_silent: IsSilent = attrgetter("silent"),
    ):
        """`is_silent` says whether the normalization in use makes nothing of a group's rewards."""
        self._source = source
        self._refill = refill
        self._collective = collective
        self._is_silent = is_silent

    def collect(self, plan: RoundPlan, steps_left: int) -> Collected:
        self._source.begin(plan, steps_left)
        sampled: dict[int, ScoredGroup] = {}  # by position in the stream: this rank's
        silent: dict[int, bool] = {}  # and all ranks'
        for _ in range(self._refill.max_waves):
            missing = plan.prompts_per_round - sum(not silence for silence in silent.values())
            if not missing:
                break
            wave = self._wave(missing)
            sampled |= wave
            for share in self._collective.gather({place: self._is_silent(scored) for place, scored in wave.items()}):
                silent |= share
        self._source.rest()
        kept = self._kept(silent, plan.prompts_per_round)
        steps = in_steps(kept, plan.num_batches)
        return Collected(self._shared_out(steps, sampled), tuple(sampled.values()), plan, self._source.cursor)

    def forget(self) -> None:
        self._source.forget()

    def _wave(self, num_prompts: int) -> dict[int, ScoredGroup]:
        """Returns this rank's groups of the next prompts, by position."""
        first, ranks = self._source.cursor, self._collective.world_size
        mine = [place for place in range(first, first + num_prompts) if place % ranks == self._collective.rank]
        return dict(zip(mine, self._source.take(num_prompts), strict=True))

    def _kept(self, silent: Mapping[int, bool], wanted: int) -> list[int]:
        """Returns the positions that are learned from, first step's first."""
        telling = [place for place in sorted(silent) if not silent[place]]
        if self._refill.fallback == "short":
            return telling
        filling = iter([place for place in sorted(silent) if silent[place]])
        slots = {turn * wanted // len(telling): place for turn, place in enumerate(telling)}
        return [slots[slot] if slot in slots else next(filling) for slot in range(wanted)]

    def _shared_out(
        self, steps: Sequence[Sequence[int]], sampled: Mapping[int, ScoredGroup]
    ) -> tuple[tuple[ScoredGroup, ...], ...]:
        """Returns this rank's groups of each step: equally many on every rank, its own as far as they go."""
        ranks, rank = self._collective.world_size, self._collective.rank
        learners = {place: learner for step in steps for place, learner in dealt(step, ranks).items()}
        leaving = {place: scored for place, scored in sampled.items() if learners.get(place, rank) != rank}
        at_hand = dict(sampled)
        for share in self._collective.gather(leaving):
            at_hand |= share
        return tuple(tuple(at_hand[place] for place in step if learners[place] == rank) for step in steps)


def in_steps(groups: Sequence[Item], num_steps: int) -> tuple[tuple[Item, ...], ...]:
    """Cuts a round's groups into its optimizer steps, in order and as evenly as they allow.

    >>> in_steps(list("abcdefg"), 3)
    (('a', 'b'), ('c', 'd', 'e'), ('f', 'g'))
    """
    edges = [round(index * len(groups) / num_steps) for index in range(num_steps + 1)]
    return tuple(tuple(groups[start:end]) for start, end in pairwise(edges))


def dealt(places: Sequence[int], ranks: int) -> dict[int, int]:
    """Returns the rank that learns from the group at each of these positions: the one that sampled it, while it has
    room.

    >>> dealt([0, 2, 4, 5], 2)
    {0: 0, 2: 0, 5: 1, 4: 1}
    """
    room = [len(range(rank, len(places), ranks)) for rank in range(ranks)]
    learners: dict[int, int] = {}
    for place in places:
        if room[place % ranks]:
            learners[place] = place % ranks
            room[place % ranks] -= 1
    free = (rank for rank in range(ranks) for _ in range(room[rank]))
    return learners | {place: next(free) for place in places if place not in learners}


class BudgetedCollector:
    """Collects groups of unequal size, and gives more completions to prompts from which more can be learned.

    Each prompt is asked a few times first. `spread` then says how the rest of the round's completions is shared out. A
    rank never asks for more than prompts × G completions.
    """

    def __init__(
        self,
        task: Task,
        sampler: Sampler,
        grading: GradingThread,
        budget: BudgetConfig,
        collective: Collective,
        spread: Spread,
    ):
        self._task = task
        self._sampler = sampler
        self._grading = grading
        self._budget = budget
        self._collective = collective
        self._spread = spread

    def collect(self, plan: RoundPlan, steps_left: int) -> Collected:
        prompts = self._task.next_prompts(plan.prompts_per_round)
        first = min(self._budget.pilot, plan.group_size)
        looked = sampled_and_graded(self._sampler, self._grading, prompts, first)
        mine = [group.count for group in looked]
        everyone = sum((Counter(counts) for counts in self._collective.gather(mine)), Counter())
        further = self._spread(everyone, mine, (plan.group_size - first) * len(prompts))
        again = [index for index, count in enumerate(further) if count]
        chosen, sizes = [prompts[index] for index in again], [further[index] for index in again]
        asked = sampled_and_graded(self._sampler, self._grading, chosen, sizes, first_sample=first)
        self._sampler.sleep()
        for index, group in zip(again, asked, strict=True):
            looked[index] = _joined(looked[index], group)
        steps = in_steps(looked, plan.num_batches)
        return Collected(steps, tuple(looked), plan, self._task.cursor, asked_first=first)

    def forget(self) -> None:
        """Does nothing, because nothing is sampled ahead."""


def _joined(first: ScoredGroup, second: ScoredGroup) -> ScoredGroup:
    """Joins the completions of two groups of one prompt."""
    completions = first.group.completions + second.group.completions
    oldest = min(first.group.oldest_version, second.group.oldest_version)
    newest = max(first.group.newest_version, second.group.newest_version)
    group = replace(first.group, completions=completions, oldest_version=oldest, newest_version=newest)
    return ScoredGroup(group, first.grades + second.grades, first.included + second.included)
