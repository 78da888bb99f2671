"""Dynamic sampling with scripted rewards: what is asked, kept, dropped, and fallen back to."""

from grpo.config import RefillConfig
from grpo.rollout.collect import PlainCollector, RefillingCollector
from grpo.types import RoundPlan
from tests.fakes import ScriptedSampler, ScriptedTask, SingleRank, ids

MIXED, RIGHT, WRONG = (1, 0), (1, 1), (0, 0)
PLAN = RoundPlan(group_size=2, refresh_interval=1, prompts_per_step=3)


def refilled(rewards, **settings):
    task = ScriptedTask(rewards)
    collector = RefillingCollector(task, ScriptedSampler(), RefillConfig(enabled=True, **settings), SingleRank())
    return collector.collect(PLAN), task


def test_without_refill_silent_groups_stay_in():
    task = ScriptedTask([MIXED, RIGHT, WRONG])
    collected = PlainCollector(task, ScriptedSampler()).collect(PLAN)
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
