"""Runs that end when their budget is spent."""

from grpo.config import TrainConfig
from grpo.dynamics.scheduler import build_scheduler
from grpo.types import Mean, RoundPlan, RoundStatistics


def statistics(plan, step):
    """Of a round of 4 groups of 8 with 10 tokens a completion and three seconds."""
    means = {"completions/length_mean": Mean(320.0, 32.0)}
    return RoundStatistics(step, step, plan, means, {(0, 8): 1, (3, 8): 3}, {"sample": 2.0, "learn": 1.0}, ())


def rounds_until_stop(**limits):
    config = TrainConfig()
    for name, value in limits.items():
        setattr(config.limits, name, value)
    scheduler = build_scheduler(config, 1)
    plan, state = scheduler.init()
    for step in range(1, 100):
        plan, state = scheduler.next(plan, statistics(plan, step), state)
        if plan.stop:
            return step, plan.reason
    return None


def test_a_run_ends_in_the_round_in_which_a_budget_is_spent():
    assert rounds_until_stop(samples=100) == (4, "the budget of 100 samples is spent")
    assert rounds_until_stop(samples=96)[0] == 3
    assert rounds_until_stop(tokens=1600)[0] == 5
    assert rounds_until_stop(seconds=7.0) == (3, "the budget of 7 seconds is spent")
    assert rounds_until_stop(samples=1000, tokens=640)[0] == 2


def test_without_limits_a_run_goes_on_and_its_state_is_the_schedulers_own():
    assert rounds_until_stop() is None
    assert build_scheduler(TrainConfig(), 1).init()[1] == {}


def test_a_resumed_run_counts_on():
    config = TrainConfig()
    config.limits.samples = 96
    plan, state = build_scheduler(config, 1).init()
    for step in (1, 2):
        plan, state = build_scheduler(config, 1).next(plan, statistics(plan, step), state)
    assert not plan.stop
    assert build_scheduler(config, 1).next(plan, statistics(plan, 3), state)[0].stop


def test_a_limit_that_is_set_when_a_run_is_resumed_counts_from_there():
    config = TrainConfig()
    config.limits.samples = 32
    plan = RoundPlan(8, 1, 4)
    assert build_scheduler(config, 1).next(plan, statistics(plan, 1), {})[0].stop
