from dataclasses import replace
from types import SimpleNamespace

import pytest

from grpo.config import TrainConfig
from grpo.dynamics.scheduler import EntropyControl, FixedScheduler, build_scheduler, first_plan
from grpo.types import Mean, RoundPlan

PLAN = RoundPlan(4, 1, 8, entropy_coefficient=0.01, entropy_bonus=False)
CONTROL = EntropyControl(FixedScheduler(PLAN), target=0.2, step=0.005)


def after(plan, entropy):
    means = {} if entropy is None else {"policy/entropy": Mean(10 * entropy, 10)}
    return CONTROL.next(plan, SimpleNamespace(means=means), None).plan


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
    assert CONTROL.next(PLAN, none_learned, None).plan == PLAN


def test_only_a_target_puts_the_coefficient_into_the_plan():
    config = TrainConfig()
    config.objective.entropy_coefficient = 0.02
    assert first_plan(config).entropy_coefficient is None
    config.objective.entropy_target = 0.5
    plan, _ = build_scheduler(config, 1).init()
    assert (plan.entropy_coefficient, plan.entropy_bonus) == (0.02, False)
