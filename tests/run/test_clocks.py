"""These tests check what a round takes. Each thread has a clock of its own that passes only while something works."""

import threading
from dataclasses import replace

import pytest
import torch

from grpo.config import EvaluationConfig, TrainConfig
from grpo.dynamics.scheduler import build_scheduler
from grpo.interfaces import Collector, Draw, Learner, Sampler, Task, WeightSync
from grpo.learner.offloading import LearnerStates
from grpo.loop import Loop, LoopParts
from grpo.rollout.grading_thread import GradingThread
from grpo.run.assembly import build_pipeline
from grpo.run.clocks import Clocks, EvaluatedSampler, TimedSampler, Wrapped
from grpo.run.evaluating import PolicyEvaluation
from grpo.run.observers import Evaluator
from grpo.telemetry import phases
from grpo.telemetry.metrics import flatten
from grpo.telemetry.phases import Phases
from grpo.types import Batch, Mean, Progress, StepReport, Verdict
from grpo.types.weights import MERGED
from tests.fakes import ScriptedSampler, ScriptedTask, SingleRank

ROUNDS = 3


class ThreadTime(threading.local):
    """This clock returns the seconds that the current thread has worked."""

    now = 0.0

    def __call__(self):
        return self.now

    def work(self, seconds):
        self.now += seconds


class SlowTask(ScriptedTask):
    """This task takes a quarter of a second to grade each group."""

    def __init__(self, time):
        super().__init__([(1, 0)] * 99)
        self.time = time

    def grade(self, groups):
        self.time.work(0.25 * len(groups))
        return super().grade(groups)

    def held_out_prompts(self, count):
        return ScriptedTask(self.rewards).next_prompts(count)

    def answer_of(self, problem, text):
        return text


class Answer:
    """An answer holds one prompt's completions, which take two seconds to wait for."""

    def __init__(self, time, group):
        self.time, self.group = time, group

    def result(self):
        self.time.work(2.0)
        return self.group


class SlowSampler(ScriptedSampler):
    """This sampler takes two seconds for each prompt, and half a second for a refresh without any weights."""

    def __init__(self, time):
        self.time = time

    def generate(self, draw, on_group=None):
        self.time.work(2.0 * len(draw.prompts))
        return super().generate(draw, on_group)

    def ask(self, draw):
        return [Answer(self.time, group) for group in super().generate(draw)]

    def finish_weights(self, policy_version):
        self.time.work(0.5)
        self.policy_version = policy_version

    def begin_refresh(self):
        return MERGED

    def checksums(self):
        return [{}]

    wake = ScriptedSampler.sleep


class SlowLearner:
    """This learner takes ten seconds for a step and a hundred to save."""

    def __init__(self, time):
        self.time, self.num_steps = time, 0

    def add_logprobs(self, steps):
        return [[*step] for step in steps]

    def step(self, batch):
        self.time.work(10.0)
        self.num_steps += 1
        return StepReport(self.num_steps, True, 1.0, 1e-3, 0.0, {"mismatch/mean_abs": Mean(0.0, 1.0)})

    def logprobs(self, groups):
        """Returns the sampler's log-probabilities."""
        return [[torch.tensor(completion.sampler_logprobs) for completion in group.completions] for group in groups]

    def weight_buckets(self, form):
        return []

    def save(self, directory):
        self.time.work(100.0)

    rewind = save


class Saver:
    """This observer saves after every round."""

    def __init__(self, learner):
        self.learner = learner

    def after_round(self, finished):
        self.learner.save("somewhere")


class Noter:
    """This observer keeps each round's statistics, and the seconds that the run counts as spent."""

    def __init__(self):
        self.rounds, self.spent = [], []

    def after_round(self, finished):
        self.rounds.append(finished.statistics)
        self.spent.append(finished.progress.scheduler.spent["seconds"])


class Apart(SingleRank):
    def apart(self, deadline_seconds):
        return self


@pytest.fixture
def trained(request):
    """Runs rounds of two prompts and one step. An evaluation of twenty prompts and a checkpoint follow each round."""
    time, config = ThreadTime(), TrainConfig()
    config.pipeline, config.num_steps, config.limits.seconds = request.param, ROUNDS, 1e9
    config.dynamics.group_size, config.dynamics.prompts_per_step = 2, 2
    task, sampler, clocks = SlowTask(time), SlowSampler(time), Clocks(config, Phases(clock=time))
    learner = clocks.timed(SlowLearner(time), Learner)
    collector, sync = build_pipeline(config, task, sampler, Apart(), clocks)
    scheduler = build_scheduler(config, 1)
    parts = LoopParts(
        task=task,
        sampler=sampler,
        collector=collector,
        learner=learner,
        make_batches=lambda steps, plan: [Batch(())],
        weight_sync=sync,
        scheduler=scheduler,
        checkpoint_up_to=None,
        go_back=None,
        collective=Apart(),
        clock=clocks.phases,
    )

    config.evaluation.num_problems, config.evaluation.samples_per_problem = 20, 2
    evaluate = PolicyEvaluation(config, task, [], None, sampler, clocks, SingleRank())
    noter = Noter()
    evaluator = Evaluator(EvaluationConfig(every_rounds=1), evaluate, lambda result: None)
    loop = Loop(parts, Progress(0, 0, 0, *scheduler.init()), Verdict(), noter, [evaluator, Saver(learner)])
    loop.run(ROUNDS, lambda: False)
    noter.pipeline = request.param
    return noter


@pytest.mark.parametrize("trained", ["off"], indirect=True)
def test_seconds_of_evaluations_and_checkpoints_are_reported_and_belong_to_no_round(trained):
    round_seconds = {"round": 14.5, "sample": 4.0, "grade": 0.0, "logprobs": 0.0, "learn": 10.0, "sync": 0.5}
    # Grading goes on beside sampling.
    between = {"evaluation": 40.0, "save": 100.0}
    assert [statistics.seconds for statistics in trained.rounds] == [round_seconds] + [round_seconds | between] * 2
    assert trained.spent == [14.5, 29.0, 43.5]
    # Eight tokens in four seconds.
    rates = [flatten(statistics)["throughput/sample_tokens_per_second"] for statistics in trained.rounds]
    assert rates == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("trained", ["one_round", "continuous"], indirect=True)
def test_sampling_beside_the_loop_belongs_to_the_round_whose_tokens_it_made_and_counts_once(trained):
    # Nothing passes for the loop while it waits: its time is its own thread's. A refresh asks two prompts as a test.
    round_seconds = {"round": 14.5, "wait": 0.0, "logprobs": 0.0, "learn": 10.0, "sync": 4.5}
    for index, statistics in enumerate(trained.rounds):
        between = {"evaluation": 40.0, "save": 100.0} if index else {}
        # Rounds are graded beside their sampling, and only waiting for that counts; sampling goes on continuously.
        graded = {"off": 0.0, "one_round": 0.0, "continuous": 0.5}[trained.pipeline]
        assert statistics.seconds == round_seconds | {"sample": 4.0, "grade": graded} | between
        assert flatten(statistics)["throughput/sample_tokens_per_second"] == 2.0
        assert flatten(statistics)["time/round_seconds"] == 14.5
    assert trained.spent == [14.5, 29.0, 43.5]


@pytest.fixture
def ended(monkeypatch):
    """Returns the complaints with which processes were ended. A process that hangs goes on then, instead of ending."""

    class Complaints(list):
        over = threading.Event()

        def add(self, complaint):
            self.append(complaint)
            self.over.set()

    complaints = Complaints()
    monkeypatch.setattr(phases, "_end_process", complaints.add)
    return complaints


class Hanging(ScriptedSampler):
    """This sampler hangs after two groups, until `over` is set."""

    def __init__(self, over):
        self.over = over

    def generate(self, draw, on_group=None):
        groups = super().generate(replace(draw, prompts=draw.prompts[:2]), on_group)
        assert self.over.wait(30)
        return groups


def config_with_deadline(seconds):
    config = TrainConfig()
    config.rollout.deadline_seconds = seconds
    return config


def test_an_evaluation_whose_sampler_or_grader_hangs_is_ended_with_a_line(ended):
    clocks, task = Clocks(config_with_deadline(0.05), Phases()), ScriptedTask([(1, 0)] * 9)
    prompts = task.next_prompts(4)
    groups = EvaluatedSampler(Hanging(ended.over), clocks).generate(Draw(prompts, 2))
    assert len(groups) == 2 and len(ended) == 1
    assert ended[0].startswith("grpo: rank 0: phase 'evaluation' (Hanging.generate) gave no result for 0.05 s")
    assert ended[0].endswith("raise rollout.deadline_seconds")
    ended.over.clear()

    class Slow(ScriptedTask):
        def grade(self, groups):
            assert ended.over.wait(30)
            return super().grade(groups)

    with GradingThread(Slow([(1, 0)] * 9)) as thread:
        assert len(clocks.evaluation_grading(thread).results(thread.grade_all(groups))) == 2
    assert "phase 'evaluation' (GradingThread.results) gave no result for 0.05 s" in ended[1]


def test_an_evaluation_may_take_long_as_long_as_groups_come(monkeypatch):
    guards = []

    class Timer(threading.Timer):
        def __init__(self, seconds, *rest):
            guards.append(seconds)
            super().__init__(seconds, *rest)

    monkeypatch.setattr(threading, "Timer", Timer)
    clocks, lines = Clocks(config_with_deadline(60.0), Phases()), []
    prompts = ScriptedTask([(1, 0)] * 9).next_prompts(4)
    evaluated = EvaluatedSampler(ScriptedSampler(), clocks)
    groups = evaluated.generate(Draw(prompts, 2), on_group=lambda place, group: lines.append((place, group)))
    assert lines == [*enumerate(groups)]
    assert guards == [60.0] * 5, "one at the start, and one after each group"
    assert len(evaluated.generate(Draw(prompts, 2))) == 4


def test_attributes_of_a_wrapped_part_are_read_and_set_in_the_part():
    task = ScriptedTask([(1, 0)] * 9)
    timed = Wrapped(task, grade=lambda groups: "timed")
    assert timed.grade([]) == "timed" and task.grade([]) == []
    timed.cursor = 5
    assert task.cursor == 5 and [prompt.prompt_id for prompt in timed.next_prompts(1)] == ["p5@0"]
    assert timed.cursor == 6


class Deadlines:
    """These phases note the deadline of each phase, and the key that sets it, by the phase's name."""

    def __init__(self):
        self.noted = {}

    def timed(self, name, function, deadline_seconds, config_key):
        self.noted[name] = (deadline_seconds, config_key)
        return function


class Anything:
    """Every attribute of this part is a function."""

    def __getattr__(self, name):
        return lambda *arguments: None


def test_each_phase_has_the_deadline_that_the_configuration_sets_for_it():
    config = TrainConfig()
    config.rollout.deadline_seconds, config.learner.deadline_seconds = 1.0, 10.0
    config.weight_sync.deadline_seconds = 100.0
    phases = Deadlines()
    clocks = Clocks(config, phases)
    for interface in (Task, Collector, Learner, LearnerStates, WeightSync):
        clocks.timed(Anything(), interface)
    TimedSampler(Anything(), clocks).generate(Draw([], 2))
    clocks.timed(Anything(), Sampler, "sleep", "wake").sleep()
    rollout, learner = (1.0, "rollout.deadline_seconds"), (10.0, "learner.deadline_seconds")
    assert phases.noted == {
        **dict.fromkeys(("grade", "sample", "sleep", "wait"), rollout),
        **dict.fromkeys(("logprobs", "learn", "save", "load", "offload"), learner),
        "sync": (100.0, "weight_sync.deadline_seconds"),
    }
    # An evaluation samples, and may refresh the sampler.
    clocks.between("evaluation", Anything().any)
    assert phases.noted["evaluation"] == (111.0, "learner.deadline_seconds")
