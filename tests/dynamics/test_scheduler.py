"""These tests check runs that end when a limit is reached, and the coefficient that keeps up an entropy."""

import json
from copy import deepcopy
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest

from grpo.config import TrainConfig
from grpo.dynamics.scheduler import build_scheduler, first_plan, may_plan, replanned, with_entropy_bonus
from grpo.types import Mean, Progress, RoundPlan, RoundStatistics


def statistics(plan, step):
    """Returns the statistics of a round of 4 groups of 8, with 10 tokens a completion. The round takes three seconds,
    in which sampling and learning overlap."""
    means = {"completions/length_mean": Mean(320.0, 32.0)}
    return RoundStatistics(
        step, step, plan, means, {(0, 8): 1, (3, 8): 3}, {"round": 3.0, "sample": 2.0, "learn": 2.0}, ()
    )


def rounds_until_stop(**limits):
    config = TrainConfig()
    for name, value in limits.items():
        setattr(config.limits, name, value)
    scheduler = build_scheduler(config, 1)
    plan, state = scheduler.init()
    for step in range(1, 100):
        decision = scheduler.next(plan, statistics(plan, step), state)
        plan, state = decision.plan, decision.state
        if decision.verdict.stop:
            return step, decision.verdict.reason
    return None


def test_a_run_ends_in_the_round_in_which_a_limit_is_reached():
    assert rounds_until_stop(samples=100) == (4, "the limit of 100 samples is reached")
    assert rounds_until_stop(samples=96)[0] == 3
    assert rounds_until_stop(tokens=1600)[0] == 5
    assert rounds_until_stop(seconds=7.0) == (3, "the limit of 7 seconds is reached")
    assert rounds_until_stop(samples=1000, tokens=640)[0] == 2


def test_without_limits_a_run_goes_on():
    assert rounds_until_stop() is None


def after_rounds(config, rounds):
    """Returns a run's progress after `rounds` rounds, and the verdict on the run."""
    plan, state = build_scheduler(config, 1).init()
    for step in range(1, rounds + 1):
        decision = build_scheduler(config, 1).next(plan, statistics(plan, step), state)
        plan, state = decision.plan, decision.state
    return Progress(rounds, rounds, 8 * rounds, plan, state), decision.verdict


def limited(**limits):
    config = TrainConfig()
    for name, value in limits.items():
        setattr(config.limits, name, value)
    return config


def resumed(progress, old, new):
    """Returns the progress from which a run goes on after its checkpoint, which is JSON, and the verdict on the run."""
    scheduler = build_scheduler(new, 1)
    saved = replace(progress, scheduler=json.loads(json.dumps(asdict(progress)))["scheduler"])
    on = replanned(saved, old, new, scheduler)
    return on, scheduler.judge(on.step, on.scheduler)


def test_a_limit_that_is_set_when_a_run_is_resumed_knows_what_was_spent_before():
    progress, verdict = after_rounds(TrainConfig(), 3)
    assert not verdict.stop
    assert resumed(progress, TrainConfig(), limited(samples=96))[1].stop
    assert not resumed(progress, TrainConfig(), limited(samples=128))[1].stop


def test_a_run_that_ended_by_its_limit_goes_on_when_the_limit_is_raised_and_only_then():
    old = limited(samples=96)
    progress, verdict = after_rounds(old, 3)
    assert verdict.stop
    assert resumed(progress, old, old) == (progress, verdict)
    raised = limited(samples=128)
    on, verdict = resumed(progress, old, raised)
    assert not verdict.stop and on.scheduler == progress.scheduler
    assert build_scheduler(raised, 1).next(on.plan, statistics(on.plan, 4), on.scheduler).verdict.stop
    assert not resumed(progress, old, limited(samples=0))[1].stop


def test_another_scheduler_keeps_what_the_limits_had_spent():
    old = limited(samples=96)
    progress, _ = after_rounds(old, 3)
    new = deepcopy(old)
    new.dynamics.name, new.limits.samples = "adaptive", 128
    on, verdict = resumed(progress, old, new)
    assert on.scheduler == replace(build_scheduler(new, 1).init()[1], spent=progress.scheduler.spent)
    assert progress.scheduler.spent == {"samples": 96.0, "tokens": 960.0, "seconds": 9.0}
    assert not verdict.stop
    new.limits.samples = 96
    assert resumed(progress, old, new)[1].stop


PLAN = RoundPlan(4, 1, 8, entropy_coefficient=0.01, entropy_bonus=False)


def after(plan, entropy):
    means = {} if entropy is None else {"policy/entropy": Mean(10 * entropy, 10)}
    return with_entropy_bonus(plan, SimpleNamespace(means=means), target=0.2, step=0.005)


def test_the_bonus_grows_below_the_target_and_is_off_above_it():
    """This traces the rule of TRL 1.16 by hand (entropy_target=0.2, entropy_coef_delta=0.005)."""
    plans = [PLAN]
    for entropy in (0.3, 0.2, 0.1, 0.25, 0.25, 0.25, 0.25):
        plans.append(after(plans[-1], entropy))
    coefficients = [plan.entropy_coefficient for plan in plans]
    assert coefficients == pytest.approx([0.01, 0.005, 0.01, 0.015, 0.01, 0.005, 0.0, 0.0])
    assert [plan.entropy_bonus for plan in plans] == [False, False, True, True, False, False, False, False]


def test_the_bonus_has_an_end_and_a_round_without_a_step_changes_nothing():
    assert after(replace(PLAN, entropy_coefficient=0.999), 0.0).entropy_coefficient == 1.0
    assert after(PLAN, None) == PLAN
    none_learned = SimpleNamespace(means={"policy/entropy": Mean(0.0, 0)})
    assert with_entropy_bonus(PLAN, none_learned, 0.2, 0.005) == PLAN


def test_only_a_target_puts_the_coefficient_into_the_plan():
    config = TrainConfig()
    config.objective.entropy_coefficient = 0.02
    assert first_plan(config).entropy_coefficient is None
    config.objective.entropy_target = 0.5
    scheduler = build_scheduler(config, 1)
    plan, state = scheduler.init()
    assert (plan.entropy_coefficient, plan.entropy_bonus) == (0.02, False)
    measured = statistics(plan, 1)
    measured = replace(measured, means={**measured.means, "policy/entropy": Mean(4.0, 10.0)})
    plan = scheduler.next(plan, measured, state).plan
    assert (plan.entropy_coefficient, plan.entropy_bonus) == (0.02 + config.objective.entropy_step, True)


def test_a_plan_is_within_its_own_bounds_each_whatever_the_others_are():
    config = TrainConfig()
    config.dynamics.group_size, config.dynamics.prompts_per_step = 8, 16
    may = [may_plan(config, plan) for plan in (RoundPlan(8, 1, 16), RoundPlan(16, 1, 16), RoundPlan(8, 16, 16))]
    assert may == [True, False, False]
