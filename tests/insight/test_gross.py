"""These tests hold that a gross problem is reported even for a run of a few rounds, and nothing for a healthy run."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.log_of_curves import logged
from benchmarks.synthetic_logs import healthy
from grpo.insight.diagnosis.diagnostics import diagnose, unchecked
from grpo.insight.diagnosis.findings import DiagnosisRule
from grpo.insight.diagnosis.symptoms import mostly_cut_off, silence, unanswered
from grpo.insight.logs.run_log import Series

GROUPS = 16


def short(rounds, counted=True, groups=GROUPS, **shares):
    """Returns a healthy log of a few rounds with the given shares in it. `__` in an argument's name stands for a
    slash."""
    log = logged(healthy(3, rounds))
    steps = np.arange(1, rounds + 1.0)
    given = {name.replace("__", "/"): Series(steps, np.full(rounds, share)) for name, share in shares.items()}
    counts = [{(1, 8): groups}] * rounds if counted else ()
    return replace(log, series={**log.series, **given}, counts=counts)


def seen(log):
    return {finding.name: finding.severity for finding in diagnose(log)}


@pytest.mark.parametrize("rounds", [1, 5, 12, 30])
def test_nearly_all_cut_off_is_found_in_a_run_of_any_length(rounds):
    assert seen(short(rounds, completions__truncated_fraction=0.94, pass_rate=0.05))["truncated"] == "critical"
    # Here completions are right though they are cut off.
    assert seen(short(rounds, completions__truncated_fraction=0.94, pass_rate=0.5))["truncated"] == "warning"


@pytest.mark.parametrize("rounds", [1, 5, 30])
def test_episodes_that_end_at_the_limit_of_turns_need_more_turns_and_not_longer_completions(rounds):
    found = diagnose(short(rounds, completions__truncated_fraction=0.94, episodes__out_of_turns_fraction=0.9))
    [remedy] = [finding.remedy for finding in found if finding.name in ("truncated", "out of turns")]
    assert remedy.startswith("a larger task.limits.turns")


@pytest.mark.parametrize("rounds", [1, 12])
def test_missing_answers_are_found_in_a_run_of_any_length(rounds):
    shares = {"completions__no_answer_fraction": 0.95, "groups__all_wrong_fraction": 0.95}
    names = seen(short(rounds, **shares, pass_rate=0.03))
    assert names["no answers found"] == "critical" and "prompts too hard" not in names
    # A reward of one's own may call completions right in which the others find no answer.
    assert "no answers found" not in seen(short(rounds, **shares, pass_rate=0.5))
    assert "no answers found" not in seen(short(rounds, **shares, pass_rate=0.03, completions__truncated_fraction=0.99))


@pytest.mark.parametrize(
    ("wrong", "right", "rate", "name"),
    [(1.0, 0.0, 0.0, "prompts too hard"), (0.3, 0.7, 0.7, "prompts too easy"), (0.0, 1.0, 1.0, "problems solved")],
)
@pytest.mark.parametrize("rounds", [1, 5, 12])
def test_all_groups_silent_is_found_in_a_run_of_any_length(rounds, wrong, right, rate, name):
    log = short(rounds, groups__silent_fraction=1.0, groups__all_wrong_fraction=wrong,
                groups__all_correct_fraction=right, pass_rate=rate)  # fmt: skip
    assert name in seen(log)


def test_answers_that_are_all_wrong_are_found_though_their_form_is_rewarded():
    log = short(4, groups__silent_fraction=0.2, groups__all_wrong_fraction=1.0, pass_rate=0.0)
    [finding] = diagnose(log)
    assert finding.name == "prompts too hard"
    assert finding.evidence == "100% of groups hold no right answer in the 4 rounds so far"
    assert "task.reward.correct_at" in finding.remedy and "normalization=dapo" not in finding.remedy


def test_one_round_below_the_limit_is_enough_to_say_nothing():
    log = short(12, completions__truncated_fraction=0.94)
    log.series["completions/truncated_fraction"].values[7] = 0.88
    assert "truncated" not in seen(log)


@pytest.mark.parametrize(("share", "masked"), [(0.4, True), (0.8, False)])
def test_completions_that_are_mostly_cut_off_are_not_to_be_masked(share, masked):
    log = short(40)
    shares = Series(np.arange(1, 41.0), share + 0.03 * (-1.0) ** np.arange(40))
    [cut] = [
        finding
        for finding in diagnose(replace(log, series={**log.series, "completions/truncated_fraction": shares}))
        if finding.name == "truncated"
    ]
    assert ("task.reward.overlong=mask" in cut.remedy) is masked


def test_few_groups_and_few_uncounted_rounds_prove_nothing():
    shares = {"completions__truncated_fraction": 1.0, "groups__silent_fraction": 1.0}
    assert seen(short(3, groups=5, **shares)) == {}
    assert set(seen(short(3, groups=6, **shares))) == {"truncated", "prompts too hard"}
    # A foreign log needs 3 rounds for shares of completions, and 16 for shares of groups.
    assert seen(short(2, counted=False, **shares)) == {}
    assert set(seen(short(3, counted=False, **shares))) == {"truncated"}


def test_healthy_runs_of_every_length_get_no_finding():
    for seed in range(60):
        log = logged(healthy(seed, 12))
        for rounds in range(1, 12):
            series = {
                name: Series(measured.steps[:rounds], measured.values[:rounds]) for name, measured in log.series.items()
            }
            first = replace(log, series=series, counts=log.counts[:rounds], history=log.history.until(rounds))
            assert [check(first, DiagnosisRule()) for check in (mostly_cut_off, unanswered, silence)] == [None] * 3


def test_groups_of_equal_rewards_are_no_loss_where_they_are_learned_from():
    log = short(40, groups__silent_fraction=1.0)
    assert "prompts too easy" in seen(log)
    assert "prompts too easy" not in seen(replace(log, learns_from_equal=True))


@pytest.mark.parametrize("rounds", [1, 5, 12])
def test_gradients_that_were_not_finite_are_found_in_a_run_of_any_length(rounds):
    log = short(rounds, learner__skipped_steps=1.0)
    # A round without an applied step has no gradient norm.
    log = replace(log, series={name: series for name, series in log.series.items() if "gradient_norm" not in name})
    assert seen(log)["gradients not finite"] == "critical"
    assert "gradients" not in unchecked(log)
    assert "gradients not finite" not in seen(short(rounds, learner__skipped_steps=0.0))
