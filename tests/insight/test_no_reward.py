"""A run without any reward gets this finding, with the reason, from its first round on."""

import json

import numpy as np
import pytest

from benchmarks.log_of_curves import logged
from benchmarks.synthetic_logs import healthy
from grpo.dynamics.history import NO_HISTORY
from grpo.insight.diagnosis.diagnostics import diagnose
from grpo.insight.diagnosis.no_reward import shares, warnings, why
from grpo.insight.logs.logs import read_log
from grpo.insight.logs.run_log import RunLog, Series

NOTHING = {"reward/mean": 0.0, "reward/std": 0.0}


@pytest.mark.parametrize(
    ("share", "reason", "remedy"),
    [
        ("timed_out", "took longer to grade than task.reward.timeout_seconds", "raise task.reward.timeout_seconds"),
        ("failed", "made the reward function fail", "mend the function"),
        ("unanswered", "a reward server did not answer", "look after the server"),
        ("raised", "the reward function raised an exception", "mend the function, or let it return 0"),
        ("unparsable_answer", "whose own answer cannot be read", "choose another task.data.answer_column"),
        ("truncated", "were cut off before they ended", "raise rollout.sampling.max_tokens"),
        ("no_answer", "hold no answer in the form that task.reward.extract", "set task.reward.extract=final"),
    ],
)
def test_the_first_round_without_reward_names_the_reason_and_the_remedy(share, reason, remedy):
    warned = warnings(NOTHING | {f"completions/{share}_fraction": 0.75})
    assert list(warned) == ["no reward"]
    assert warned["no reward"].startswith("every reward is 0, so nothing was learned: 75% of the completions")
    assert reason in warned["no reward"] and f"⇒ {remedy}" in warned["no reward"]


def test_a_limit_of_turns_that_cuts_all_episodes_off_is_one_warning():
    cut = {"completions/truncated_fraction": 1.0, "episodes/out_of_turns_fraction": 1.0}
    assert [*warnings({"reward/mean": 0.5} | cut)] == ["episodes/out_of_turns_fraction"]
    cut["episodes/out_of_turns_fraction"] = 0.9
    assert [*warnings({"reward/mean": 0.5} | cut)] == ["completions/truncated_fraction"]


def test_the_limit_of_turns_is_named_before_that_of_tokens():
    cut = {"completions/truncated_fraction": 0.75, "episodes/out_of_turns_fraction": 0.6}
    assert "60% of the episodes ended at the limit of turns ⇒ raise task" in warnings(NOTHING | cut)["no reward"]


def test_a_tool_that_always_fails_is_named_in_the_first_round():
    failing = {"episodes/failed_calls_fraction": 1.0}
    [line] = warnings({"reward/mean": 0.5} | failing).values()
    assert line.startswith("100% of the calls of tools failed ⇒ mend the tool")
    assert "100% of the calls of tools failed" in warnings(NOTHING | failing)["no reward"]
    assert warnings({"reward/mean": 0.5, "episodes/failed_calls_fraction": 0.9}) == {}


def test_wrong_answers_alone_are_a_matter_of_difficulty():
    warned = warnings(NOTHING | {"completions/no_answer_fraction": 0.1})["no reward"]
    assert "answers are found and graded, and none is right" in warned and "easier problems" in warned


def test_a_round_with_rewards_is_warned_only_of_what_holds_for_all_completions():
    healthy_round = {"reward/mean": 0.0, "reward/std": 0.5, "completions/no_answer_fraction": 0.9}
    assert warnings(healthy_round) == {}
    warned = warnings(healthy_round | {"completions/truncated_fraction": 1.0})
    assert list(warned) == ["completions/truncated_fraction"]


def test_a_round_without_reward_after_a_good_one_is_blamed_on_the_step_between_them():
    before = {"step": 1.0, "reward/mean": 0.4, "pass_rate": 0.4, "completions/truncated_fraction": 0.0}
    after = NOTHING | {"step": 2.0, "pass_rate": 0.0, "completions/truncated_fraction": 1.0}
    warned = warnings(after, before | {"learner/learning_rate": 0.5})["no reward"]
    assert warned.startswith(
        "40% of answers were right in the rounds to step 1 and none since; of the completions 0% were"
    )
    assert "a tenth of learner.learning_rate" in warned and "max_tokens" not in warned
    assert "raise rollout.sampling.max_tokens" in warnings(after, before | {"pass_rate": 0.0})["no reward"]


@pytest.mark.parametrize(
    ("share", "remedy"), [("unanswered", "look after the server"), ("raised", "mend the function")]
)
def test_a_round_of_which_nothing_could_be_graded_says_so_and_not_that_it_failed(share, remedy):
    outage = {"completions/truncated_fraction": 0.0, f"completions/{share}_fraction": 1.0}
    warned = warnings(outage)
    assert list(warned) == [f"completions/{share}_fraction"] and f"⇒ {remedy}" in warned[next(iter(warned))]
    assert shares(outage).endswith("0% were cut off, 100% could not be graded and count neither as right nor as wrong")


def test_the_diagnosis_of_a_run_of_which_nothing_could_be_graded_is_that_alone():
    steps = np.arange(1.0, 31)
    [finding] = diagnose(RunLog(NO_HISTORY, {"completions/unanswered_fraction": Series(steps, np.ones(30))}))
    assert (finding.name, finding.severity) == ("nothing graded", "critical")
    assert "a reward server did not answer" in finding.evidence


def without_reward(rounds):
    log = logged(healthy(0, rounds=rounds))
    zeros = Series(log["pass_rate"].steps, np.zeros(rounds))
    cut = Series(zeros.steps, np.full(rounds, 0.8))
    series = {"reward/mean": zeros, "reward/std": zeros, "completions/no_answer_fraction": cut}
    return RunLog(log.history, {**log.series, **series})


@pytest.mark.parametrize("rounds", [1, 60])
def test_the_diagnosis_of_a_run_without_reward_is_that_alone(rounds):
    [finding] = diagnose(without_reward(rounds))
    assert (finding.name, finding.severity) == ("no reward", "critical")
    assert "80% of the completions hold no answer" in finding.evidence


def test_one_reward_is_enough_to_say_nothing():
    log = without_reward(60)
    log["reward/mean"].values[3] = 0.01
    assert "no reward" not in {finding.name for finding in diagnose(log)}


def test_another_frameworks_log_without_reward_gets_the_finding_too(tmp_path):
    rows = [{"step": step, "reward": 0.0, "reward_std": 0.0, "completions/clipped_ratio": 1.0} for step in range(8)]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": rows}))
    [finding] = diagnose(read_log(tmp_path / "trainer_state.json"))
    assert "every reward is 0; 100% of the completions were cut off" in finding.evidence


def test_a_log_of_rewards_alone_does_not_say_why_all_are_0(tmp_path):
    rows = [{"step": step, "reward": 0.0} for step in range(8)]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": rows}))
    [finding] = diagnose(read_log(tmp_path / "trainer_state.json"))
    assert finding.evidence == "every reward is 0; the log does not say why"


def test_an_episode_that_failed_is_named_before_a_reward_function():
    spoilt = {"completions/raised_fraction": 1.0, "episodes/failed_fraction": 0.125, "completions/length_mean": 0.0}
    assert [*warnings({"reward/mean": 0.5} | spoilt)] == ["completions/raised_fraction"]
    assert (
        "in groups in which an episode failed" in warnings({"reward/mean": 0.5} | spoilt)["completions/raised_fraction"]
    )
    spoilt["episodes/failed_fraction"] = 0.0
    assert "the reward function raised" in warnings({"reward/mean": 0.5} | spoilt)["completions/raised_fraction"]


def test_a_full_model_length_is_named_before_the_limit_of_a_completion():
    cut = {"completions/truncated_fraction": 1.0, "episodes/out_of_room_fraction": 0.75}
    assert why(cut) == (
        "75% of the episodes filled model.max_length",
        "raise model.max_length, or let tools and environment say less",
    )


def test_episodes_that_fail_and_count_as_cut_off_are_one_warning():
    failing = {"completions/truncated_fraction": 1.0, "episodes/failed_fraction": 1.0}
    assert [*warnings({"reward/mean": 0.5} | failing)] == ["episodes/failed_fraction"]
    assert why(failing)[0] == "100% of the episodes failed or took too long"
