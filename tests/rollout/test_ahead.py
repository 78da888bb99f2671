"""These tests sample one round ahead: with whose plan, for which prompts, and what is thrown away."""

import threading
from dataclasses import replace

import pytest

from grpo.rollout.collect import PlainCollector
from grpo.rollout.group_source import AheadCollector
from grpo.types import RoundPlan
from tests.fakes import ScriptedSampler, ScriptedTask, asking, ids

PLAN = RoundPlan(group_size=2, refresh_interval=2, prompts_per_step=1)


class Watched(PlainCollector):
    """This collector records every round that it is asked for, and waits until the test lets it go on."""

    def __init__(self):
        self.task = ScriptedTask([(1, 0, 1)] * 40)
        super().__init__(asking(self.task, ScriptedSampler()))
        self.plans, self.may_go_on = [], threading.Event()
        self.may_go_on.set()

    def collect(self, plan, steps_left):
        self.plans.append((plan, steps_left))
        assert self.may_go_on.wait(10)
        return super().collect(plan, steps_left)


def test_the_next_round_is_sampled_while_this_one_is_learned_from():
    inner = Watched()
    ahead = AheadCollector(inner, inner.task)
    first = ahead.collect(PLAN, 10)
    ahead.settle()
    assert ids(first.groups) == ["p0", "p1"] and first.cursor == 2
    # Two more are sampled already; a run stopped here asks them again.
    assert inner.task.cursor == 4
    second = ahead.collect(PLAN, 8)
    assert ids(second.groups) == ["p2", "p3"] and second.cursor == 4


def test_a_new_plan_takes_effect_one_round_later_and_its_learning_rate_at_once():
    inner = Watched()
    ahead = AheadCollector(inner, inner.task)
    ahead.collect(PLAN, 10)
    slower = replace(PLAN, group_size=3, learning_rate_factor=0.5)
    assert ahead.collect(slower, 8).plan == replace(PLAN, learning_rate_factor=0.5)
    assert ahead.collect(PLAN, 6).plan == replace(slower, learning_rate_factor=1.0)


def test_nothing_is_sampled_beyond_the_end_of_the_run():
    inner = Watched()
    ahead = AheadCollector(inner, inner.task)
    taken = 0
    while taken < 5:
        taken += ahead.collect(PLAN, 5 - taken).plan.refresh_interval
    ahead.settle()
    assert taken == 5
    assert [(plan.refresh_interval, left) for plan, left in inner.plans] == [(2, 5), (2, 3), (1, 1)]


def test_completions_of_an_abandoned_policy_are_thrown_away_and_their_prompts_asked_again():
    inner = Watched()
    ahead = AheadCollector(inner, inner.task)
    first = ahead.collect(PLAN, 10)
    ahead.settle()
    ahead.forget()
    back = ahead.collect(PLAN, 8)
    assert ids(back.groups) == ["p2", "p3"]
    # Sampled ahead and dropped, sampled at once, sampled ahead.
    assert len(inner.plans) == 4
    # As a run that was killed after the first round and resumed.
    resumed = Watched()
    resumed.task.cursor = first.cursor
    again = AheadCollector(resumed, resumed.task)
    again.forget()
    assert again.collect(PLAN, 8) == back
    for left in (6, 4):
        ahead.settle(), again.settle()
        assert ahead.collect(PLAN, left) == again.collect(PLAN, left)


def test_settling_waits_and_an_error_shows_where_its_round_is_collected():
    inner = Watched()
    ahead = AheadCollector(inner, inner.task)
    ahead.collect(PLAN, 10)
    ahead.settle()
    inner.may_go_on.clear()
    ahead.collect(PLAN, 8)
    waiting = threading.Thread(target=ahead.settle)
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    inner.task.grade = None
    inner.may_go_on.set()
    waiting.join(10)
    assert not waiting.is_alive()
    with pytest.raises(TypeError):
        ahead.collect(PLAN, 6)
