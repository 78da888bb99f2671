import numpy as np
import pytest

from grpo.dynamics.refresh_interval import (
    OffPolicyness,
    RefreshRule,
    StepTime,
    choose_refresh_interval,
    fit_step_time,
    on_policy_enough,
    stable,
)

RULE = RefreshRule(
    longest=16,
    least_damping=0.7,
    least_ess=0.8,
    most_clipped=0.1,
    least_saving=0.05,
)
CALM = OffPolicyness(interval=16, ess=0.99, clipped=0.001)
SLOW_ROUNDS = StepTime(per_step=1.0, per_round=10.0)


def choose(stiffness, measured=CALM, time=SLOW_ROUNDS, current=1, rule=RULE):
    return choose_refresh_interval(rule, 0.9, stiffness, measured, time, current).interval


def test_softer_runs_may_wait_longer():
    assert choose(1e-5, current=12) == 16
    # A held gradient of κ = .003 has ζ = .757 at τ = 12 and .685 at 16; κ = .01 has .51 even on-policy.
    assert choose(0.003, current=12) == choose(0.003, current=16) == 12
    assert choose(0.003, current=8) == 12 and choose(0.01, current=8) == 1
    assert choose(10.0) == 1


def test_an_interval_grows_by_one_rung_and_never_on_what_one_step_a_round_says():
    nothing = OffPolicyness(interval=1, ess=1.0, clipped=0.0)
    assert choose(1e-5, nothing) == 2
    # Measured at 2, ratios that drift that much rule out 3; at 1 nobody could know.
    assert choose(1e-5, OffPolicyness(interval=2, ess=0.9, clipped=0.0), current=2) == 2
    assert choose(1e-5, OffPolicyness(interval=2, ess=0.99, clipped=0.0), current=2) == 3
    assert choose(1e-5, OffPolicyness(interval=8, ess=0.5, clipped=0.0), current=8) == 4


def test_the_reason_names_what_decided():
    def why(stiffness, measured, current, time=SLOW_ROUNDS):
        return choose_refresh_interval(RULE, 0.9, stiffness, measured, time, current).reason

    calm = OffPolicyness(interval=2, ess=0.99, clipped=0.0)
    assert why(1e-5, calm, 2).startswith("28% of a step saved, ζ = ")
    assert why(0.5, calm, 2) == "ζ would fall below 0.7"
    assert why(1e-5, OffPolicyness(8, 0.5, 0.0), 8) == "ESS 0.50 and 0.0% clipped at τ 8"
    assert why(1e-5, calm, 2, StepTime(10.0, 0.1)) == "τ 3 would save less than 5% of a step"


def test_both_margins_are_kept():
    assert stable(RULE, 0.9, 10.0, 1)
    assert not stable(RULE, 0.9, 0.01, 8)
    assert [stable(RULE, 0.9, 0.003, interval) for interval in (12, 16)] == [True, False]
    assert [stable(RULE, 0.9, 0.003, 6, lag) for lag in (4, 6)] == [True, False]
    assert stable(RULE, 0.0, 0.001, 16)


def test_off_policyness_is_extrapolated_before_the_interval_is_taken():
    measured = OffPolicyness(interval=2, ess=0.96, clipped=0.01)
    assert on_policy_enough(RULE, measured, 2)
    # (4 − ½)/(2 − ½) = 7/3 as far: 1 − 0.04·(7/3)² = 0.78.
    assert not on_policy_enough(RULE, measured, 4)
    assert choose(1e-5, measured, current=2) == 3


def test_an_interval_that_hardly_saves_is_not_taken():
    assert choose(1e-5, time=StepTime(per_step=10.0, per_round=0.1)) == 1


def test_without_a_stiffness_nothing_grows():
    assert choose(None, current=4) == 4
    assert choose(None, OffPolicyness(interval=4, ess=0.5, clipped=0.0), current=4) == 2


def test_time_per_step_is_fitted_where_the_interval_varied():
    intervals = np.array([1.0, 2.0, 4.0])
    time = fit_step_time(intervals, 3.0 + 2.0 * intervals, fixed_seconds=0.0)
    assert (time.per_step, time.per_round) == pytest.approx((2.0, 3.0))
    assert time.seconds(4) == pytest.approx(2.75)
    only_one = fit_step_time(np.array([2.0, 2.0]), np.array([9.0, 11.0]), fixed_seconds=1.0)
    assert (only_one.per_step, only_one.per_round) == pytest.approx((4.5, 1.0))


def test_what_is_sampled_ahead_counts_against_a_longer_interval():
    late = OffPolicyness(interval=1, ess=0.99, clipped=0.001, lag=1)
    assert [late.lag_at(interval) for interval in (1, 2, 8)] == [1, 2, 8]
    assert OffPolicyness(interval=4, ess=1.0, clipped=0.0, lag=3).lag_at(2) == 3
    # What bears an interval of 3 does not bear it a round late.
    prompt, delayed = (OffPolicyness(interval=2, ess=1.0, clipped=0.0, lag=lag) for lag in (0, 3))
    assert (choose(0.0035, prompt, current=2), choose(0.0035, delayed, current=2)) == (3, 2)
