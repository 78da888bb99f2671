"""Grading goes on beside sampling."""

import os
import threading
import time
from contextlib import nullcontext

import pytest

from grpo.config import TrainConfig
from grpo.config.errors import GradingFailed, GradingFailedElsewhere, Interrupted
from grpo.host.signals import HURRY, StopRequest, handled_as_before
from grpo.interfaces import Draw
from grpo.rollout.grading_thread import GradingThread, sampled_and_graded
from grpo.run import evaluating
from grpo.run.clocks import Clocks
from grpo.run.evaluating import PolicyEvaluation
from grpo.telemetry.phases import Phases
from tests.fakes import BrokenTask, ScriptedSampler, ScriptedTask, SingleRank, on_ranks

SECONDS = 10


class SlowlyFinishing(ScriptedSampler):
    """This sampler finishes its last group only after the first one was graded."""

    def __init__(self, graded):
        self.graded = graded

    def generate(self, draw, on_group=None):
        groups = super().generate(draw)
        on_group(1, groups[1])
        assert self.graded.wait(SECONDS), "the group that was whole was not graded while another one was sampled"
        on_group(0, groups[0])
        return groups


class Noting(ScriptedTask):
    """This task records which groups it grades together."""

    def __init__(self, rewards):
        super().__init__(rewards)
        self.graded, self.together = threading.Event(), []

    def grade(self, groups):
        self.together.append([group.prompt.problem.problem_id for group in groups])
        self.graded.set()
        return super().grade(groups)


def test_a_group_is_graded_while_others_are_sampled_and_all_come_in_order():
    task = Noting([(1, 0), (0, 0)])
    scored = sampled_and_graded(SlowlyFinishing(task.graded), GradingThread(task), Draw(task.next_prompts(2), 2))
    assert task.together == [["p1"], ["p0"]]
    assert [group.rewards for group in scored] == [(1, 0), (0, 0)]


def test_groups_that_come_while_it_is_busy_are_graded_together():
    go_on = threading.Event()

    class Waiting(Noting):
        def grade(self, groups):
            scored = super().grade(groups)
            assert go_on.wait(SECONDS)
            return scored

    task = Waiting([(1, 0)] * 3)
    grading = GradingThread(task)
    groups = ScriptedSampler().generate(Draw(task.next_prompts(3), 2))
    first = grading.grade(groups[0])
    assert task.graded.wait(SECONDS)
    rest = [grading.grade(group) for group in groups[1:]]
    go_on.set()
    assert len(grading.results([first, *rest])) == 3
    assert task.together == [["p0"], ["p1", "p2"]]


def test_a_grader_that_is_slower_than_the_sampler_finishes_groups_all_along():
    """Otherwise a long evaluation would seem to hang in one call, see `Clocks.evaluation_grading`."""
    go_on, sizes = threading.Event(), []

    class Slow(ScriptedTask):
        def grade(self, groups):
            sizes.append(len(groups))
            assert go_on.wait(SECONDS)
            return super().grade(groups)

    task = Slow([(1, 0)] * 151)
    grading = GradingThread(task)
    groups = ScriptedSampler().generate(Draw(task.next_prompts(151), 2))
    graded = [grading.grade(group) for group in groups[:1]]
    while not sizes:
        time.sleep(0.001)
    graded += [grading.grade(group) for group in groups[1:]]
    go_on.set()
    assert [group.group for group in grading.results(graded)] == groups
    assert sizes == [1, 64, 64, 22]


def test_a_reward_of_all_groups_waits_for_the_last_one_and_gets_the_whole_round_in_one_call():
    task = Noting([(1, 0), (0, 0), (1, 1)])
    task.grades_together = True

    class TellingEach(ScriptedSampler):
        def generate(self, draw, on_group=None):
            groups = super().generate(draw)
            for place, group in enumerate(groups if on_group else ()):
                on_group(place, group)
                task.graded.wait(SECONDS)
            return groups

    scored = sampled_and_graded(TellingEach(), GradingThread(task), Draw(task.next_prompts(3), 2))
    assert task.together == [["p0", "p1", "p2"]]
    assert [group.rewards for group in scored] == [(1, 0), (0, 0), (1, 1)]
    assert sampled_and_graded(TellingEach(), GradingThread(task), Draw([], 2)) == []


class Failing(ScriptedTask):
    def grade(self, groups):
        raise ValueError("no grade")


def test_an_error_of_grading_is_raised_where_the_results_are_awaited():
    task = Failing([(1, 0)] * 2)
    with pytest.raises(ValueError, match="no grade"):
        sampled_and_graded(ScriptedSampler(), GradingThread(task), Draw(task.next_prompts(2), 2))


def test_the_thread_of_a_context_ends_with_it_whatever_waits():
    go_on, begun = threading.Event(), threading.Event()

    class Waiting(ScriptedTask):
        def grade(self, groups):
            begun.set()
            assert go_on.wait(SECONDS)
            return super().grade(groups)

    task = Waiting([(1, 0)] * 2)
    groups = ScriptedSampler().generate(Draw(task.next_prompts(2), 2))
    before = set(threading.enumerate())
    with GradingThread(task) as grading:
        first = grading.grade(groups[0])
        assert begun.wait(SECONDS)
        (thread,) = set(threading.enumerate()) - before
        left = grading.grade(groups[1])
    go_on.set()
    thread.join(SECONDS)
    assert not thread.is_alive()
    assert first.done() and not left.done()


def test_the_thread_ends_when_nobody_refers_to_it_any_more_also_after_an_error():
    before = set(threading.enumerate())
    task = Failing([(1, 0)])
    grading = GradingThread(task)
    (thread,) = set(threading.enumerate()) - before
    failed = grading.grade(*ScriptedSampler().generate(Draw(task.next_prompts(1), 2)))
    assert str(failed.exception(SECONDS)) == "no grade" and thread.is_alive()
    del grading
    thread.join(SECONDS)
    assert not thread.is_alive()


def test_when_grading_fails_on_one_rank_all_ranks_raise_it_together():
    def raised(collective):
        kind = BrokenTask if collective.rank == 1 else ScriptedTask
        task = kind([(1, 0)] * 4, collective.rank, 2)
        with GradingThread(task, collective=collective) as grading, pytest.raises(GradingFailed) as error:
            sampled_and_graded(ScriptedSampler(), grading, Draw(task.next_prompts(2), 2))
        return type(error.value), str(error.value)

    healthy, failing = on_ranks(2, raised)
    assert healthy == (GradingFailedElsewhere, "rank 1 failed: the function is broken")
    assert failing == (GradingFailed, "the function is broken")


class HurriedSampler(ScriptedSampler):
    def generate(self, draw, on_group=None):
        raise Interrupted


def test_when_one_rank_has_to_save_at_once_all_ranks_leave_sampling_and_grading_together():
    def raised(collective):
        task = ScriptedTask([(1, 0)] * 4, collective.rank, 2)
        sampler = (HurriedSampler if collective.rank == 1 else ScriptedSampler)()
        with GradingThread(task, collective=collective) as grading, pytest.raises(Interrupted):
            sampled_and_graded(sampler, grading, Draw(task.next_prompts(2), 2))
        return "left"

    assert on_ranks(2, raised) == ["left"] * 2


def test_nobody_waits_for_grades_where_the_run_has_to_save_at_once():
    class Hanging(ScriptedTask):
        def grade(self, groups):
            hang.wait(SECONDS)

    hang, task = threading.Event(), Hanging([(1, 0)] * 2)
    with handled_as_before(), GradingThread(task, collective=SingleRank()) as grading:
        StopRequest(["hurry"])
        os.kill(os.getpid(), HURRY)
        with pytest.raises(Interrupted):
            sampled_and_graded(ScriptedSampler(), grading, Draw(task.next_prompts(2), 2))
        hang.set()


class HeldOut(Noting):
    def held_out_prompts(self, count):
        return ScriptedTask(self.rewards).next_prompts(min(count, len(self.rewards)))

    def answer_of(self, problem, text):
        return text


def evaluation(task, sampler):
    config = TrainConfig()
    config.evaluation.num_problems, config.evaluation.samples_per_problem = 2, 2
    return PolicyEvaluation(config, task, [], None, sampler, Clocks(config, Phases()), SingleRank())


def test_an_evaluation_grades_while_it_samples():
    task = HeldOut([(1, 0), (0, 0)])
    result = evaluation(task, SlowlyFinishing(task.graded))()
    assert task.together == [["p1"], ["p0"]]
    assert [row["correct"] for row in result["per_problem"]] == [1, 0]


def test_an_evaluation_says_how_many_problems_there_are(monkeypatch):
    task, lines = HeldOut([(1, 0)]), []
    monkeypatch.setattr(evaluating, "working", lambda line: lines.append(line) or nullcontext())
    evaluation(task, ScriptedSampler())()
    assert lines[0] == "evaluating 1 held-out problems × 2", "it is asked for two, and one is held out"


def test_evaluations_grade_in_one_thread_that_stays_since_graders_die_with_the_thread_that_started_them():
    class Threads(HeldOut):
        def grade(self, groups):
            threads.append(threading.current_thread())
            return super().grade(groups)

    threads, task = [], Threads([(1, 0), (0, 0)] * 2)
    evaluate = evaluation(task, SlowlyFinishing(task.graded))
    evaluate()
    evaluate()
    (thread,) = {*threads}
    assert thread.is_alive()
