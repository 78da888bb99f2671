"""Dynamic sampling and budgets with scripted rewards: what is asked, kept, dropped, and fallen back to."""

from grpo.config import BudgetConfig, RefillConfig
from grpo.rollout.collect import BudgetedCollector, PlainCollector, RefillingCollector
from grpo.rollout.source import Asking
from grpo.types import RoundPlan
from tests.fakes import ScriptedSampler, ScriptedTask, SingleRank, ids

MIXED, RIGHT, WRONG = (1, 0), (1, 1), (0, 0)
PLAN = RoundPlan(group_size=2, refresh_interval=1, prompts_per_step=3)


def refilled(rewards, **settings):
    task = ScriptedTask(rewards)
    collector = RefillingCollector(
        Asking(task, ScriptedSampler()), RefillConfig(enabled=True, **settings), SingleRank()
    )
    return collector.collect(PLAN, 9), task


def test_without_refill_silent_groups_stay_in():
    task = ScriptedTask([MIXED, RIGHT, WRONG])
    collected = PlainCollector(Asking(task, ScriptedSampler())).collect(PLAN, 9)
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


def test_a_budget_asks_a_few_times_and_the_rest_where_it_is_spread():
    seen = []

    def spread(everyone, mine, budget):
        seen.append((dict(everyone), list(mine), budget))
        return [0, 3, 1]

    task = ScriptedTask([(1, 1), (1, 0, 1, 0, 1), (0, 0, 1)])
    plan = RoundPlan(group_size=4, refresh_interval=1, prompts_per_step=3)
    collector = BudgetedCollector(task, ScriptedSampler(), BudgetConfig(enabled=True, pilot=2), SingleRank(), spread)
    groups = collector.collect(plan, 9).groups
    # Two tries of each of three prompts; the other two of four are spread.
    assert seen == [({(2, 2): 1, (1, 2): 1, (0, 2): 1}, [(2, 2), (1, 2), (0, 2)], 6)]
    # Each sample once, in order, with its own grade.
    assert [[completion.text for completion in group.group.completions] for group in groups] == [
        ["0", "1"],
        ["0", "1", "2", "3", "4"],
        ["0", "1", "2"],
    ]
    assert [group.rewards for group in groups] == [(1, 1), (1, 0, 1, 0, 1), (0, 0, 1)]


def test_a_budget_with_nothing_to_spread_is_a_plain_round():
    task = ScriptedTask([MIXED, RIGHT, WRONG])
    collector = BudgetedCollector(
        task, ScriptedSampler(), BudgetConfig(enabled=True), SingleRank(), lambda everyone, mine, budget: [0] * 3
    )
    assert collector.collect(PLAN, 9) == PlainCollector(Asking(ScriptedTask(task.rewards), ScriptedSampler())).collect(
        PLAN, 9
    )
