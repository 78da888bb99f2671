"""Collectors fill a round with scored groups.

A collector samples each prompt once, replaces silent groups, or gives more completions to prompts that teach more.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise, takewhile
from operator import attrgetter
from typing import TypeVar

from grpo.config import BudgetConfig, RefillConfig
from grpo.interfaces import Collective, Draw, Sampler, Task
from grpo.rollout.grading_thread import GradingThread, sampled_and_graded
from grpo.rollout.group_source import Source
from grpo.types import Collected, Observed, RolloutGroup, RoundPlan, ScoredGroup

Item = TypeVar("Item")

Spread = Callable[[Sequence[tuple[int, int]], int], list[int]]
"""A spread returns the further completions of each prompt of a round. Its arguments are the prompts' (correct, tried),
and the number of completions to spread."""

IsSilent = Callable[[ScoredGroup], bool]
"""A function of this type tells whether a group is silent, so that nothing can be learned from it."""


class PlainCollector:
    """Samples one group of every prompt, and keeps silent groups."""

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

    Each wave samples, over all ranks, one prompt for each group that the round still lacks. So the prompts and the
    groups of each step are the same for every number of ranks. Groups are redistributed over ranks afterwards, since
    one rank's prompts may have been the harder ones. A round that is still short after `max_waves` is filled with
    silent groups, spread over its steps (`fallback` "silent"), or learns from fewer groups ("short").
    """

    def __init__(
        self, source: Source, refill: RefillConfig, collective: Collective, is_silent: IsSilent = attrgetter("silent")
    ):
        """`is_silent` tells whether a group gives no gradient under the normalization in use."""
        self._source = source
        self._refill = refill
        self._collective = collective
        self._is_silent = is_silent

    def collect(self, plan: RoundPlan, steps_left: int) -> Collected:
        self._source.begin(plan, steps_left)
        sampled: dict[int, ScoredGroup] = {}  # by position in the stream: this rank's
        silent: dict[int, bool] = {}  # and all ranks'
        homes: dict[int, int] = {}  # the rank that sampled the group
        for _ in range(self._refill.max_waves):
            missing = plan.prompts_per_round - sum(not silence for silence in silent.values())
            if not missing:
                break
            wave = {scored.group.prompt.position: scored for scored in self._source.take(missing)}
            sampled |= wave
            own_silent = {place: self._is_silent(scored) for place, scored in wave.items()}
            for rank, share in enumerate(self._collective.gather(own_silent)):
                silent |= share
                homes |= dict.fromkeys(share, rank)
        self._source.rest()
        learned_places = self._kept(silent, plan.prompts_per_round)
        steps = in_steps(learned_places, plan.num_batches)
        shared_out = self._shared_out(steps, sampled, homes)
        return Collected(shared_out, tuple(sampled.values()), plan, self._source.cursor)

    def forget(self) -> None:
        self._source.forget()

    def _kept(self, silent: Mapping[int, bool], num_groups: int) -> list[int]:
        """Returns the stream positions of the groups to learn from, in the order of the optimizer steps."""
        mixed = [place for place in sorted(silent) if not silent[place]]
        if self._refill.fallback == "short":
            return mixed
        silent_places = iter([place for place in sorted(silent) if silent[place]])
        slots = {turn * num_groups // len(mixed): place for turn, place in enumerate(mixed)}
        return [slots[slot] if slot in slots else next(silent_places) for slot in range(num_groups)]

    def _shared_out(
        self, steps: Sequence[Sequence[int]], sampled: Mapping[int, ScoredGroup], homes: Mapping[int, int]
    ) -> tuple[tuple[ScoredGroup, ...], ...]:
        """Redistributes groups over ranks, see `learners_of`. Returns this rank's groups for each step."""
        ranks, rank = self._collective.world_size, self._collective.rank
        learners: dict[int, int] = {}
        for step in steps:
            learners |= learners_of({place: homes[place] for place in step}, ranks)
        leaving = {place: scored for place, scored in sampled.items() if learners.get(place, rank) != rank}
        available = dict(sampled)
        for share in self._collective.gather(leaving):
            available |= share
        return tuple(tuple(available[place] for place in step if learners[place] == rank) for step in steps)


def in_steps(groups: Sequence[Item], num_steps: int) -> tuple[tuple[Item, ...], ...]:
    """Cuts a round's groups into its optimizer steps, in order and as evenly as possible.

    >>> in_steps(list("abcdefg"), 3)
    (('a', 'b'), ('c', 'd', 'e'), ('f', 'g'))
    """
    edges = [round(index * len(groups) / num_steps) for index in range(num_steps + 1)]
    return tuple(tuple(groups[start:end]) for start, end in pairwise(edges))


def learners_of(homes: Mapping[int, int], ranks: int) -> dict[int, int]:
    """Assigns the group at each stream position to the rank that will learn from it.

    `homes` says which rank has sampled the group. A rank keeps its groups while it has room. All ranks get as equal a
    number of groups as possible.

    >>> learners_of({0: 0, 2: 0, 4: 0, 5: 1}, ranks=2)
    {0: 0, 2: 0, 5: 1, 4: 1}
    """
    room = [len(range(rank, len(homes), ranks)) for rank in range(ranks)]
    learners: dict[int, int] = {}
    for place, home in homes.items():
        if room[home]:
            learners[place] = home
            room[home] -= 1
    free = (rank for rank in range(ranks) for _ in range(room[rank]))
    return learners | {place: next(free) for place in homes if place not in learners}


class BudgetedCollector:
    """Collects groups of unequal size, and gives more completions to prompts from which more can be learned.

    Each prompt first gets a few completions (`pilot`). `spread` then allots the rest of the round's completions to the
    prompts of all ranks, so that groups are the same for every number of ranks. A group that gets more is graded again
    as a whole.
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
        scored = sampled_and_graded(self._sampler, self._grading, Draw(prompts, first))
        # A group that could not be graded shows nothing, so it gets no more.
        own_counts = [(group.group.prompt.position, group.count) for group in scored if not group.spoilt]
        counts = dict(sorted(chain(*self._collective.gather(own_counts))))
        rest = (plan.group_size - first) * plan.prompts_per_round
        further = dict(zip(counts, self._spread([*counts.values()], rest) if counts else (), strict=True))
        indices = [index for index, prompt in enumerate(prompts) if further.get(prompt.position)]
        sizes = [further[prompts[index].position] for index in indices]
        further_prompts = [prompts[index] for index in indices]
        earlier = [scored[index].group for index in indices]
        larger = sampled_and_graded(
            self._sampler,
            self._grading,
            Draw(further_prompts, sizes, first_sample=first),
            lambda place, group: _joined(earlier[place], group),
        )
        self._sampler.sleep()
        for index, group in zip(indices, larger, strict=True):
            scored[index] = group
        steps = in_steps(scored, plan.num_batches)
        return Collected(steps, tuple(scored), plan, self._task.cursor, asked_first=first)

    def forget(self) -> None:
        """Does nothing, because nothing is sampled ahead."""


def _joined(first: RolloutGroup, second: RolloutGroup) -> RolloutGroup:
    """Joins the completions of two groups of one prompt. Episodes of the second may open otherwise than the first's."""
    prompt, own = first.prompt.token_ids, second.prompt.token_ids
    completions = second.completions
    if own != prompt:
        alike = (one == other for one, other in zip(prompt, own, strict=False))
        keep = sum(takewhile(bool, alike))
        opening = Observed(0, own[keep:], keep)
        completions = tuple(replace(each, observed=(opening, *each.observed)) for each in completions)
    return replace(
        first,
        completions=first.completions + completions,
        oldest_version=min(first.oldest_version, second.oldest_version),
        newest_version=max(first.newest_version, second.newest_version),
    )
