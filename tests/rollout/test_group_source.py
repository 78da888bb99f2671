"""These tests sample ahead: which prompts are asked when, in which order groups come, how stale they may be."""

import os
from concurrent.futures import Future
from dataclasses import replace

import numpy as np
import pytest

from grpo.config import RefillConfig, UserError
from grpo.config.errors import GradingFailed, GradingFailedElsewhere, Interrupted, SamplerLost
from grpo.host.signals import HURRY, StopRequest, handled_as_before
from grpo.rollout import group_source
from grpo.rollout.collect import PlainCollector, RefillingCollector
from grpo.rollout.grading_thread import GradingThread, result_in_time
from grpo.rollout.group_source import AheadSource
from grpo.types import RoundPlan
from tests.fakes import BrokenTask, ScriptedSampler, ScriptedTask, SingleRank, ids, on_ranks

PLAN = RoundPlan(group_size=2, refresh_interval=1, prompts_per_step=2)


class Pending(Future):
    """This future holds completions that arrive when the test says so."""


class SlowSampler(ScriptedSampler):
    """This sampler records each asked prompt and the policy at that moment. It answers at once while it is `quick`."""

    def __init__(self):
        self.asked, self.quick = [], True

    def ask(self, draw):
        pending = []
        for group in self.generate(draw):
            self.asked.append((group.prompt.problem.problem_id, self.policy_version, Pending()))
            pending.append(self.asked[-1][2])
            pending[-1].group = group
            if self.quick:
                pending[-1].set_result(group)
        return pending

    def answer(self, most):
        waiting = [pending for _, _, pending in self.asked if not pending.done()]
        for pending in waiting[:most]:
            pending.set_result(pending.group)


class Run:
    """This is a training loop without learning: it collects rounds, and the policy's version rises after each."""

    def __init__(self, max_staleness, rewards=((1, 0, 1, 0),) * 60, refill=None):
        self.task, self.sampler = ScriptedTask(rewards), SlowSampler()
        self.source = AheadSource(self.task, self.sampler, SingleRank(), max_staleness, GradingThread(self.task))
        self.collector = (
            RefillingCollector(self.source, refill, SingleRank()) if refill else PlainCollector(self.source)
        )

    def round(self, plan=PLAN, steps_left=100):
        collected = self.collector.collect(plan, steps_left)
        for place, scored in enumerate(collected.groups):
            step = self.sampler.policy_version + place // plan.prompts_per_step
            assert 0 <= step - scored.group.oldest_version <= self.source._max_staleness
        self.sampler.policy_version += plan.refresh_interval
        return collected

    def settle(self):
        """Waits until all completions that arrived are graded."""
        for asked in list(self.source._under_way):
            if asked.pending.done():
                asked.scored.result(5)


def test_one_round_is_asked_beside_the_one_that_is_learned_from():
    run = Run(max_staleness=3)
    first = run.round()
    assert ids(first.groups) == ["p0", "p1"] and first.cursor == 2
    assert [(name, version) for name, version, _ in run.sampler.asked] == [("p0", 0), ("p1", 0), ("p2", 0), ("p3", 0)]
    run.settle()
    second = run.round()
    assert ids(second.groups) == ["p2", "p3"] and second.cursor == 4
    assert [(name, version) for name, version, _ in run.sampler.asked[4:]] == [("p4", 1), ("p5", 1)]


def test_more_is_under_way_while_the_learner_has_to_wait_and_never_beyond_the_bound():
    run = Run(max_staleness=2)
    run.sampler.quick = False
    under_way = []
    for waits in (False, True, True, True, False, False):
        if not waits:
            run.sampler.answer(most=99)
            run.settle()
        run.source.begin(PLAN, 100)
        under_way.append(len(run.source._under_way))
        # The sampler answers two, the number that is taken.
        run.sampler.answer(most=2)
        run.source.take(2)
        run.sampler.policy_version += 1
    # Two prompts a step: two steps' at first, three once it had to wait, two again when all was there early.
    assert under_way == [4, 6, 6, 6, 4, 4]


def test_with_a_bound_of_a_round_nothing_is_asked_ahead():
    run = Run(max_staleness=1)
    plan = replace(PLAN, refresh_interval=2)
    for _ in range(3):
        run.round(plan)
        assert len(run.sampler.asked) == run.task.cursor == run.source.cursor


def test_groups_come_in_the_order_of_the_stream_whichever_is_done_first():
    run = Run(max_staleness=3)
    run.sampler.quick = False
    run.source.begin(PLAN, 100)
    for _, _, pending in reversed(run.sampler.asked):
        pending.set_result(pending.group)
    assert ids(run.source.take(2)) == ["p0", "p1"]


def test_nothing_is_asked_beyond_the_end_of_the_run():
    run = Run(max_staleness=5)
    for left in (3, 2, 1):
        run.round(steps_left=left)
    assert run.task.cursor == 6


def test_refilling_takes_what_is_under_way_before_it_asks_more():
    silent, mixed = (1, 1), (1, 0)
    run = Run(3, [silent, mixed, silent, mixed, mixed, mixed, mixed, mixed, mixed], RefillConfig(enabled=True))
    collected = run.round()
    assert ids(collected.groups) == ["p1", "p3"] and ids(collected.sampled) == ["p0", "p1", "p2", "p3"]
    # Where a resumed run goes on: behind what was taken, before what is under way.
    assert collected.cursor == 4


def test_the_prompts_taken_are_the_same_on_every_number_of_ranks():
    silent, mixed = (1, 1), (1, 0)
    rewards = [mixed if draw < 0.4 else silent for draw in np.random.default_rng(0).random(300)]
    plan = RoundPlan(group_size=2, refresh_interval=2, prompts_per_step=4)

    def three_rounds(collective):
        task, sampler = ScriptedTask(rewards, collective.rank, collective.world_size), SlowSampler()
        source = AheadSource(task, sampler, collective, 3, GradingThread(task))
        collector = RefillingCollector(source, RefillConfig(enabled=True), collective)
        taken = []
        for _ in range(3):
            collected = collector.collect(plan, 100)
            taken.append((collected.cursor, ids(collected.sampled), ids(collected.groups)))
            for scored in collected.groups:
                # Whichever step learns from it, it is no older than the bound.
                assert sampler.policy_version + 1 - scored.group.oldest_version <= 3
            sampler.policy_version += 2
        return taken

    [alone] = on_ranks(1, three_rounds)
    for ranks in (2, 4):
        by_rank = on_ranks(ranks, three_rounds)
        for number, (cursor, sampled, groups) in enumerate(alone):
            assert {share[number][0] for share in by_rank} == {cursor}
            assert sorted(name for share in by_rank for name in share[number][1]) == sorted(sampled)
            assert sorted(name for share in by_rank for name in share[number][2]) == sorted(groups)
            assert {len(share[number][2]) for share in by_rank} == {8 // ranks}


def test_ranks_agree_on_how_far_ahead_they_ask_when_only_some_have_prompts_under_way():
    """Refilling takes any number of prompts. With one left, a rank that has none must not go on alone."""
    rewards = [(1, 0), (1, 1), (1, 0), *[(1, 0)] * 40]

    def four_rounds(collective):
        task, sampler = ScriptedTask(rewards, collective.rank, collective.world_size), SlowSampler()
        source = AheadSource(task, sampler, collective, 3, GradingThread(task))
        collector = RefillingCollector(source, RefillConfig(enabled=True), collective)
        under_way, cursors = [], []
        for _ in range(4):
            cursors.append(collector.collect(PLAN, 100).cursor)
            under_way.append(len(source._under_way))
            sampler.policy_version += 1
        return cursors, under_way

    first, second = on_ranks(2, four_rounds)
    assert (first[0], first[1][0], second[1][0]) == ([3, 5, 7, 9], 0, 1)
    assert second[0] == first[0]


def test_groups_that_became_too_old_are_asked_again_and_come_in_their_place():
    run = Run(max_staleness=1)
    wide = replace(PLAN, prompts_per_step=4)
    run.round(wide)
    run.settle()
    # p4 to p7 were asked for one step; the plan now makes two steps of them.
    assert ids(run.round().groups) == ["p4", "p5"]
    collected = run.round()
    assert ids(collected.groups) == ["p6", "p7"]
    assert [scored.group.oldest_version for scored in collected.groups] == [2, 2]
    assert [name for name, _, _ in run.sampler.asked].count("p6") == 2


def test_completions_of_an_abandoned_policy_are_thrown_away_and_their_prompts_asked_again():
    run = Run(max_staleness=3)
    first = run.round()
    run.source.forget()
    back = run.round()
    assert ids(back.groups) == ["p2", "p3"] and back.cursor == 4
    assert all(scored.group.oldest_version == 1 for scored in back.groups)
    # As a run that was killed after the first round and resumed.
    resumed = Run(max_staleness=3)
    resumed.task.cursor, resumed.sampler.policy_version = first.cursor, 1
    resumed.source.forget()
    assert resumed.round() == back
    for _ in range(2):
        run.settle(), resumed.settle()
        assert run.round() == resumed.round()


def test_a_new_group_size_is_that_of_prompts_asked_from_then_on():
    run = Run(max_staleness=3)
    run.round()
    larger = replace(PLAN, group_size=4)
    assert [scored.count[1] for scored in run.round(larger).groups] == [2, 2]
    assert [scored.count[1] for scored in run.round(larger).groups] == [4, 4]


def test_the_run_ends_with_the_reason_why_no_server_is_left():
    def raised(collective):
        task, sampler = ScriptedTask([(1, 0)] * 8, collective.rank, 2), SlowSampler()
        sampler.quick = collective.rank == 1
        source = AheadSource(task, sampler, collective, 3, GradingThread(task))
        source.begin(PLAN, 100)
        for _, _, pending in () if sampler.quick else sampler.asked:
            pending.set_exception(SamplerLost("the last server refused a request with 400"))
        with pytest.raises(SamplerLost) as error:
            source.take(2)
        return str(error.value)

    with_loss, without = on_ranks(2, raised)
    assert with_loss == "the last server refused a request with 400" and without.startswith("no vLLM server is left")


def test_groups_under_way_are_left_where_the_run_has_to_save_at_once(monkeypatch):
    run, waits = Run(max_staleness=1), []
    run.sampler.quick = False
    monkeypatch.setattr(group_source, "result_in_time", lambda future: waits.append(future) or result_in_time(future))
    with handled_as_before():
        StopRequest(["hurry"])
        run.source.begin(replace(PLAN, prompts_per_step=8), 100)
        os.kill(os.getpid(), HURRY)
        with pytest.raises(Interrupted):
            run.source.take(8)
    # Both times it waits for the first group alone, since each wait takes a moment of the little time that is left.
    assert len(waits) == 2


def test_when_grading_fails_on_one_rank_all_ranks_raise_it_together():
    def raised(collective):
        kind = BrokenTask if collective.rank == 1 else ScriptedTask
        task = kind([(1, 0)] * 8, collective.rank, 2)
        source = AheadSource(task, SlowSampler(), collective, 3, GradingThread(task))
        source.begin(PLAN, 100)
        with pytest.raises(UserError) as error:
            source.take(2)
        return type(error.value), str(error.value)

    healthy, failing = on_ranks(2, raised)
    assert healthy == (GradingFailedElsewhere, "rank 1 failed: the function is broken")
    assert failing == (GradingFailed, "the function is broken")
