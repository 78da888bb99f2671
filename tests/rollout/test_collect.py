"""These tests check dynamic sampling and budgets with scripted rewards: what is asked, kept, dropped and fallen back
to."""

from dataclasses import replace

import numpy as np
import pytest

from grpo.config import BudgetConfig, RefillConfig
from grpo.rollout.collect import BudgetedCollector, PlainCollector, RefillingCollector
from grpo.rollout.grading_thread import GradingThread
from grpo.tasks.prompt_stream import dealt
from grpo.types import Completion, Grade, Observed, Problem, Prompt, RolloutGroup, RoundPlan, ScoredGroup
from tests.fakes import ScriptedSampler, ScriptedTask, SingleRank, asking, ids, on_ranks

MIXED, RIGHT, WRONG = (1, 0), (1, 1), (0, 0)
PLAN = RoundPlan(group_size=2, refresh_interval=1, prompts_per_step=3)


def refilled(rewards, **settings):
    task = ScriptedTask(rewards)
    collector = RefillingCollector(
        asking(task, ScriptedSampler()), RefillConfig(enabled=True, **settings), SingleRank()
    )
    return collector.collect(PLAN, 9), task


def test_without_refill_silent_groups_stay_in():
    task = ScriptedTask([MIXED, RIGHT, WRONG])
    collected = PlainCollector(asking(task, ScriptedSampler())).collect(PLAN, 9)
    assert ids(collected.groups) == ids(collected.sampled) == ["p0", "p1", "p2"]


def test_silent_groups_are_replaced_by_other_prompts_and_only_as_many_as_are_missing():
    collected, task = refilled([MIXED, RIGHT, WRONG, MIXED, RIGHT, MIXED])
    assert ids(collected.groups) == ["p0", "p3", "p5"]
    assert ids(collected.sampled) == ["p0", "p1", "p2", "p3", "p4", "p5"]
    assert task.cursor == 6


def test_a_full_batch_asks_nothing_more():
    collected, task = refilled([MIXED, MIXED, MIXED, WRONG])
    assert ids(collected.groups) == ["p0", "p1", "p2"]
    assert task.cursor == 3


def test_after_the_last_wave_silent_groups_fill_up_or_the_batch_is_short():
    rewards = [MIXED, RIGHT, WRONG] + [WRONG] * 10
    collected, task = refilled(rewards, max_waves=2)
    assert ids(collected.groups) == ["p0", "p1", "p2"]
    assert task.cursor == 5
    collected, _ = refilled(rewards, max_waves=2, fallback="short")
    assert ids(collected.groups) == ["p0"]


class DealtTask(ScriptedTask):
    """This task deals its prompts to ranks by lengths that differ, so ranks do not take turns."""

    def next_prompts(self, count):
        first, self.cursor = self.cursor, self.cursor + count
        dealt_to = dealt([float(place * 7 % 5) for place in range(first, self.cursor)], self.world_size, first)
        own_places = [place for place, rank in enumerate(dealt_to, first) if rank == self.rank]
        return [Prompt(Problem(f"p{place}", "q", "a"), (1,), position=place) for place in own_places]


def on_so_many_ranks(ranks, rewards, plan, kind=ScriptedTask, **settings):
    """Returns what each of `ranks` ranks collects, and the position of the rank's stream afterwards."""

    def collect(collective):
        task = kind(rewards, collective.rank, ranks)
        refill = RefillConfig(enabled=True, **settings)
        return RefillingCollector(asking(task, ScriptedSampler()), refill, collective).collect(plan, 9), task.cursor

    return on_ranks(ranks, collect)


def informative(groups):
    return sum(not scored.silent for scored in groups)


# Four of five prompts say nothing, in a random order.
HARD = [MIXED if draw < 0.2 else WRONG for draw in np.random.default_rng(0).random(400)]
FOUR_STEPS = RoundPlan(group_size=2, refresh_interval=4, prompts_per_step=8)


@pytest.mark.parametrize("kind", [ScriptedTask, DealtTask])
@pytest.mark.parametrize("fallback", ["silent", "short"])
@pytest.mark.parametrize("rewards", [HARD, [MIXED] * 8 + [WRONG] * 200, [WRONG] * 200])
def test_the_prompts_asked_and_the_groups_of_each_step_are_those_of_one_rank(rewards, fallback, kind):
    [(alone, cursor)] = on_so_many_ranks(1, rewards, FOUR_STEPS, fallback=fallback)
    steps = alone.steps
    for ranks in (2, 4, 8):
        by_rank = on_so_many_ranks(ranks, rewards, FOUR_STEPS, kind, fallback=fallback)
        assert [stands for _, stands in by_rank] == [cursor] * ranks
        assert {collected.cursor for collected, _ in by_rank} == {cursor}
        assert sorted(name for collected, _ in by_rank for name in ids(collected.sampled)) == sorted(ids(alone.sampled))
        shares = [collected.steps for collected, _ in by_rank]
        if fallback == "silent":
            # Equally many of each step on every rank.
            assert {len(step) for share in shares for step in share} == {8 // ranks}
            together = [sorted(name for share in shares for name in ids(share[index])) for index in range(4)]
            assert together == [sorted(ids(step)) for step in steps]
        else:
            assert sorted(name for collected, _ in by_rank for name in ids(collected.groups)) == sorted(
                ids(alone.groups)
            )


@pytest.mark.parametrize("rewards", [HARD, [MIXED] * 8 + [WRONG] * 200, [WRONG] * 90 + [MIXED] * 90])
def test_silent_groups_that_fill_up_are_spread_evenly_over_the_steps(rewards):
    [(collected, _)] = on_so_many_ranks(1, rewards, FOUR_STEPS)
    counts = [informative(step) for step in collected.steps]
    assert [len(step) for step in collected.steps] == [8] * 4
    assert sum(counts) == informative(collected.sampled) and max(counts) - min(counts) <= 1
    order = [name for name in ids(collected.sampled) if name in ids(collected.groups)]
    assert sorted(order) == sorted(ids(collected.groups)), "each group once"


def test_a_rank_whose_prompts_were_all_silent_learns_from_others():
    # Every second prompt says nothing: those of the second rank.
    by_rank = on_so_many_ranks(2, [MIXED, WRONG] * 40, RoundPlan(2, 1, 4))
    assert [ids(collected.groups) for collected, _ in by_rank] == [["p0", "p2"], ["p4", "p6"]]
    assert [ids(collected.sampled) for collected, _ in by_rank] == [["p0", "p2", "p4", "p6"], ["p1", "p3", "p5"]]


def test_groups_stay_with_the_rank_that_sampled_them_while_it_has_room():
    by_rank = on_so_many_ranks(2, [MIXED] * 8, RoundPlan(2, 1, 8), DealtTask)
    shares = [ids(collected.sampled) for collected, _ in by_rank]
    # Lengths are 0 2, 4 1, 3 0, 2 4: the longer of two goes to the rank with less.
    assert shares == [["p1", "p3", "p4", "p6"], ["p0", "p2", "p5", "p7"]]
    assert [ids(collected.groups) for collected, _ in by_rank] == shares


def test_a_budget_asks_a_few_times_and_the_rest_where_it_is_spread():
    seen = []

    def spread(counts, rest):
        seen.append((counts, rest))
        return [0, 3, 1]

    task = ScriptedTask([(1, 1), (1, 0, 1, 0, 1), (0, 0, 1)])
    plan = RoundPlan(group_size=4, refresh_interval=1, prompts_per_step=3)
    collector = BudgetedCollector(
        task, ScriptedSampler(), GradingThread(task), BudgetConfig(enabled=True, pilot=2), SingleRank(), spread
    )
    groups = collector.collect(plan, 9).groups
    # Two tries of each of three prompts; the other two of four are spread.
    assert seen == [([(2, 2), (1, 2), (0, 2)], 6)]
    # Each sample once, in order, with its own grade.
    assert [[completion.text for completion in group.group.completions] for group in groups] == [
        ["0", "1"],
        ["0", "1", "2", "3", "4"],
        ["0", "1", "2"],
    ]
    assert [group.rewards for group in groups] == [(1, 1), (1, 0, 1, 0, 1), (0, 0, 1)]


class OpeningSampler(ScriptedSampler):
    """This sampler's later episodes open otherwise than the first ones."""

    def generate(self, draw, on_group=None):
        later, groups = draw.first_sample > 0, []
        for place, prompt in enumerate(draw.prompts):
            prompt = replace(prompt, token_ids=(1, 4) if later else (1, 2, 3))
            seen = ((Observed(0, (9,)), Observed(1, (10,))), (Observed(1, (11,), keep=1),))[: 1 + later]
            episodes = tuple(
                Completion((7, 8), (-1.0, -1.0), str(sample), False, observed=pieces)
                for sample, pieces in enumerate(seen, draw.first_sample)
            )
            groups.append(RolloutGroup(prompt, episodes, 0, 0))
            on_group(place, groups[-1])
        return groups


def test_later_episodes_of_a_budget_keep_an_opening_of_their_own():
    task, plan = ScriptedTask([(1, 0, 1)]), RoundPlan(group_size=2, refresh_interval=1, prompts_per_step=1)
    budget = BudgetConfig(enabled=True, pilot=1)
    collector = BudgetedCollector(
        task, OpeningSampler(), GradingThread(task), budget, SingleRank(), lambda counts, rest: [2]
    )
    [scored] = collector.collect(plan, 9).groups
    assert scored.group.prompt.token_ids == (1, 2, 3)
    read = [[(*prompt, *part.whole) for prompt, part in each.branches((1, 2, 3))] for each in scored.group.completions]
    assert read == [[(1, 2, 3, 9, 7, 10, 8)], [(1, 4, 9, 7, 10, 8)], [(1, 4, 7), (1, 11, 8)]]


def test_a_budget_is_spread_over_the_prompts_of_all_ranks():
    def spread(counts, rest):
        """Gives the first silent prompts four more each."""
        silent = [place for place, (correct, tried) in enumerate(counts) if correct in (0, tried)]
        return [4 * (place in silent[: rest // 4]) for place in range(len(counts))]

    def collect(collective):
        task = DealtTask([WRONG * 4, MIXED * 4, WRONG * 4, WRONG * 4] * 2, collective.rank, collective.world_size)
        budget = BudgetConfig(enabled=True, pilot=2)
        collector = BudgetedCollector(task, ScriptedSampler(), GradingThread(task), budget, collective, spread)
        return collector.collect(RoundPlan(group_size=4, refresh_interval=1, prompts_per_step=8), 9)

    for ranks in (1, 2, 4):
        shares = [share.groups for share in on_ranks(ranks, collect)]
        sizes = {name: len(group.grades) for groups in shares for name, group in zip(ids(groups), groups, strict=True)}
        assert sizes == {"p0": 6, "p1": 2, "p2": 6, "p3": 6, "p4": 6, "p5": 2, "p6": 2, "p7": 2}
        assert [len(groups) for groups in shares] == [8 // ranks] * ranks


def test_a_budget_gives_no_more_to_a_prompt_whose_group_could_not_be_graded():
    class Outage(ScriptedTask):
        """This task's server does not answer for the first prompt, or for any."""

        unanswered = ("p0",)

        def _scored(self, group):
            scored, lost = super()._scored(group), group.prompt.problem.problem_id in self.unanswered
            return (
                replace(scored, grades=tuple(replace(grade, outcome="unanswered") for grade in scored.grades))
                if lost
                else scored
            )

    seen = []

    def spread(counts, rest):
        seen.append((counts, rest))
        return [0, 2]

    plan = RoundPlan(group_size=4, refresh_interval=1, prompts_per_step=3)
    for unanswered, sizes in ((("p0",), [2, 2, 4]), (("p0", "p1", "p2"), [2, 2, 2])):
        task = Outage([(0, 0, 0, 0), (1, 1, 1, 1), (1, 0, 1, 0)])
        task.unanswered = unanswered
        collector = BudgetedCollector(
            task, ScriptedSampler(), GradingThread(task), BudgetConfig(enabled=True, pilot=2), SingleRank(), spread
        )
        assert [len(group.grades) for group in collector.collect(plan, 9).groups] == sizes
    assert seen == [([(2, 2), (1, 2)], 6)]


def test_a_group_that_is_asked_in_two_turns_is_graded_as_a_whole():
    class Comparing(ScriptedTask):
        """This task rewards the last completion of a group, as a reward does that compares completions."""

        def _scored(self, group):
            last = len(group.completions) - 1
            grades = tuple(Grade(float(place == last), place == last, {}) for place in range(last + 1))
            return ScoredGroup(group, grades, (True,) * len(grades))

    for together in (False, True):
        task = Comparing([()] * 3)
        task.grades_together = together
        arguments = task, ScriptedSampler(), GradingThread(task), BudgetConfig(enabled=True, pilot=2), SingleRank()
        collector = BudgetedCollector(*arguments, lambda counts, rest: [0, 3, 1])
        groups = collector.collect(RoundPlan(group_size=4, refresh_interval=1, prompts_per_step=3), 9).groups
        assert [group.rewards for group in groups] == [(0, 1), (0, 0, 0, 0, 1), (0, 0, 1)]


def test_a_budget_with_nothing_to_spread_is_a_plain_round():
    task = ScriptedTask([MIXED, RIGHT, WRONG])
    collector = BudgetedCollector(
        task,
        ScriptedSampler(),
        GradingThread(task),
        BudgetConfig(enabled=True),
        SingleRank(),
        lambda counts, rest: [0] * 3,
    )
    plain = PlainCollector(asking(ScriptedTask(task.rewards), ScriptedSampler())).collect(PLAN, 9)
    assert collector.collect(PLAN, 9) == replace(plain, asked_first=2)
