import errno
import re
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest

from grpo.config import CheckpointConfig, EvaluationConfig, UserError
from grpo.config.errors import EndedElsewhere
from grpo.config.folder import checkpoints_in
from grpo.config.saved import read_state
from grpo.insight.diagnosis.findings import Finding
from grpo.measure import judged as measured_as_judged
from grpo.measure import mean_lengths, outcomes
from grpo.rollout.collect import PlainCollector
from grpo.run.assembly import GoingBack
from grpo.run.checkpoints import CheckpointStore
from grpo.run.exporting import Exporter
from grpo.run.gates import RoundNumbers
from grpo.run.observers import Checkpointer, Evaluator, Together, Watch
from grpo.run.records import Recorder, RecordFiles
from grpo.run.resume import asked_of, relearn
from grpo.types import Collected, FinishedRound, Mean, Progress, RoundPlan, RoundStatistics, Verdict
from grpo.weight_sync.refresh import WeightSyncError
from tests.fakes import ScriptedSampler, ScriptedTask, SingleRank, asking, on_ranks


def test_findings_are_looked_for_every_so_often_and_reported_once():
    reported, looked = [], []
    lasting = [Finding("truncated", "warning", "80% cut off", "rollout.sampling.max_tokens=64")]

    def findings():
        looked.append(True)
        return lasting

    watch = Watch(5, findings, reported.append)
    for index in range(1, 21):
        if index == 15:
            lasting.append(Finding("unstable", "critical", "fell by 0.4", "dynamics.refresh_interval=1"))
        watch.after_round(FinishedRound(None, None, Progress(index, 2 * index, 0, RoundPlan(8, 2, 8), None), Verdict()))
    assert len(looked) == 4
    assert reported == [
        "step 10: warning: truncated: 80% cut off ⇒ rollout.sampling.max_tokens=64",
        "step 30: critical: unstable: fell by 0.4 ⇒ dynamics.refresh_interval=1",
    ]


def test_a_long_run_is_looked_at_seldom_enough_for_the_looking_to_take_no_more_than_the_run():
    looked, now = [], 0
    watch = Watch(20, lambda: looked.append(now) or [], print)
    for now in range(1, 100_001):
        watch.after_round(FinishedRound(None, None, Progress(now, now, 0, RoundPlan(8, 1, 8), None), Verdict()))
    assert looked[:50] == list(range(20, 1001, 20))
    # Each reads all rounds so far: five thousand would read 250 million of them.
    assert len(looked) < 300 and sum(looked) < 60 * 100_000
    assert max(after - before for before, after in pairwise(looked)) <= 0.02 * 100_000 + 20


def test_a_watch_that_is_switched_off_never_looks():
    looked = []
    watch = Watch(0, lambda: looked.append(True) or [], print)
    for index in range(1, 5):
        watch.after_round(FinishedRound(None, None, Progress(index, index, 0, RoundPlan(8, 1, 8), None), Verdict()))
    assert looked == []


class Calls:
    """This stands in for a collector, a learner and a weight sync, and records the calls of their methods."""

    def __init__(self):
        self.made = []

    def forget(self):
        self.made.append("forget")

    def rewind(self, directory):
        self.made.append(directory.rsplit("/", 1)[1])

    def refresh(self, learner, sampler):
        self.made.append("refresh")


def test_going_back_takes_the_newest_checkpoint_that_is_trusted_and_refreshes_the_sampler(tmp_path):
    store, calls = CheckpointStore(tmp_path, 5, SingleRank()), Calls()
    for step in (4, 8, 12):
        store.save(step, lambda folder: None, {})
    go_back = GoingBack(calls, calls, None, calls)
    go_back(store.whole(9))
    assert calls.made == ["forget", "step-00000008", "refresh"]
    assert store.whole(3) is None


class Noted:
    """This stands in for a tracker, a file and a display, and keeps what they are given."""

    def __init__(self):
        self.rows, self.notes = [], []

    def note(self, text):
        self.notes.append(text)

    def write(self, row, step):
        self.rows.append({"step": step, **row})

    def log(self, values, step):
        """Ignores the values, which these tests do not look at."""

    samples = round = log


class Lessons:
    """This task keeps the outcomes and lengths that it gets."""

    def __init__(self):
        self.learned, self.lengths = [], []

    def record_outcomes(self, outcomes, cursor):
        self.learned.append((outcomes, cursor))

    def record_lengths(self, lengths):
        self.lengths.append(lengths)


def test_a_resumed_run_reads_back_the_outcomes_that_the_task_learned():
    # The second round asks p2 twice, as a curriculum may.
    scripted = ScriptedTask([[1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 1]])
    collector = PlainCollector(asking(scripted, ScriptedSampler()))
    reported, read, noted = Lessons(), Lessons(), Noted()
    recorder = Recorder(SingleRank(), RecordFiles(noted, noted, noted), samples_per_round=0)
    for index in range(2):
        plan = RoundPlan(4, 1, 2)
        collected = collector.collect(plan, 10)
        if index == 1:
            collected = replace(collected, sampled=(collected.sampled[0],) * 2)
        means = {"completions/length_mean": Mean(2.0, 1.0)}
        statistics = RoundStatistics(index, index + 1, plan, means, {}, {}, ())
        progress = Progress(index + 1, index + 1, collected.cursor, plan, None)
        recorder.after_round(FinishedRound(statistics, collected, progress, Verdict()))
        reported.record_outcomes(outcomes(collected, SingleRank()), collected.cursor)
        reported.record_lengths(mean_lengths(collected, SingleRank()))
    assert reported.lengths == [{"p0": 2.0, "p1": 2.0}, {"p2": 2.0}]
    assert reported.learned == [({"p0": (3, 4), "p1": (0, 4)}, 2), ({"p2": (4, 8)}, 4)]
    # A run that was killed after its second round, and resumed after its first, takes the second one again.
    relearn(read, asked_of(noted.rows), step=1)
    assert (read.learned, read.lengths) == (reported.learned[:1], reported.lengths[:1])
    relearn(read, asked_of(noted.rows[1:]), step=2)
    assert (read.learned, read.lengths) == (reported.learned, reported.lengths)


def test_a_recorder_logs_no_pass_rates_where_nothing_says_which_completions_are_right():
    def logged(answer, rewards, answered=None):
        scripted = ScriptedTask([rewards, rewards])
        collected = PlainCollector(asking(scripted, ScriptedSampler())).collect(RoundPlan(4, 1, 2), 10)
        groups = tuple(with_answer(scored, answer, answered) for scored in collected.sampled)
        noted, written = Noted(), []
        noted.log = lambda values, step: written.append(values)
        numbers = RoundNumbers()
        recorder = Recorder(SingleRank(), RecordFiles(noted, noted, noted), samples_per_round=0, numbers=numbers)
        means = {"completions/length_mean": Mean(2.0, 1.0)}
        statistics = RoundStatistics(0, 1, RoundPlan(4, 1, 2), means, {(3, 4): 2}, {}, ())
        statistics = replace(statistics, judged=measured_as_judged(groups, SingleRank()))
        progress = Progress(1, 1, collected.cursor, RoundPlan(4, 1, 2), None)
        recorder.after_round(FinishedRound(statistics, replace(collected, sampled=groups), progress, Verdict()))
        # Gates see what is logged.
        assert ("pass_rate" in numbers(statistics)) == ("pass_rate" in written[0])
        return written[0]

    judged, unjudged = logged("7", [3, 0, 5, 1]), logged("", [3, 0, 5, 1])
    assert judged["pass_rate"] == 0.75 and judged["groups/counts"] == [[3, 4, 2]]
    assert {"groups/all_correct_fraction", "completions/right/length_mean"} < judged.keys()
    assert "pass_rate" not in unjudged and unjudged["groups/counts"] == []
    counting = ("groups/all_", "completions/right", "completions/wrong", "completions/by_pass_rate")
    assert not [name for name in unjudged if name.startswith(counting)]
    # Rewards of 0 and 1 are verdicts also where problems have no answers.
    assert logged("", [1, 0, 1, 1])["pass_rate"] == 0.75
    # So are any rewards of a part that looks for an answer, as reasoning_gym's own graders do.
    assert logged("", [3, 0, 5, 1], answered=True)["pass_rate"] == 0.75


def with_answer(scored, answer, answered):
    """Returns a scored group whose problem has this answer, and whose grades say whether they found one."""
    prompt, grades = scored.group.prompt, tuple(replace(grade, answered=answered) for grade in scored.grades)
    prompt = replace(prompt, problem=replace(prompt.problem, answer=answer))
    return replace(scored, group=replace(scored.group, prompt=prompt), grades=grades)


def test_the_last_checkpoint_has_the_score_of_its_policy(tmp_path):
    config, store, written = EvaluationConfig(num_problems=4), CheckpointStore(tmp_path, 5, SingleRank()), []
    scored = {"pass@1": {"value": 0.25}}
    evaluator = Evaluator(config, lambda: scored, lambda result: None, (), lambda at, verdict: at.step == 6)
    learner = SimpleNamespace(save=written.append)
    reported, facts = [], {"config": {}, "base": {"path": "some/base"}}
    checkpointer = Checkpointer(CheckpointConfig(every_rounds=1), store, learner, facts, evaluator, reported.append)
    for index in (1, 2, 3):
        progress = Progress(index, 2 * index, 0, RoundPlan(8, 2, 8), None)
        for observer in (evaluator, checkpointer):
            observer.after_round(FinishedRound(None, None, progress, Verdict()))
    checkpointer.save(progress, Verdict())
    assert [read_state(path)["score"] for path in checkpoints_in(tmp_path)] == [None, None, 0.25]
    assert len(written) == 3
    assert {read_state(path)["base"]["path"] for path in checkpoints_in(tmp_path)} == {"some/base"}
    assert len(reported) == 1 and re.match(rf"step 2: a checkpoint takes \d+ KiB in {tmp_path};", reported[0])


@pytest.mark.parametrize(
    ("round_index", "every", "steps"), [(0, 0, [0]), (4, 0, []), (4, 2, [8]), (5, 2, []), (6, 2, [])]
)
def test_an_evaluation_that_a_stop_has_left_out_is_made_up(round_index, every, steps):
    recorded, earlier = [], [{"step": 12, "pass@1": {"value": 0.5}}]
    config = EvaluationConfig(num_problems=4, every_rounds=every)
    progress = Progress(round_index, 2 * round_index, 0, RoundPlan(8, 2, 8), None)
    evaluator = Evaluator(config, lambda: {"step": progress.step, "pass@1": {"value": 0.5}}, recorded.append, earlier)
    evaluator.make_up(progress)
    assert [result["step"] for result in recorded] == steps


def test_an_evaluation_that_could_not_be_graded_is_reported_and_neither_kept_nor_the_best(tmp_path):
    ungraded = {"problems": 4, "ungraded": 4}
    first, best = {"pass@1": {"value": 0.25}}, {"pass@1": {"value": 0.5}}
    results, recorded, written = iter([first, ungraded, first | {"ungraded_sets": ["b"]}, best]), [], []
    evaluator = Evaluator(EvaluationConfig(num_problems=4, every_rounds=1), lambda: next(results), recorded.append)
    store, learner = CheckpointStore(tmp_path, 5, SingleRank()), SimpleNamespace(save=written.append)
    checkpointer = Checkpointer(CheckpointConfig(every_rounds=9), store, learner, {"config": {}}, evaluator)
    for index in (1, 2, 3, 4):
        for observer in (evaluator, checkpointer):
            progress = Progress(index, index, 0, RoundPlan(8, 2, 8), None)
            observer.after_round(FinishedRound(None, None, progress, Verdict()))
        # A run asks for that of its last step once more.
        evaluator.at(index)
    assert [*evaluator.results] == [1, 3, 4] and len(recorded) == 4
    assert [evaluator.score(step) for step in (1, 2, 3, 4)] == [0.25, None, None, 0.5]
    # The first is the best so far, and so is the last.
    assert [read_state(path)["score"] for path in checkpoints_in(tmp_path)] == [0.25, 0.5]


def test_scores_are_compared_with_those_of_the_same_problems_and_settings():
    def result(step, value, temperature=1.0, problems="ab"):
        rows = [{"problem_id": name} for name in problems]
        return {"step": step, "pass@1": {"value": value}, "temperature": temperature, "per_problem": rows}

    earlier = [result(2, 0.9, temperature=0.1), result(4, 0.3), result(6, 0.5), result(8, 0.4), result(10, 0.8, "abc")]
    evaluator = Evaluator(EvaluationConfig(), dict, lambda result: None, earlier)
    assert evaluator.scores(2) == {2: 0.9} and evaluator.scores(8) == {4: 0.3, 6: 0.5, 8: 0.4}
    assert evaluator.scores(10) == {10: 0.8} and evaluator.scores(1) == {}


def test_the_checkpoint_that_a_run_went_on_from_is_not_written_again(tmp_path):
    store, written, reported = CheckpointStore(tmp_path, 1, SingleRank()), [], []
    config, learner = CheckpointConfig(every_rounds=1), SimpleNamespace(save=written.append)
    evaluator = Evaluator(EvaluationConfig(num_problems=0), dict, lambda result: None)
    checkpointer = Checkpointer(config, store, learner, {}, evaluator, reported.append, resumed_at=4)
    for step, writes in ((4, 0), (6, 1)):
        checkpointer.save(Progress(step // 2, step, 0, RoundPlan(8, 2, 8), None), Verdict())
        assert len(written) == len(reported) == writes


def test_a_model_is_written_every_so_many_rounds_and_a_full_disk_does_not_end_the_run(tmp_path):
    reported, written = [], []

    def write(step, folder):
        written.append((step, folder.name))
        if step == 8:
            raise UserError("the model could not be written to x (No space left on device)")
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(bytes(4096))

    exporter = Exporter(2, tmp_path, write, reported.append, SingleRank())
    for index in range(1, 7):
        progress = Progress(index, 2 * index, 0, RoundPlan(8, 2, 8), None)
        exporter.after_round(FinishedRound(None, None, progress, Verdict()))
    assert written == [(4, "step-00000004"), (8, "step-00000008"), (12, "step-00000012")]
    assert reported[0] == f"step 4: the model is in {tmp_path}/models/step-00000004 (4 KiB)"
    assert "No space left on device" in reported[1] and "the run goes on" in reported[1] and len(reported) == 3
    # The run stopped at once in its eighth round, and goes on from there. Round 6 has its model, and 7 needs none.
    for index in (0, 6, 7, 8, 8):
        exporter.make_up(Progress(index, 2 * index, 0, RoundPlan(8, 2, 8), None))
    assert written[3:] == [(16, "step-00000016")]


def test_a_model_after_which_sampler_and_learner_differ_ends_the_run(tmp_path):
    def write(step, folder):
        raise WeightSyncError("learner and sampler hold different weights")

    with pytest.raises(WeightSyncError):
        Exporter(1, tmp_path, write, print, SingleRank()).after_round(
            FinishedRound(None, None, Progress(1, 1, 0, RoundPlan(8, 1, 8), None), Verdict())
        )


def test_only_a_change_of_what_is_sampled_is_remarked_on():
    adapted = [RoundPlan(4, 1, 2, entropy_coefficient=index / 100, entropy_bonus=index % 2 == 0) for index in range(4)]
    assert remarks_of(*[HEALTHY] * 4, plans=adapted) == []
    assert remarks_of(HEALTHY, HEALTHY, plans=[RoundPlan(4, 1, 2), RoundPlan(8, 1, 2)]) == ["step 2: as configured"]


def test_a_rate_that_is_at_fault_is_remarked_on_where_the_plan_stays():
    assert remarks_of(HEALTHY, verdict=Verdict(reason="as before")) == []
    assert remarks_of(HEALTHY, verdict=Verdict(reason="the rate is too high")) == ["step 1: the rate is too high"]


def remarks_of(*rounds, plans=None, verdict=None):
    """Returns the notes of a run whose rounds have these means, without the note on the first round."""
    noted = Noted()
    recorder = Recorder(SingleRank(), RecordFiles(noted, noted, noted), samples_per_round=0)
    plan = RoundPlan(4, 1, 2)
    for index, values in enumerate(rounds):
        means = {name: Mean(value, 1.0) for name, value in values.items()}
        statistics = RoundStatistics(index, index + 1, plan, means, {}, {}, ())
        progress = Progress(index + 1, index + 1, 0, plans[index] if plans else plan, None)
        recorder.after_round(FinishedRound(statistics, Collected((), (), plan, 0), progress, verdict or Verdict()))
    first, *others = noted.notes
    assert first == "step 1: of the completions 50% were cut off"
    return others


HEALTHY = {
    "completions/truncated_fraction": 0.5,
    "completions/length_mean": 20.0,
    "reward/mean": 0.0,
    "reward/square": 0.25,
}


@pytest.mark.parametrize(
    ("odd", "key"),
    [
        ({"completions/truncated_fraction": 1.0}, "rollout.sampling.max_tokens"),
        ({"completions/length_mean": 1.0}, "task.prompt.chat"),
        ({"reward/square": 0.0}, "task.reward.parts"),
    ],
)
def test_a_round_that_is_useless_is_reported_the_first_time(odd, key):
    assert remarks_of(HEALTHY) == []
    [note] = remarks_of(HEALTHY, HEALTHY | odd, HEALTHY | odd)
    assert note.startswith("step 2: ") and key in note


@pytest.mark.parametrize("crash", [True, False])
def test_trackers_learn_whether_a_run_crashed(crash):
    reported = []
    tracker, other = SimpleNamespace(close=lambda failed: reported.append(failed)), SimpleNamespace(close=lambda: None)
    with suppress(ZeroDivisionError), RecordFiles(tracker, other, other):
        _ = 1 / (0 if crash else 1)
    assert reported == [crash]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "[Errno 28] No space left on device"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_completions_that_one_rank_cannot_write_end_all_ranks(error, reason):
    def observe(collective):
        class Full:
            def after_round(self, finished):
                if collective.rank == 1:
                    raise error

        Together(Full(), collective).after_round(None)

    first, second = on_ranks(2, observe)
    assert isinstance(first, EndedElsewhere) and str(first) == f"rank 1 failed: {reason}"
    assert second is error
