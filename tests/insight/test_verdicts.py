"""These tests hold what a diagnosis says of losses, of data that wander, of steps that harm, and of both at once."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit, logit

from benchmarks.log_of_curves import logged
from benchmarks.synthetic_logs import healthy, noise
from grpo.dynamics import step_signs
from grpo.dynamics.history import history_of, history_of_values
from grpo.insight.diagnosis import diagnostics
from grpo.insight.diagnosis import findings as findings_module
from grpo.insight.diagnosis.diagnostics import diagnose
from grpo.insight.diagnosis.findings import NOTE, Finding
from grpo.insight.logs.run_log import RunLog, Series


def steady(rates):
    """Returns a log that holds only these pass rates."""
    steps = np.arange(1, len(rates) + 1.0)
    return RunLog(history_of_values(steps, rates), {"pass_rate": Series(steps, rates)}, num_steps=len(rates))


def changed(rounds=200, **series):
    """Returns the log of a healthy run in which the given metrics replace its own."""
    log, steps = logged(healthy(7, rounds)), np.arange(1, rounds + 1.0)
    given = {name: Series(steps, np.asarray(values, float)) for name, values in series.items()}
    return replace(log, series={**log.series, **given})


def scored(values, spread=None):
    """Returns the log of a run of which only mean rewards are known, and their standard deviation if it is given."""
    steps = np.arange(1.0, len(values) + 1)
    series = {"reward/mean": Series(steps, np.asarray(values, float))}
    if spread:
        series["reward/std"] = Series(steps, np.full(len(steps), float(spread)))
    return RunLog(history_of([]), series)


def rising_and_falling(first, best, last, scatter):
    curve = np.interp(np.arange(200), [0, 100, 120, 199], [first, best, last, last])
    return curve + scatter * np.random.default_rng(0).standard_normal(200)


@pytest.mark.parametrize("spread", [True, False], ids=["with a standard deviation", "with the scatter alone"])
@pytest.mark.parametrize(
    ("first", "best", "last", "std"), [(-0.8, 0.5, -0.7, 0.9), (-3.0, 2.3, -1.0, 2.0), (0.0, 7.0, -1.0, 4.0)]
)
def test_a_loss_of_a_reward_that_is_no_pass_rate_is_found(first, best, last, std, spread):
    log = scored(rising_and_falling(first, best, last, std / 8), std if spread else None)
    found = {finding.name: finding for finding in diagnose(log)}
    assert "unstable" in found and "nothing learned" not in found
    assert found["unstable"].evidence.startswith("mean reward ")


def test_a_reward_that_rises_or_stands_still_has_lost_nothing():
    generator = np.random.default_rng(0)
    for curve in (np.linspace(-3, 8, 200), np.zeros(200)):
        names = {finding.name for finding in diagnose(scored(curve + 0.5 * generator.standard_normal(200), 4.0))}
        assert not names & {"unstable", "setback", "underdamped", "wandering"}


def wandering(seed, first=0.45, last=0.65):
    """Returns the log of a run that learns, on data whose topics wander by .5 logits."""
    generator = np.random.default_rng(seed)
    own = noise(generator, 300, 0.5, memory=0.95)
    rates = expit(logit(np.linspace(first, last, 300)) + own)
    return steady(generator.binomial(256, rates) / 256)


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5, 7])
def test_data_that_wander_are_never_critical_while_a_run_is_above_its_start(seed):
    log = wandering(seed)
    assert log["pass_rate"].values[-10:].mean() > log["pass_rate"].values[:10].mean()
    assert "critical" not in {finding.severity for finding in diagnose(log)}


def test_a_curve_that_falls_again_and_again_is_a_note_and_a_single_fall_is_a_loss():
    waves = 0.5 + 0.15 * np.sin(np.arange(240) / 6) + np.linspace(0, 0.1, 240)
    noisy = 0.02 * np.random.default_rng(0).standard_normal(240)
    [note] = [finding for finding in diagnose(steady(waves + noisy)) if finding.name in {"wandering", "unstable"}]
    assert (note.name, note.severity) == ("wandering", NOTE)
    single = np.interp(np.arange(240), [0, 100, 120, 239], [0.2, 0.8, 0.45, 0.45])
    [loss] = [finding for finding in diagnose(steady(single + noisy)) if finding.name in {"wandering", "unstable"}]
    assert (loss.name, loss.severity) == ("unstable", "warning")
    ruined = np.interp(np.arange(240), [0, 100, 120, 239], [0.2, 0.8, 0.1, 0.1])
    [loss] = [finding for finding in diagnose(steady(ruined + noisy)) if finding.name in {"wandering", "unstable"}]
    assert (loss.name, loss.severity) == ("unstable", "critical")


def with_cosines(log, mean):
    """Returns the log with cosines of this mean, in units of their standard deviation, from round 100 on."""
    steps = log["pass_rate"].steps
    cosines = 0.035 * (mean * (steps > 100) + np.random.default_rng(0).standard_normal(len(steps)))
    return replace(log, series={**log.series, "step/cosine": Series(steps, cosines)})


def losses_found(log):
    return {finding.name for finding in diagnose(log) if finding.severity != NOTE} & {"unstable", "setback"}


def test_data_that_wander_are_no_loss_where_steps_do_no_harm():
    logs = [wandering(seed, first=0.5, last=0.5) for seed in range(6)]
    assert [bool(losses_found(log)) for log in logs] == [True, True, True, False, True, False]
    assert [bool(losses_found(with_cosines(log, 0.0))) for log in logs] == [False] * 6


def test_a_decline_is_found_sooner_where_its_steps_harm():
    """The pass rate rises to .6 until round 100 and then falls by .4 within 150 rounds."""
    curve = np.interp(np.arange(250), [0, 100, 249], [0.3, 0.6, 0.2])
    rates = np.random.default_rng(1).binomial(64, curve) / 64

    def found_at(mean):
        ends = range(110, 251, 10)
        logs = {end: with_cosines(steady(rates[:end]), mean) for end in ends}
        return next(end for end in ends if "unstable" in losses_found(logs[end]))

    without = next(end for end in range(110, 251, 10) if "unstable" in losses_found(steady(rates[:end])))
    assert (found_at(-0.4), without) == (140, 160)


def found_names(log):
    return {finding.name for finding in diagnose(log)}


def test_findings_that_deny_each_other_do_not_stand_side_by_side():
    flat = 0.3 + 0.02 * np.random.default_rng(0).standard_normal(120)
    constant = changed(120, **{"reward/mean": np.full(120, -1.0), "pass_rate": np.zeros(120)})
    assert found_names(replace(constant, history=steady(flat).history)) & {"constant reward", "on the plateau"} == {
        "constant reward"
    }
    for name, excluded in diagnostics.EXCLUDED.items():
        assert {name, *excluded} <= findings_module.MEANINGS.keys()
        # A pair that excludes each other would leave nothing.
        assert not [other for other in excluded if name in diagnostics.EXCLUDED.get(other, ())]


def test_advice_names_nothing_that_is_set_already():
    flat = 0.4 + 0.02 * np.random.default_rng(0).standard_normal(200)
    log = changed(200, **{"completions/length_mean": np.linspace(100, 300, 200), "pass_rate": flat})
    settings = {"objective.aggregation.level": "constant", "task.reward.overlong": "keep"}
    remedies = [
        next(finding.remedy for finding in diagnose(one) if finding.name == "length without reward")
        for one in (log, replace(log, settings=settings))
    ]
    assert remedies == [
        "objective=dr_grpo, or task.reward.overlong=soft task.reward.overlong_buffer=64",
        "task.reward.overlong=soft task.reward.overlong_buffer=64",
    ]


@pytest.mark.parametrize(
    ("remedy", "settings", "left"),
    [
        (
            "dynamics.refresh_interval=1, half of learner.learning_rate, or dynamics=adaptive with its guard",
            {"dynamics.refresh_interval": 1, "dynamics.name": "adaptive"},
            "half of learner.learning_rate",
        ),
        (
            "half of learner.learning_rate, or objective.kl.coefficient=0.01",
            {"objective.kl.coefficient": 0.05},
            "half of learner.learning_rate, or a larger objective.kl.coefficient than 0.05",
        ),
        (
            "a smaller dynamics.refresh_interval or learner.learning_rate",
            {"dynamics.refresh_interval": 1},
            "a smaller learner.learning_rate",
        ),
        (
            "read samples.jsonl; task.reward.extract=final, or ask for that form in task.prompt.template",
            {"task.reward.extract": "final"},
            "read samples.jsonl; ask for that form in task.prompt.template",
        ),
        (
            "easier problems, a larger dynamics.group_size, or normalization=dapo to replace silent groups",
            {"rollout.refill.enabled": True},
            "easier problems, or a larger dynamics.group_size",
        ),
        (
            "learner.max_gradient_norm=0.5, or a smaller learner.learning_rate",
            {"learner.max_gradient_norm": 0.2},
            "a smaller learner.max_gradient_norm than 0.2, or a smaller learner.learning_rate",
        ),
        ("a larger rollout.sampling.max_tokens", {}, "a larger rollout.sampling.max_tokens"),
    ],
)
def test_advice_leaves_out_alternatives_that_are_set(remedy, settings, left):
    assert diagnostics.fitting(Finding("unstable", NOTE, "", remedy), settings).remedy == left


def test_problems_solved_within_a_few_rounds_by_far_shorter_answers_ask_for_a_look_at_the_reward():
    rates = np.concatenate([np.full(60, 0.4), np.linspace(0.5, 0.99, 4), np.full(60, 0.996)])
    lengths = np.concatenate([np.full(60, 300.0), np.linspace(250, 40, 4), np.full(60, 30.0)])
    jumped = changed(124, pass_rate=rates, **{"completions/length_mean": lengths, "reward/mean": rates})
    found = diagnose(jumped)
    [finding] = [finding for finding in found if finding.name in {"solved at once", "problems solved"}]
    assert finding.name == "solved at once" and finding.remedy.startswith("read samples.jsonl: does the reward")
    assert finding.evidence == (
        "about step 64 the pass rate rose by 0.56 within 5 rounds, and completions went from 300 to 30 tokens"
    )
    slowly = np.interp(np.arange(124), [0, 60, 123], [0.4, 0.996, 0.996])
    for changes in ({"completions/length_mean": np.full(124, 300.0)}, {"pass_rate": slowly}):
        series = {"pass_rate": rates, "completions/length_mean": lengths} | changes
        assert "solved at once" not in found_names(changed(124, **series))


def stepping(mean, rounds=400, seed=0, late=0):
    """Returns cosines of this mean, in standard deviations, from round `late` on, and of mean 0 before it."""
    cosines = np.random.default_rng(seed).standard_normal(rounds) + mean * (np.arange(rounds) >= late)
    return 0.035 * cosines


def test_steps_that_harm_are_found_with_their_sum_and_where_it_began():
    log = changed(400, **{"step/cosine": stepping(-0.4, late=200)})
    [finding] = [finding for finding in diagnose(log) if finding.name == "steps undo each other"]
    assert finding.evidence.startswith("step/cosine of the 256 rounds since step 145 sums up to -6.0 ")
    assert "half of learner.learning_rate" in finding.remedy


@pytest.mark.slow
def test_steps_whose_products_are_luck_or_help_get_no_finding_at_any_round():
    found = sum(
        any(step_signs.harm(stepping(mean, 200, seed)[:end]).evidence > np.log(100) for end in range(6, 200, 3))
        for seed in range(60)
        for mean in (0.0, 0.1)
    )
    assert found <= 1


def test_harm_that_begins_late_is_seen_within_a_hundred_steps():
    seen = [step_signs.harm(stepping(-0.6, 300, seed, late=200)).evidence > np.log(100) for seed in range(20)]
    assert sum(seen) >= 15


def test_products_of_solved_problems_bring_no_finding():
    log = changed(400, **{"step/cosine": stepping(-0.4), "pass_rate": np.full(400, 0.97)})
    assert "steps undo each other" not in found_names(log)
