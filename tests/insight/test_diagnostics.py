"""These tests hold that the diagnosis finds what fails in failing runs, and nothing in healthy ones. Benchmarks count
both over more runs."""

import ast
import re
from collections import Counter
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

import numpy as np
import pytest

from benchmarks import episode_logs
from benchmarks.log_of_curves import logged
from benchmarks.losses import drawn, first_warning
from benchmarks.practice_failures import FAILING
from benchmarks.practice_healthy import ALSO_TRUE, HEALTHY
from benchmarks.synthetic_logs import FAILURES, healthy, noise, still
from grpo.config import TrainConfig
from grpo.config.hydra import compose_config
from grpo.config.optimizer import with_learning_rate
from grpo.config.validate import value_at
from grpo.dynamics.history import history_of, history_of_values
from grpo.insight.diagnosis import evidence, progress, reward_parts, setbacks, swings
from grpo.insight.diagnosis import findings as findings_module
from grpo.insight.diagnosis.diagnostics import CHECKS, OF_EPISODES, diagnose, unchecked
from grpo.insight.diagnosis.findings import NOTE, DiagnosisRule
from grpo.insight.diagnosis.symptoms import learning_rate
from grpo.insight.logs.run_log import RunLog, Series

RULE = DiagnosisRule()
OF_EPISODES_FOUND = {finding for _, finding in episode_logs.FAILING.values()}


def findings(curves):
    log = logged(curves)
    return [finding for check, _ in CHECKS.values() for finding in [check(log, RULE)] if finding]


@pytest.mark.slow
def test_healthy_runs_raise_no_alarm():
    found = [finding for seed in range(20) for finding in findings(healthy(seed)) if finding.severity != NOTE]
    assert found == []


@pytest.mark.slow
@pytest.mark.parametrize("name", FAILURES)
def test_the_diagnosis_names_what_fails_in_failing_runs(name):
    for seed in range(1002, 1005):
        curves = healthy(seed)
        FAILURES[name](curves)
        assert set(name.strip().split("|")) & {finding.name for finding in findings(curves)}, seed


@pytest.mark.slow
@pytest.mark.parametrize("fail", FAILING)
def test_failures_of_practice_are_found(fail):
    assert FAILING[fail] & {finding.name for finding in diagnose(logged(fail(0)))}


@pytest.mark.slow
@pytest.mark.parametrize("make", HEALTHY)
def test_healthy_runs_of_practice_raise_no_alarm(make):
    true = ALSO_TRUE.get(make, set()) | {"problems solved"}
    found = [finding.name for finding in diagnose(logged(make(0))) if finding.severity != NOTE]
    assert set(found) <= true


@pytest.mark.parametrize(("shares", "finding"), episode_logs.FAILING.values(), ids=episode_logs.FAILING)
def test_failures_of_episodes_are_found(shares, finding):
    found = {finding.name for finding in diagnose(episode_logs.log_of_episodes(shares, 0, rounds=60))}
    assert found & OF_EPISODES_FOUND == {finding}


@pytest.mark.parametrize("shares", episode_logs.HEALTHY.values(), ids=episode_logs.HEALTHY)
def test_healthy_episodes_raise_no_alarm(shares):
    log = episode_logs.log_of_episodes(shares, 0, rounds=60)
    assert not {finding.name for finding in diagnose(log)} & OF_EPISODES_FOUND


def test_a_run_of_single_turns_has_no_findings_of_episodes():
    log = logged(healthy(0, rounds=40))
    assert [check(log, RULE) for check in OF_EPISODES] == [None] * len(OF_EPISODES)


def test_learning_since_a_round_was_sampled_ahead_is_no_mismatch_of_the_engines():
    found = []
    for staleness in (0.0, 1.0):
        curves = healthy(1000)
        FAILURES["sampler mismatch"](curves)
        log = logged(curves)
        steps = log["mismatch/mean_abs"].steps
        facts = {"staleness/mean": staleness, "plan/refresh_interval": 1.0}
        series = {name: Series(steps, np.full(len(steps), value)) for name, value in facts.items()}
        log = replace(log, series={**log.series, **series})
        found.append(
            "sampler mismatch" in {finding.name for check, _ in CHECKS.values() if (finding := check(log, RULE))}
        )
    assert found == [True, False]


def test_a_function_that_raises_brings_no_advice_to_wait_longer_for_it():
    log = logged(healthy(3, rounds=40))
    steps = log["pass_rate"].steps
    series = {"completions/raised_fraction": Series(steps, np.full(len(steps), 0.6))}
    log = replace(log, series={**log.series, **series})
    [finding] = [finding for finding in diagnose(log) if finding.name == "grading fails"]
    assert finding.remedy == "fix the reward function, or let it return 0 where it means 0"


def test_a_whole_diagnosis_puts_the_gravest_first():
    curves = healthy(3, rounds=120)
    FAILURES["truncated"](curves)
    FAILURES["unstable"](curves)
    diagnosis = diagnose(logged(curves))
    assert diagnosis[0].name == "unstable" and diagnosis[0].severity == "critical"
    assert "truncated" in {finding.name for finding in diagnosis[1:]}


def test_a_finished_run_gets_its_plateau_as_a_note():
    curves = healthy(0, rounds=200)
    curves["pass"] = 0.8 - 0.6 * np.exp(-np.arange(200) / 15)
    log = replace(logged(curves), num_steps=205)
    diagnosis = diagnose(log)
    assert [(finding.name, finding.severity) for finding in diagnosis] == [("on the plateau", NOTE)]
    assert re.match(r"a gain of more than 0.02 until step 205 has probability \d%; exp", diagnosis[0].evidence)
    # Twice as far away the same curve may gain more.
    assert not diagnose(replace(log, num_steps=400))


@pytest.mark.slow
def test_a_lost_run_gets_no_finding_that_follows_from_its_loss():
    curves = healthy(2, rounds=100)
    curves["pass"], curves["spread"] = np.where(np.arange(100) < 15, 0.4, 0.02), 0.3
    curves["held_out"] = curves["pass"]
    names = {finding.name for finding in diagnose(replace(logged(curves), num_steps=105))}
    assert "unstable" in names and not names & {"nothing learned", "on the plateau", "prompts too hard"}


@pytest.mark.parametrize(("plateau", "advice"), [(0.8, "with harder problems"), (0.3, "with easier problems")])
def test_on_a_low_plateau_easier_problems_are_advised(plateau, advice):
    curves = healthy(0, rounds=200)
    curves["pass"] = plateau - 0.2 * np.exp(-np.arange(200) / 10)
    finding = progress.plateau(replace(logged(curves), num_steps=205), RULE)
    assert finding.remedy.endswith(advice)


@pytest.mark.slow
def test_runs_of_which_nothing_moves_raise_no_alarm_but_that_nothing_was_learned():
    found = [
        (seed, finding.name) for seed in range(12) for finding in findings(still(seed)) if finding.severity != NOTE
    ]
    assert found == [(seed, "nothing learned") for seed in (0, 1, 2, 3, 4, 7, 10)]


def steady(rates):
    """Returns a log that holds only these pass rates."""
    steps = np.arange(1, len(rates) + 1.0)
    return RunLog(history_of_values(steps, rates), {"pass_rate": Series(steps, rates)}, num_steps=len(rates))


def changed(rounds=200, **series):
    """Returns the names of the findings on a healthy run in which the given metrics replace its own."""
    log = logged(healthy(7, rounds))
    steps = np.arange(1, rounds + 1.0)
    given = {name.replace("__", "/"): Series(steps, np.asarray(values, float)) for name, values in series.items()}
    log = replace(log, series={**log.series, **given})
    return {finding.name for check, _ in CHECKS.values() if (finding := check(log, RULE))}


def test_truncation_is_found_whatever_the_pass_rate_does():
    assert "truncated" in changed(completions__truncated_fraction=np.full(200, 0.42))
    risen = np.concatenate([np.full(100, 0.02), np.full(100, 0.22)])
    assert "truncated" in changed(completions__truncated_fraction=risen)
    assert "truncated" not in changed(completions__truncated_fraction=np.linspace(0.6, 0.1, 200))


def test_an_entropy_that_multiplies_is_found_where_answers_get_no_better():
    entropy, flat = np.concatenate([np.full(100, 0.5), np.full(100, 1.6)]), np.tile([0.3, 0.34], 100)
    assert "entropy runs off" in changed(policy__entropy=entropy, pass_rate=flat)
    # Exploring while learning is what an entropy bonus is for, and .05 → .15 nats are few either way.
    assert "entropy runs off" not in changed(policy__entropy=entropy, pass_rate=np.linspace(0.2, 0.6, 200))
    assert "entropy runs off" not in changed(policy__entropy=entropy / 10, pass_rate=flat)


def test_a_reference_that_is_another_model_is_found_in_the_first_rounds():
    assert "far from the reference" in changed(policy__reference_kl=np.full(200, 1.0))
    assert "far from the reference" not in changed(policy__reference_kl=np.linspace(0, 1.0, 200))


def test_a_schedule_that_has_ended_is_found_and_one_that_ends_is_not():
    time = np.linspace(0, 1, 200)
    assert "learning rate ended" in changed(learner__learning_rate=np.maximum(1 - 2 * time, 0))
    assert "learning rate ended" not in changed(learner__learning_rate=1 - time)
    assert "learning rate ended" not in changed(learner__learning_rate=1 + np.cos(np.pi * time))
    assert "long warm-up" in changed(learner__learning_rate=time)
    assert "long warm-up" not in changed(learner__learning_rate=np.minimum(2 * time, 1))


def test_a_warm_up_longer_than_the_run_is_found_in_a_short_run():
    log = logged(healthy(7, 6))
    log = replace(log, series={"learner/learning_rate": Series(np.arange(6.0), np.arange(6.0))}, num_steps=6)
    found = {warmup: learning_rate(replace(log, settings={"learner.warmup_steps": warmup}), RULE) for warmup in (6, 9)}
    assert found[6] is None
    assert found[9].evidence == "it rises for learner.warmup_steps=9, and the run has 6 steps"


@pytest.mark.parametrize(("rate", "rank", "slow"), [(1e-6, 16, True), (1e-5, 16, False), (1e-6, 0, False)])
def test_adapters_at_a_whole_models_rate_are_found_and_not_what_comes_of_it(rate, rank, slow):
    """A model that stays as it was is cut off as often as before."""
    log = replace(
        logged(healthy(7, 60) | {"truncated": np.full(60, 0.64)}),
        settings={"learner.learning_rate": rate, "model.lora.rank": rank},
    )
    found = [finding.name for finding in diagnose(log)]
    assert ("slow adapters" in found) == slow and ("truncated" in found) != slow


def test_a_loss_that_was_made_good_is_a_setback():
    curve = np.concatenate([np.linspace(0.2, 0.8, 80), np.linspace(0.3, 0.8, 120)])
    assert {"setback"} == changed(pass_rate=curve) & {"setback", "unstable"}
    largest = min(evidence.setbacks(Series(np.arange(200.0), curve)), key=lambda loss: loss.change.value)
    assert (largest.best, largest.lowest) == (79.0, 89.0) and largest.change.value == pytest.approx(-0.447, abs=0.001)
    dip = np.concatenate([np.linspace(0.2, 0.8, 80), np.linspace(0.7, 0.8, 120)])
    assert "setback" not in changed(pass_rate=dip + 0.03 * (-1) ** np.arange(200))


def test_a_fall_up_to_the_end_is_no_setback_and_a_run_that_fell_is_not_where_it_began():
    falls = np.linspace(0.6, 0.2, 200) + 0.1 * np.random.default_rng(0).standard_normal(200)
    assert not changed(pass_rate=falls) & {"setback", "nothing learned"}
    rises = np.linspace(0.3, 0.36, 200) + 0.002 * np.random.default_rng(0).standard_normal(200)
    assert "nothing learned" not in changed(pass_rate=rises)
    lower = np.linspace(0.5, 0.42, 200) + 0.01 * np.random.default_rng(0).standard_normal(200)
    assert changed(pass_rate=lower) & {"getting worse", "nothing learned"} == {"getting worse"}


def test_a_loss_that_lasts_is_found_although_ten_rounds_could_not_tell_it_from_luck():
    """The loss of .14 is 1.4 times the scatter of single rounds. Windows of ten rounds alone would tell 7 of 10."""
    found, alarms = 0, 0
    for seed in range(10):
        luck = 0.1 * np.random.default_rng(seed).standard_normal(240)
        found += setbacks.collapse(steady(np.repeat([0.6, 0.46], 120) + luck), RULE) is not None
        alarms += setbacks.collapse(steady(0.5 + luck), RULE) is not None
    assert (found, alarms) == (10, 0)


def test_short_swings_are_found_where_the_rounds_before_did_not_swing():
    luck = 0.07 * np.random.default_rng(1).standard_normal(160)
    time = np.arange(160)
    swing = np.where(time > 100, 0.2, 0) * np.sign(np.sin(np.pi * time / 8))
    found = {finding.name: finding for finding in diagnose(steady(0.5 + swing + luck))}
    words = (
        r"between steps \d+ and \d+ the pass rate was twice higher for [789] rounds and then lower for as many, by 0.4"
    )
    assert re.match(words, found["underdamped"].evidence)
    # One fall of the same size is no swing, and rounds that always scattered as much are none either.
    once = np.where(time > 130, -0.4, 0.0)
    assert "underdamped" not in {finding.name for finding in diagnose(steady(0.5 + once + luck))}
    assert "underdamped" not in {finding.name for finding in diagnose(steady(0.5 + 3 * luck))}


def test_steps_without_a_group_to_learn_from_are_no_sign_of_bad_gradients():
    silent = (np.arange(100) % 5 > 1).astype(float)
    luck = np.random.default_rng(0).uniform(0.5, 1, 100)
    for idle in (0.0, 1e-6):
        norms = np.where(silent == 1, idle, luck)
        said = changed(100, **{"groups__silent_fraction": silent, "learner__gradient_norm": norms})
        assert not said & {"no gradient", "gradient spikes", "growing gradients"}
    broken = changed(100, **{"groups__silent_fraction": silent, "learner__gradient_norm": np.zeros(100)})
    assert "no gradient" in broken


def test_rounds_of_one_prompt_do_not_swing_only_because_nothing_was_solved_before():
    rate, said = 0.05 + 0.6 / (1 + np.exp(-12 * (np.linspace(0, 1, 200) - 0.6))), 0
    for seed in range(7777, 7877):
        generator = np.random.default_rng(seed)
        # Most prompts are always solved or never.
        solved = generator.binomial(8, generator.beta(0.3 * rate, 0.3 * (1 - rate))) / 8
        said += swings.swinging(steady(solved), RULE) is not None
    assert said == 0


def test_a_smaller_batch_makes_rounds_scatter_more_without_a_swing():
    """The last third of the run has one prompt of eight completions instead of sixteen."""
    generator, found = np.random.default_rng(2), 0
    for _ in range(20):
        prompts = np.repeat([16, 1], [100, 50])
        rounds = [
            (step + 1, 1, 0, Counter((int(k), 8) for k in generator.binomial(8, 0.5, number)))
            for step, number in enumerate(prompts)
        ]
        history = history_of(rounds)
        counts = [counts for *_, counts in rounds]
        log = RunLog(history, {"pass_rate": Series(history.steps, history.values)}, counts=counts)
        found += swings.swinging(log, RULE) is not None
    assert found == 0


def test_a_loss_within_a_few_rounds_is_found():
    rates = np.concatenate([[0.42, 0.4, 0.38, 0.2, 0.1], np.full(95, 0.03)])
    steps, at = np.arange(1, 101.0), np.arange(0, 100, 10.0)
    history = history_of_values(steps, rates + 0.01 * (-1) ** np.arange(100))
    series = {"pass_rate": Series(steps, history.values), "learner/learning_rate": Series(steps, np.ones(100))}
    [finding] = diagnose(RunLog(history, series))
    assert (finding.name, finding.evidence) == ("unstable", "pass rate 0.37 below that of the first 3 rounds")
    # Without the first rounds, the evaluation before training tells it.
    later = replace(history, values=np.full(100, 0.03) + 0.01 * (-1) ** np.arange(100))
    series["pass_rate"] = Series(steps, later.values)
    log = RunLog(later, series, held_out=Series(at, np.concatenate([[0.36], np.full(9, 0.03)])), held_out_error=0.04)
    assert "held-out pass rate 0.33 below its best evaluation" in {finding.evidence for finding in diagnose(log)}
    assert "unstable" not in {finding.name for finding in diagnose(replace(log, held_out_error=0.2))}


def test_completions_that_became_short_and_wrong_are_found():
    length, rate = np.repeat([400.0, 80.0], 100), np.repeat([0.6, 0.45], 100) + 0.03 * (-1) ** np.arange(200)
    assert "shorter and worse" in changed(completions__length_mean=length, pass_rate=rate)
    assert "shorter and worse" not in changed(completions__length_mean=length, pass_rate=np.linspace(0.4, 0.6, 200))


def test_learning_meanwhile_does_not_hide_the_cost_of_short_answers():
    """The pass rate rises by .4 in all, and loses .2 where the length falls."""
    time = np.arange(200)
    fall = 1 / (1 + np.exp(-(time - 100) / 4))
    luck = 0.04 * np.random.default_rng(3).standard_normal(200)
    rising = 0.2 + 0.6 * time / 200
    assert "shorter and worse" in changed(
        completions__length_mean=400 - 320 * fall, pass_rate=rising - 0.2 * fall + luck
    )
    assert "shorter and worse" not in changed(completions__length_mean=400 - 320 * fall, pass_rate=rising + luck)


def test_prompts_that_get_harder_are_no_loss_where_held_out_problems_are_solved_as_before():
    log = logged(healthy(7, 200))
    falling = Series(log.history.steps, np.linspace(0.8, 0.4, 200))
    at = np.arange(0, 200, 16.0)
    found = []
    for held_out in (np.linspace(0.3, 0.5, len(at)), np.linspace(0.5, 0.3, len(at))):
        series = {**log.series, "pass_rate": falling}
        history = history_of_values(falling.steps, falling.values)
        failing = replace(log, history=history, series=series, counts=(), held_out=Series(at, held_out))
        found.append({finding.name for finding in diagnose(failing)} & {"unstable", "reward part gamed"})
    assert found == [set(), {"unstable", "reward part gamed"}]


def test_the_share_of_answers_is_that_of_the_weights_as_they_are_now():
    log = logged(healthy(9, 200))
    scaled = Series(log["reward/mean"].steps, log["reward/mean"].values * np.repeat([1.0, 10.0], 100))
    log = replace(log, series={**log.series, "reward/mean": scaled})
    assert reward_parts.answers_hardly_count(log, RULE) is None


def test_a_multiple_of_the_answers_part_counts_as_right_answers():
    log, name = logged(healthy(9, 200)), "reward/part/copy"
    rewards = log["reward/mean"]
    parts = {"reward/part/math": rewards.values, name: 2 * rewards.values}
    series = {**log.series, **{part: Series(rewards.steps, values) for part, values in parts.items()}}
    series["pass_rate"] = rewards
    assert reward_parts.answers_hardly_count(replace(log, series=series), RULE) is None


def test_a_part_that_is_the_whole_reward_is_not_counted_beside_the_parts_it_adds_up():
    log = logged(healthy(9, 200))
    rewards = log["reward/mean"]
    rate = 0.3 + 0.02 * (-1) ** np.arange(200)
    form = 0.2 + 0.01 * np.sin(np.arange(200.0))
    columns = {
        "pass_rate": rate,
        "reward/mean": rate + form,
        "reward/part/math": rate,
        "reward/part/form": form,
        "reward/part/total": rate + form,
    }
    log = replace(log, series={name: Series(rewards.steps, values) for name, values in columns.items()})
    weights, is_explained = reward_parts.weights_of(log)
    assert (weights, is_explained) == (pytest.approx({"reward/part/math": 1.0, "reward/part/form": 1.0}), True)
    assert reward_parts.answers_hardly_count(log, RULE) is None
    # Where the others do not explain the reward, the part that is the whole reward is one that pays.
    judged = Series(rewards.steps, np.random.default_rng(0).normal(0.5, 0.1, 200))
    paid = {**log.series, "reward/mean": judged, "reward/part/total": judged}
    finding = reward_parts.answers_hardly_count(replace(log, series=paid), RULE)
    assert finding is not None and finding.evidence.endswith("most comes from total")


def test_a_part_that_is_logged_and_not_paid_is_not_gamed():
    curves = broken("reward part gamed")
    found = []
    for weight in (0.0, 0.1):
        log = logged(curves | {"format_weight": weight, "generator": np.random.default_rng(0)})
        found.append(reward_parts.part_gaming(log, RULE) is not None)
    assert found == [False, True]


def test_a_part_that_pays_less_than_the_better_answers_is_not_gamed():
    """The format rises by .4 and the pass rate by .06. At a tenth of the weight the answers pay more of the rise."""
    curves = healthy(4, rounds=200)
    share = np.linspace(0, 1, 200)
    curves["pass"], curves["format"], curves["prompts"] = 0.4 + 0.08 * share, 0.4 + 0.5 * share, 256
    found = []
    for weight in (0.1, 1.0):
        log = logged(curves | {"format_weight": weight, "generator": np.random.default_rng(0)})
        found.append(reward_parts.part_gaming(log, RULE) is not None)
    assert found == [False, True]


def test_a_gap_between_training_and_held_out_problems_is_found_with_few_evaluations():
    """Twenty runs have 12 to 16 evaluations of 100 problems each. The intervals of single halves would tell 19."""
    for seed in range(20):
        curves = healthy(40_000 + seed)
        FAILURES["reward hacking or overfitting"](curves)
        assert progress.reward_hacking(logged(curves), RULE) is not None, seed


def test_a_kl_that_runs_off_is_found_without_an_entropy():
    growing = 0.01 * np.exp(np.linspace(0, 6, 200))
    assert "KL runs off" in changed(policy__reference_kl=growing)
    jumping = np.where(np.arange(200) % 40 == 39, 900.0, 0.05)
    assert "KL runs off" in changed(policy__reference_kl=jumping)
    assert "KL runs off" not in changed(policy__reference_kl=np.full(200, 1.0))
    assert "KL runs off" not in changed(policy__reference_kl=np.linspace(0, 0.2, 200))


def test_a_few_giant_spikes_and_exact_zeros_of_the_gradient_are_found():
    norms = 0.3 * np.exp(0.3 * np.random.default_rng(0).standard_normal(200))
    giant = norms.copy()
    giant[[30, 80, 120, 170]] = 20.0
    assert "gradient spikes" in changed(learner__gradient_norm=giant)
    assert "gradient spikes" not in changed(learner__gradient_norm=norms)
    assert "no gradient" in changed(learner__gradient_norm=np.where(np.arange(200) > 120, 0, norms))


def test_a_reward_that_never_moved_is_found_after_a_few_rounds():
    steps, same = np.arange(10.0), np.full(10, 0.5)
    log = RunLog(history_of_values(steps, same), {"reward/mean": Series(steps, same)})
    assert [(finding.name, finding.severity) for finding in diagnose(log)] == [("constant reward", "critical")]


def test_problems_that_were_solved_from_the_start_are_no_constant_reward():
    solved = np.ones(200)
    diagnosis = changed(pass_rate=solved, reward__mean=solved)
    assert "constant reward" not in diagnosis and "problems solved" in diagnosis
    # Every answer earns the same, right or wrong.
    assert "constant reward" in changed(reward__mean=solved)


def test_rewards_that_differ_and_are_never_right_are_no_constant_reward():
    never = np.zeros(200)
    assert "constant reward" in changed(pass_rate=never, reward__mean=never)
    diagnosis = changed(pass_rate=never, reward__mean=np.random.default_rng(0).uniform(0.4, 0.6, 200))
    assert "constant reward" not in diagnosis and "prompts too hard" in diagnosis


def test_a_log_without_parts_of_the_reward_gets_no_advice_to_weigh_them():
    generator, steps = np.random.default_rng(3), np.arange(200.0)
    rates, rewards = (0.3 + rise * steps / 200 + 0.01 * generator.standard_normal(200) for rise in (0.0, 0.6))
    series = {"pass_rate": Series(steps, rates), "reward/mean": Series(steps, rewards)}
    [gamed] = [f for f in diagnose(RunLog(history_of_values(steps, rates), series)) if f.name == "reward part gamed"]
    assert gamed.remedy == "read samples.jsonl: something else than right answers is rewarded"


def test_a_run_that_has_ended_is_judged_by_as_long_again_as_half_of_it():
    """The run's last round began 16 steps before its end. A forecast over these steps alone would always find a
    plateau."""
    climbing = 0.2 + 0.3 * np.arange(60) / 60 + 0.01 * np.random.default_rng(0).standard_normal(60)
    steps = 16.0 * np.arange(1, 61)
    log = RunLog(history_of_values(steps, climbing, interval=16), {"pass_rate": Series(steps, climbing)})
    assert replace(log, num_steps=960).horizon == 1440 and replace(log, num_steps=976).horizon == 976
    assert "on the plateau" not in {finding.name for finding in diagnose(replace(log, num_steps=960))}


def test_a_part_that_dominates_or_is_gamed_after_learning_is_found():
    rise = np.linspace(0, 1, 200)
    generator = np.random.default_rng(3)
    noise = 0.01 * generator.standard_normal(200)
    # The format pays and answers gain two hundredths.
    format_wins = {"pass_rate": 0.3 + 0.02 * rise + noise, "reward__part__format": 0.2 + 0.7 * rise + noise}
    assert "reward part gamed" in changed(**format_wins)
    # Answers are learned first; then only the part rises.
    learned = np.minimum(0.3 + rise, 0.7) + noise
    late = {"pass_rate": learned, "reward__part__format": 0.3 + 0.6 * np.maximum(rise - 0.5, 0) + noise}
    assert "reward part gamed" in changed(**late)
    together = {"pass_rate": 0.3 + 0.4 * rise + noise, "reward__part__format": 0.5 + 0.4 * rise + noise}
    assert "reward part gamed" not in changed(**together)


def test_a_reward_bought_by_length_is_found():
    generator = np.random.default_rng(4)
    length = 100 * np.exp(np.linspace(0, 0.8, 200) + 0.1 * generator.standard_normal(200))
    bought = {"completions__length_mean": length, "reward__mean": length / 400}
    assert "reward bought by length" in changed(**bought)
    honest = {**bought, "reward__mean": np.linspace(0.2, 0.6, 200) + 0.03 * generator.standard_normal(200)}
    assert "reward bought by length" not in changed(**honest)


def test_a_pass_rate_near_its_ends_is_found_whatever_is_silent():
    few = {"groups__silent_fraction": np.full(200, 0.4)}
    assert "prompts too hard" in changed(pass_rate=np.full(200, 0.03), **few)
    assert "problems solved" in changed(pass_rate=np.full(200, 0.97), **few)


@pytest.mark.parametrize(("silent", "advised"), [(0.05, False), (0.95, True)])
def test_replacing_silent_groups_is_advised_only_where_groups_are_silent(silent, advised):
    curves = {"pass_rate": np.full(200, 0.005), "groups/silent_fraction": np.full(200, silent)}
    steps = np.arange(200.0)
    log = RunLog(
        history_of_values(steps, curves["pass_rate"]), {name: Series(steps, values) for name, values in curves.items()}
    )
    [remedy] = [finding.remedy for finding in diagnose(log) if finding.name == "prompts too hard"]
    assert ("normalization=dapo" in remedy) == advised


def test_a_curriculum_that_changes_difficulty_is_no_collapse_and_no_standstill():
    noise = 0.01 * np.random.default_rng(0).standard_normal(200)
    fallen = np.concatenate([np.full(100, 0.7), np.full(100, 0.3)]) + noise
    steps = np.arange(200.0)
    series = {"pass_rate": Series(steps, fallen)}
    log = RunLog(history_of_values(steps, fallen), series)
    assert "unstable" in {finding.name for finding in diagnose(log)}
    assert not diagnose(replace(log, changing_prompts=True))


def test_checks_that_could_not_be_made_are_named_with_the_missing_columns():
    steps = np.arange(40.0)
    log = RunLog(history_of_values(steps, steps / 50), {"reward/mean": Series(steps, steps / 50)})
    missing = unchecked(log)
    assert missing["truncation"] == "the share of truncated completions" and missing["plateau"] == "pass rates"
    assert missing["entropy"] == "entropies"
    assert "constant reward" not in missing
    assert not unchecked(logged(healthy(1)))


def test_an_oscillation_is_found():
    curves = healthy(0, rounds=200)
    time = np.arange(200)
    curves["pass"] = 0.6 - 0.35 * np.exp(-time / 80) * np.cos(time / 12)
    assert "underdamped" in {finding.name for finding in diagnose(logged(curves))}


def test_silent_groups_are_distinguished_by_their_kind():
    for name, word in (("prompts too hard", "all wrong"), ("prompts too easy", "all right")):
        curves = healthy(1, rounds=80)
        FAILURES[name](curves)
        finding = next(other for other in findings(curves) if other.name == name)
        assert word in finding.evidence


def test_solved_problems_are_a_note():
    curves = healthy(1, rounds=80)
    curves["pass"][:] = 0.99
    silent = [finding for finding in findings(curves) if "silent" in finding.evidence]
    assert [(finding.name, finding.severity) for finding in silent] == [("problems solved", NOTE)]


def test_a_short_or_empty_log_says_nothing():
    assert [check(logged(healthy(0, rounds=8)), RULE) for check, _ in CHECKS.values()] == [None] * len(CHECKS)
    log = logged(healthy(0, rounds=40))
    assert [check(RunLog(log.history, {}), RULE) for check, _ in CHECKS.values()] == [None] * len(CHECKS)


def remedies():
    """Returns the advice of the findings on all failures, and of the two checks of a fitted curve."""
    advice = {finding.remedy for name in FAILURES for finding in findings(broken(name))}
    finished = healthy(0, rounds=200)
    finished["pass"] = 0.8 - 0.6 * np.exp(-np.arange(200) / 15)
    log = replace(logged(finished), num_steps=205)
    return sorted(advice | {finding.remedy for finding in diagnose(log)})


def broken(name):
    curves = healthy(1000, rounds=120)
    FAILURES[name](curves)
    return curves


@pytest.mark.slow
def test_remedies_are_keys_that_exist_with_values_they_take():
    texts = remedies()
    overrides = {override for text in texts for override in re.findall(r"[a-z_.]+=[\w.]+", text)}
    assert {"dynamics.refresh_interval=1", "normalization=dapo", "objective.kl.coefficient=0.01"} <= overrides
    wanted = {}
    for override in overrides:
        key, value = override.split("=")
        wanted.setdefault(key, []).append(value)
    # Together what has other keys: the second values of keys in a second configuration, and so on.
    for values in zip_longest(*wanted.values()):
        together = {key: value for key, value in zip(wanted, values, strict=True) if value is not None}
        config = compose_config(["experiment=tiny", *(f"{key}={value}" for key, value in together.items())])
        for key, value in together.items():
            if "." in key:
                taken = value_at(config, key)
                assert taken == (type(taken)(value) if isinstance(taken, int | float) else value)
    for key in {name for text in texts for name in re.findall(r"[a-z_]+(?:\.[a-z_]+)+", text)} - {"samples.jsonl"}:
        assert value_at(with_learning_rate(TrainConfig()), key) is not None, key


def test_intervals_cover_the_mean_of_correlated_noise():
    generator, covered = np.random.default_rng(0), 0
    for _ in range(400):
        series = Series(np.arange(80.0), 1 + noise(generator, 80, 0.2, memory=0.6))
        level = evidence.level(series)
        covered += level.low <= 1 <= level.high
    assert covered / 400 >= 0.9


def test_a_trend_is_no_noise():
    series = Series(np.arange(100.0), np.linspace(0, 1, 100))
    change = evidence.change(series)
    assert change.value == pytest.approx(75 / 99)
    assert change.high - change.low < 1e-9


def test_the_fall_is_counted_from_the_best_stretch():
    values = np.concatenate([np.zeros(10), np.ones(10), np.full(20, 0.25)])
    assert evidence.fall(Series(np.arange(40.0), values)).value == pytest.approx(-0.75)


def test_a_series_is_averaged_around_sparser_steps():
    series = Series(np.arange(10.0), np.arange(10.0))
    pairs = evidence.paired(series, np.array([2.0, 7.0, 30.0]))
    # Rounds 0 to 4 are nearest to 2, rounds 5 to 9 to 7, none to 30.
    assert pairs.steps.tolist() == [2.0, 7.0] and pairs.values.tolist() == [2.0, 7.0]


def test_every_finding_has_a_meaning_and_every_meaning_a_finding():
    """The names of findings are read as literals from the code of the checks."""
    named = set()
    for file in Path(findings_module.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finding":
                named.add(node.args[0].value if isinstance(node.args[0], ast.Constant) else "clipped")
    found = {name.split(" ")[0] if name.startswith("clipped") else name for name in findings_module.MEANINGS}
    assert named == found
    assert all(meaning.endswith(".") for meaning in findings_module.MEANINGS.values())


def short(**series):
    """Returns the log of a short run. In names of metrics "__" stands for a slash."""
    steps = np.arange(1, len(next(iter(series.values()))) + 1.0)
    logged_series = {name.replace("__", "/"): Series(steps, np.array(values)) for name, values in series.items()}
    return RunLog(history_of_values(steps, np.array(series["pass_rate"])), logged_series)


BROKEN = {
    "pass_rate": [0.375, 0.0, 0.0, 0.0],
    "completions__truncated_fraction": [0.02, 1.0, 1.0, 1.0],
    "policy__sampler_entropy": [1.76, 0.0, 0.0, 0.0],
    "learner__learning_rate": [0.5] * 4,
    "completions__num_sampled": [128.0] * 4,
}


def test_a_step_that_broke_the_model_is_named_with_its_learning_rate_and_not_the_token_limit():
    [finding] = [one for one in diagnose(short(**BROKEN)) if one.severity != NOTE]
    assert (finding.name, finding.severity) == ("broken by a step", "critical")
    assert finding.evidence == (
        "38% of answers were right in the rounds to step 1 and none since; of the completions 2% were cut off before "
        "and 100% since; the entropy was 1.8 nats per token before and is 0 since"
    )
    assert "a tenth of learner.learning_rate (it was 0.5)" in finding.remedy


def test_first_steps_that_took_all_right_answers_are_named_though_completions_look_as_before():
    """Easier problems would not help this run, which solved a third of them at first."""
    rates = {"pass_rate": [0.38, 0.02, *[0.0] * 10], "reward__mean": [0.38, 0.02, *[0.0] * 10]}
    same = {"completions__num_sampled": [128.0] * 12, "completions__truncated_fraction": [0.0] * 12}
    log = short(**rates, **same, groups__silent_fraction=[0.06, 0.88, *[1.0] * 10])
    [finding] = [one for one in diagnose(log) if one.severity != NOTE]
    assert finding.name == "broken by a step"
    assert (
        finding.evidence
        == "20% of answers were right in the rounds to step 2 and none since; all 1,280 since are wrong"
    )
    assert finding.remedy.endswith("; if the problems come from easy to hard, shuffle them")
    assert setbacks.broken(short(**{name: values[:6] for name, values in (rates | same).items()}), RULE) is None


def test_a_fall_of_less_than_six_wanders_is_no_loss_where_steps_did_not_surely_harm():
    """The data of these runs wander, and their policies stand still. A bound of four wanders warned of 0 and 4, too."""
    warned = [first_warning(list(drawn("topics .95, standing", False, seed)), True) is not None for seed in range(6)]
    assert warned == [False, True, True, False, False, False]


def test_a_model_that_solves_held_out_problems_was_broken_by_no_step():
    """The problems of this run came from easy to hard."""
    rates = {"pass_rate": [0.8, 0.5, *[0.0] * 10], "completions__num_sampled": [128.0] * 12}
    assert setbacks.broken(short(**rates), RULE) is not None
    assert setbacks.broken(replace(short(**rates), held_out=Series(np.array([8.0]), np.array([0.4]))), RULE) is None


def test_few_wrong_answers_in_a_row_at_a_low_pass_rate_break_nothing():
    rates = {"pass_rate": [0.12, 0.0, 0.12, *[0.0] * 7], "completions__num_sampled": [16.0] * 10}
    assert setbacks.broken(short(**rates), RULE) is None
    many = rates | {"completions__num_sampled": [64.0] * 10}
    assert setbacks.broken(short(**many), RULE) is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"pass_rate": [0.375, 0.0, 0.0, 0.02]},
        {"completions__truncated_fraction": [0.6, 1.0, 1.0, 1.0], "policy__sampler_entropy": [1.0] * 4},
        {"completions__num_sampled": [4.0] * 4},
        {"pass_rate": [0.0] * 4},
    ],
    ids=["it solves again", "its completions are as before", "few completions", "it never solved any"],
)
def test_a_change_that_one_step_need_not_have_made_is_not_blamed_on_a_step(changes):
    assert setbacks.broken(short(**BROKEN | changes), RULE) is None


@pytest.mark.parametrize(("share", "severity"), [(0.88, "critical"), (0.05, "warning")])
def test_a_reward_that_raises_is_found_in_a_short_run_too(share, severity):
    rates = [0.5, 0.25, 0.5]
    log = short(pass_rate=rates, reward__mean=rates, completions__raised_fraction=[share] * 3)
    [finding] = [finding for finding in diagnose(log) if finding.name == "grading fails"]
    assert (finding.severity, finding.remedy[:3]) == (severity, "fix")
    assert finding.evidence.startswith(f"{share:.0%} of answers are in groups for which the reward function raised")


def test_a_training_pass_rate_far_above_the_held_out_one_is_found():
    log = steady(0.46 + 0.03 * (-1.0) ** np.arange(28))
    held_out = Series(np.array([0.0, 28.0]), np.array([0.02, 0.09]))
    finding = progress.memorized(replace(log, held_out=held_out, held_out_error=0.04), RULE)
    assert (finding.name, finding.severity) == ("training above held-out", NOTE)
    assert finding.evidence.startswith(
        "46.0% of answers are right in training and 9.0% on held-out problems, a difference of 37 points ["
    )
    said = "; in the first 3 rounds it was 45 points, so the model had seen these problems before, or they are easier"
    assert finding.evidence.endswith(said)
    # One lucky round shows no such thing.
    lucky = steady(np.concatenate([[0.4], np.linspace(0.1, 0.46, 12), 0.46 + 0.03 * (-1.0) ** np.arange(28)]))
    held_out = Series(np.array([0.0, 41.0]), np.array([0.02, 0.09]))
    finding = progress.memorized(replace(lucky, held_out=held_out, held_out_error=0.02), RULE)
    assert "seen these problems before" not in finding.evidence
    # Few problems, another framework's evaluations, a curriculum and a small difference tell nothing.
    for changes in (
        {"held_out_error": 0.2},
        {"framework": "TRL"},
        {"changing_prompts": True},
        {"held_out": Series(held_out.steps, np.array([0.02, 0.38]))},
    ):
        found = replace(log, **{"held_out": held_out, "held_out_error": 0.04} | changes)
        assert progress.memorized(found, RULE) is None, changes
