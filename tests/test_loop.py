"""These tests check in which order a round's parts are called, and where the run stands when one of them fails."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from grpo.config.errors import SamplerLost
from grpo.interfaces import Draw
from grpo.loop import Loop, LoopParts
from grpo.types import Collected, Decision, Mean, Progress, RoundPlan, StepReport, Verdict
from tests.fakes import ScriptedSampler, ScriptedTask, SingleRank

PLAN = RoundPlan(group_size=2, refresh_interval=2, prompts_per_step=1)


class Parts:
    """This stands in for every part of a run and records which methods are called. `verdicts` are the scheduler's, one
    for each round."""

    def __init__(self, *verdicts):
        self.called, self.verdicts = [], list(verdicts)
        self.num_steps, self.checkpoint = 0, Path("step-1")
        self.scripted, self.sampler = ScriptedTask([(1, 0)] * 99), ScriptedSampler()

    def parts(self):
        return LoopParts(
            task=self,
            sampler=self.sampler,
            collector=self,
            learner=self,
            make_batches=lambda steps, plan: self.note("make_batches") or list(steps),
            weight_sync=self,
            scheduler=self,
            checkpoint_up_to=lambda step: self.checkpoint,
            go_back=self.go_back,
            collective=SingleRank(),
            clock=SimpleNamespace(begin_round=lambda: None, end_round=lambda: {}),
        )

    def note(self, name):
        self.called.append(name)

    def collect(self, plan, steps_left):
        self.note("collect")
        prompts = self.scripted.next_prompts(plan.prompts_per_round)
        groups = tuple(self.scripted.grade(self.sampler.generate(Draw(prompts, plan.group_size))))
        return Collected(tuple((group,) for group in groups), groups, plan, self.scripted.cursor)

    def add_logprobs(self, steps):
        self.note("add_logprobs")
        return steps

    def step(self, batch):
        self.note("step")
        self.num_steps += 1
        return StepReport(self.num_steps, True, 1.0, 1e-3, 0.0, {"mismatch/mean_abs": Mean(0.0, 1.0)})

    def check(self, report):
        self.note(f"check step {report.step}")

    def refresh(self, learner, sampler):
        self.note("refresh")

    def record_outcomes(self, outcomes, cursor):
        self.note(f"learn {outcomes}")

    def record_lengths(self, lengths):
        self.note(f"lengths {lengths}")

    def next(self, plan, statistics, state):
        self.note("next")
        return Decision(plan, self.verdicts.pop(0), state)

    def go_back(self, checkpoint):
        self.note(f"go back to {checkpoint}")

    def observer(self, name):
        return SimpleNamespace(after_round=lambda finished: self.note(f"{name} at {finished.progress.step}"))

    def loop(self, step=0):
        start = Progress(0, step, 0, PLAN, None)
        return Loop(self.parts(), start, Verdict(), self.observer("record"), [self.observer("save")])


def test_a_round_is_recorded_before_the_run_goes_back_and_saved_after_it():
    parts = Parts(Verdict(go_back=True, good_step=1))
    parts.loop().run(2, lambda: False)
    assert parts.called == [
        *("collect", "add_logprobs", "make_batches", "step", "step", "check step 1", "refresh"),
        *("learn {'p0': (1, 2), 'p1': (1, 2)}", "lengths {'p0': 2.0, 'p1': 2.0}"),
        *("next", "record at 2", "go back to step-1", "save at 2"),
    ]


def test_where_no_checkpoint_is_left_the_record_says_that_the_run_has_not_gone_back():
    parts = Parts(Verdict(stop=True, go_back=True, good_step=1, reason="damping lost"))
    parts.checkpoint = None
    recorded = []
    loop = parts.loop()
    loop._record = SimpleNamespace(after_round=recorded.append)
    loop.run(2, lambda: False)
    kept = "damping lost: there is no checkpoint up to step 1, so the policy stays"
    assert [finished.verdict for finished in recorded] == [Verdict(stop=True, good_step=1, reason=kept)]
    assert "go back to None" not in parts.called


def test_a_verdict_to_stop_ends_the_run_with_its_reason():
    parts = Parts(Verdict(), Verdict(stop=True, reason="enough"))
    loop = parts.loop()
    loop.run(100, lambda: False)
    assert (loop.progress.round_index, loop.progress.step, loop.progress.cursor) == (2, 4, 4)
    assert loop.verdict.reason == "enough"


def test_a_request_to_stop_is_followed_between_two_rounds():
    parts = Parts(*[Verdict()] * 9)
    loop = parts.loop()
    loop.run(100, lambda: parts.num_steps >= 4)
    assert loop.progress.step == 4


def test_the_last_round_takes_the_steps_that_are_left():
    parts = Parts(*[Verdict()] * 9)
    loop = parts.loop()
    loop.run(3, lambda: False)
    assert loop.progress.step == 3
    assert loop.progress.plan == PLAN


def test_where_a_part_fails_the_progress_is_that_of_the_last_finished_round():
    parts = Parts(Verdict(), Verdict(go_back=True))
    loop = parts.loop()

    def lost(checkpoint):
        raise SamplerLost("all are gone")

    parts.go_back = lost
    loop = parts.loop()
    with pytest.raises(SamplerLost):
        loop.run(100, lambda: False)
    # The second round was finished and recorded: what it learned can be saved.
    assert loop.progress.step == parts.num_steps == 4
    assert parts.called[-1] == "record at 4"


def test_an_urgent_request_ends_a_round_between_two_steps_without_a_refresh():
    """The groups of its other steps are given up. The run goes on from the step that was taken."""
    parts = Parts(Verdict())
    loop = parts.loop()
    loop.run(100, lambda: parts.num_steps > 0, lambda: parts.num_steps > 0)
    assert parts.called == [
        *("collect", "add_logprobs", "make_batches", "step", "check step 1"),
        *("learn {'p0': (1, 2), 'p1': (1, 2)}", "lengths {'p0': 2.0, 'p1': 2.0}", "next", "record at 1"),
    ]
    assert (loop.progress.round_index, loop.progress.step, loop.progress.cursor) == (1, 1, 2)


def test_an_urgent_request_before_the_first_step_leaves_the_run_where_the_round_began():
    parts = Parts(Verdict())
    loop = parts.loop(step=6)
    loop.run(100, lambda: "collect" in parts.called, lambda: "make_batches" in parts.called)
    assert parts.called == ["collect", "add_logprobs", "make_batches"]
    assert (loop.progress.round_index, loop.progress.step, loop.progress.cursor) == (0, 6, 0)
