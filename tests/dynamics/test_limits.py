"""Runs that end when their budget is spent."""

from copy import deepcopy

from grpo.config import TrainConfig
from grpo.dynamics.scheduler import build_scheduler, replanned
from grpo.types import Mean, Progress, RoundPlan, RoundStatistics


def statistics(plan, step):
    """Of a round of 4 groups of 8 with 10 tokens a completion. Sampling and learning overlap in its three seconds."""
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


def ended(**limits):
    """A run of 3 rounds that ended by its limits: its configuration, and where it stood."""
    config = TrainConfig()
    for name, value in limits.items():
        setattr(config.limits, name, value)
    plan, state = build_scheduler(config, 1).init()
    for step in (1, 2, 3):
        plan, state = build_scheduler(config, 1).next(plan, statistics(plan, step), state)
    assert plan.stop
    return config, Progress(3, 3, 24, plan, state)


def resumed(progress, old, new):
    return replanned(progress, old, new, build_scheduler(new, 1))


def test_a_run_that_ended_by_its_limit_goes_on_when_the_limit_is_raised_and_only_then():
    old, progress = ended(samples=96)
    assert resumed(progress, old, old) == progress
    raised = deepcopy(old)
    raised.limits.samples = 128
    on = resumed(progress, old, raised)
    assert not on.plan.stop and on.scheduler == progress.scheduler
    plan, _ = build_scheduler(raised, 1).next(on.plan, statistics(on.plan, 4), on.scheduler)
    assert plan.stop
    lifted = deepcopy(old)
    lifted.limits.samples = 0
    assert not resumed(progress, old, lifted).plan.stop


def test_another_scheduler_keeps_what_the_limits_had_spent():
    old, progress = ended(samples=96)
    new = deepcopy(old)
    new.dynamics.name, new.limits.samples = "adaptive", 128
    on = resumed(progress, old, new)
    assert on.scheduler == build_scheduler(new, 1).init()[1] | {"spent": {"samples": 96.0}}
    new.limits.samples = 96
    assert resumed(progress, old, new).plan.stop
