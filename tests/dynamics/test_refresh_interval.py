import numpy as np
import pytest

from grpo.dynamics.refresh_interval import (
    OffPolicyness,
    RefreshRule,
    StepTime,
    choose_refresh_interval,
    fit_step_time,
    kept,
    on_policy_enough,
)

RULE = RefreshRule(longest=16, least_ess=0.8, most_clipped=0.1, least_saving=0.05)
CALM = OffPolicyness(interval=16, ess=0.99, clipped=0.001)
SLOW_ROUNDS = StepTime(per_step=1.0, per_round=10.0)


def choose(measured=CALM, time=SLOW_ROUNDS, current=1, gains=True):
    return choose_refresh_interval(RULE, measured, time, current, gains)


def test_an_interval_grows_by_one_rung_and_never_on_what_one_step_a_round_says():
    assert choose(OffPolicyness(interval=1, ess=1.0, clipped=0.0)).interval == 2
    # Measured at 2, ratios that drift that much rule out 3; at 1 nobody could know.
    assert choose(OffPolicyness(interval=2, ess=0.9, clipped=0.0), current=2).interval == 2
    assert choose(OffPolicyness(interval=2, ess=0.99, clipped=0.0), current=2).interval == 3
    assert choose(OffPolicyness(interval=8, ess=0.5, clipped=0.0), current=8).interval == 4
    assert choose(current=16).interval == 16


def test_the_reason_names_what_decided():
    calm = OffPolicyness(interval=2, ess=0.99, clipped=0.0)
    drift = "ESS 0.99 and 0.0% clipped at τ 2"
    assert choose(calm, current=2).reason == f"26% of the time for the same learning is saved; {drift}"
    assert choose(OffPolicyness(8, 0.5, 0.0), current=8).reason == "off-policy: ESS 0.50 and 0.0% clipped at τ 8"
    stale = choose(OffPolicyness(interval=2, ess=0.9, clipped=0.0), current=2)
    assert stale.stale and stale.reason.startswith("τ stays at 2, since samples would not keep at 3; ESS 0.90")
    assert not choose(OffPolicyness(2, 0.9, 0.0), StepTime(10.0, 0.1), 2).stale
    assert choose(calm, StepTime(10.0, 0.1), 2).reason == f"a longer τ would save less than 5%; {drift}"
    assert choose(calm, current=2, gains=False).reason == f"steps gain nothing; {drift}"


def test_where_steps_gain_nothing_fresher_samples_are_tried():
    assert choose(current=8, gains=False).interval == 6
    assert choose(OffPolicyness(1, 1.0, 0.0), current=1, gains=False).interval == 2


def test_off_policyness_is_extrapolated_before_the_interval_is_taken():
    measured = OffPolicyness(interval=2, ess=0.96, clipped=0.01)
    assert on_policy_enough(RULE, measured, 2)
    # (4 − ½)/(2 − ½) = 7/3 as far: 1 − 0.04·(7/3)² = 0.78.
    assert kept(measured, 4) == pytest.approx(1 - 0.04 * (7 / 3) ** 2)
    assert not on_policy_enough(RULE, measured, 4)
    assert choose(measured, current=2).interval == 3


def test_an_interval_that_hardly_saves_is_not_taken_and_one_that_costs_learning_is_left():
    assert choose(OffPolicyness(1, 1.0, 0.0), StepTime(per_step=10.0, per_round=0.1)).interval == 1
    stale = OffPolicyness(interval=4, ess=0.85, clipped=0.0)
    assert choose(stale, StepTime(per_step=10.0, per_round=0.1), 4).interval == 3
    # Where a refresh is dear, the same samples are worth it.
    assert choose(stale, current=4).interval == 4


def test_time_per_step_is_fitted_where_the_interval_varied():
    intervals = np.array([1.0, 2.0, 4.0])
    time = fit_step_time(intervals, 100 * intervals, 3.0 + 2.0 * intervals, fixed_seconds=0.0)
    assert (time.per_step, time.per_round) == pytest.approx((2.0, 3.0))
    assert time.seconds(4) == pytest.approx(2.75)
    only_one = fit_step_time(np.full(2, 2.0), np.full(2, 100.0), np.array([9.0, 11.0]), fixed_seconds=1.0)
    assert (only_one.per_step, only_one.per_round) == pytest.approx((4.5, 1.0))


def test_time_per_step_is_that_of_the_present_groups_also_where_earlier_ones_were_larger():
    """A round takes 3 s, and 10 ms for each of its tokens."""
    intervals = np.array([1.0] * 8 + [2.0] * 4)
    tokens = np.array([800.0] * 8 + [400.0] * 4)
    time = fit_step_time(intervals, tokens, 3.0 + 0.01 * tokens, fixed_seconds=0.5)
    assert (time.per_step, time.per_round) == pytest.approx((2.0, 3.0))
    unvaried = fit_step_time(np.ones(12), tokens, 3.0 + 0.01 * tokens, fixed_seconds=3.0)
    assert (unvaried.per_step, unvaried.per_round) == pytest.approx((4.0, 3.0))


def test_sampling_ahead_counts_against_a_longer_interval():
    late = OffPolicyness(interval=1, ess=0.99, clipped=0.001, lag=1)
    assert [late.lag_at(interval) for interval in (1, 2, 8)] == [1, 2, 8]
    assert OffPolicyness(interval=4, ess=1.0, clipped=0.0, lag=3).lag_at(2) == 3
    # At twice the interval samples are twice as old, whether they are sampled ahead or not.
    prompt, delayed = (OffPolicyness(interval=2, ess=0.9, clipped=0.0, lag=lag) for lag in (0, 2))
    assert kept(prompt, 4) == pytest.approx(1 - 0.1 * (3.5 / 1.5) ** 2)
    assert kept(delayed, 4) == pytest.approx(1 - 0.1 * (7.5 / 3.5) ** 2)
