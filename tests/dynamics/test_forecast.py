"""These tests check errors that a forecast must never make. benchmarks/forecasts.py measures forecasts of many runs."""

import numpy as np
import pytest

from benchmarks.forecasts import backtest, scores
from benchmarks.simulated_curves import KINDS, exponential, flat, power_law, sigmoid, simulated
from grpo.dynamics.adaptive import StopRule
from grpo.dynamics.forecast import forecast, forecast_held_out
from grpo.dynamics.history import history_of_values
from grpo.dynamics.trend import PRIORS, SETTINGS, fall_probability, follow
from tests.dynamics.synthetic import measured, oscillating


@pytest.mark.parametrize("kind", KINDS)
def test_the_interval_for_the_present_holds_what_was_just_measured(kind):
    for seed in range(3):
        history = simulated(kind, seed)
        ahead = forecast(history, 2 * history.steps[-1])
        number = max(len(history) // 10, 3)
        lately, error = history.values[-number:].mean(), np.sqrt(np.mean(history.errors**2) / number)
        assert ahead.low[0] - 2 * error <= lately <= ahead.high[0] + 2 * error
        assert ahead.high[0] - ahead.low[0] < 0.4
        assert np.all((ahead.low <= ahead.value) & (ahead.value <= ahead.high))


@pytest.mark.parametrize("kind", KINDS)
def test_an_interval_never_narrows_with_distance_nor_with_the_last_step_that_is_asked_for(kind):
    """Regression: the interval of a curve that rises towards 1 was [.19, 1] at a step and [.5, 1] at twice that
    step."""
    history = simulated(kind, 1)
    seen = history.until(history.steps[0] + 0.6 * np.ptp(history.steps))
    last_widths = []
    for factor in (1.1, 2, 6):
        for ahead in (forecast(seen, factor * seen.steps[-1]), forecast_held_out(seen, seen, factor * seen.steps[-1])):
            widths = ahead.high - ahead.low
            assert np.diff(widths).min() > -1e-12
            assert ahead.low.min() > -1e-12 and ahead.high.max() < 1 + 1e-12
            last_widths.append(widths[-1])
    # Other draws are made for another last step.
    assert np.diff(np.reshape(last_widths, (3, 2)), axis=0).min() > -0.02


def test_the_forecast_for_a_step_does_not_depend_on_the_last_step_that_is_asked_for():
    """Curves that had fallen at the last step once counted as improbable on all the way there."""
    history = measured(np.full(60, 0.5), prompts=4)
    near, far = forecast(history, 90), forecast(history, 240)
    for name in ("low", "value", "high"):
        assert np.interp(90, far.steps, getattr(far, name)) == pytest.approx(getattr(near, name)[-1], abs=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [30, 100])
def test_the_middle_of_forecasts_of_curves_that_stand_is_their_level(rounds):
    """It once was .025 to .04 above the level, since falls were counted as less probable in the middle too."""
    rates = [0.1, 0.3, 0.5, 0.7, 0.9] * 8
    curves = [measured(np.full(rounds, rate), 4, 4, seed) for seed, rate in enumerate(rates)]
    ahead = [forecast(curve, 2 * rounds) for curve in curves]
    assert abs(np.mean([one.value[-1] - rate for one, rate in zip(ahead, rates, strict=True)])) < 0.013
    assert abs(np.mean([one.gain.value for one in ahead])) < 0.01


def test_a_forecast_says_from_which_step_on_it_reaches_further_ahead_than_its_curve_is_long():
    history = measured(np.full(60, 0.5))
    assert forecast(history, 118).guess_from is None
    assert forecast(history, 119).guess_from == 118


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_a_pass_rate_that_never_left_zero_or_one_is_known(rate):
    ahead = forecast(history_of_values(np.arange(1, 41), np.full(40, rate)), 50)
    assert np.all(np.abs(ahead.value - rate) < 0.01)
    assert abs(ahead.low[0] - rate) < 0.01 and abs(ahead.high[0] - rate) < 0.01


@pytest.mark.parametrize("seed", range(3))
def test_a_collapse_to_zero_is_not_forecast_from_the_level_before(seed):
    """A run at .7 fell to 0 within ten rounds, and stood there for ten. The present interval was [.25, .64] once, since
    the rounds of the fall were taken for higher ones than before."""
    curve = np.concatenate([np.full(50, 0.7), 0.7 * (1 - np.arange(1, 11) / 11), np.full(10, 0.005)])
    ahead = forecast(measured(curve, prompts=16, seed=seed), 100)
    assert ahead.low[0] < 0.005 and ahead.high[0] < 0.1


def test_the_last_block_of_rounds_contradicts_no_drawn_curve():
    """A run at .7 falls to .02 within six rounds. After some rounds of the fall, up to four of five drawn curves began
    where the run had been before it, once."""
    curve = np.concatenate([np.full(50, 0.7), np.linspace(0.6, 0.02, 6), np.full(4, 0.02)])
    history = measured(curve, prompts=16)
    for rounds in range(50, 61):
        trend = follow(history.until(history.steps[rounds - 1]))
        rates, errors = trend.draws(np.array([trend.now]), 500)
        assert np.all(np.abs(rates[:, 0] - trend.last) <= 3.9 * trend.last_error * errors / trend.error)
    # Sixty rounds make thirty blocks.
    assert trend.last == pytest.approx(np.average(history.values[-2:], weights=history.errors[-2:] ** -2.0))


@pytest.mark.parametrize("after", [0.02, 0.95])
def test_no_interval_for_the_present_is_contradicted_by_the_newest_rounds(after):
    """After one to five rounds of a jump, the last, last three and last five rounds once lay outside it."""
    history = measured(np.concatenate([np.full(50, 0.5), np.full(10, after)]), prompts=32)
    for rounds in range(50, 61):
        known = history.until(history.steps[rounds - 1])
        for ahead in (forecast(known, 80), forecast_held_out(known, history, 80)):
            for number in (1, 3, 5):
                mean, error = known.values[-number:].mean(), np.linalg.norm(known.errors[-number:]) / number
                assert ahead.low[0] - 2.001 * error <= mean <= ahead.high[0] + 2.001 * error


@pytest.mark.slow
def test_nine_of_ten_intervals_hold_what_came_on_curves_of_every_kind():
    rows = [row for kind in KINDS for seed in range(2) for row in backtest(simulated(kind, seed))]
    covered, width, score, _ = scores(rows)
    assert 0.85 <= covered <= 0.97
    assert width < 0.45 and score < 0.65


def test_a_rising_curve_is_expected_to_go_on_and_a_settled_one_to_stand():
    rising = forecast(history_of_values(np.arange(1, 41), 0.1 + 0.01 * np.arange(40)), 60)
    assert rising.value[-1] > 0.55 and rising.chance(0.02) > 0.9
    settled = forecast(measured(oscillating(400, stiffness=0.004), prompts=64), 480)
    assert settled.low[-1] < 0.8 < settled.high[-1] and settled.high[-1] - settled.low[-1] < 0.1
    assert settled.chance(0.02) < 0.2
    assert settled.steps[0] == 399 and settled.steps[-1] == 480


def test_noisy_rates_near_one_are_not_drawn_towards_one_half():
    """Rounds of only four completions at .95 have logits whose mean is far below that of .95."""
    values = np.random.default_rng(0).binomial(4, 0.95, 40) / 4
    ahead = forecast(history_of_values(np.arange(1, 41), values), 50)
    assert abs(ahead.value[0] - values.mean()) < 0.04


def test_a_curve_that_wanders_has_a_wider_forecast_than_one_that_stands():
    generator = np.random.default_rng(1)
    steps = np.arange(1.0, 201)
    noise = 0.03 * generator.standard_normal(200)
    stands = forecast(history_of_values(steps, 0.5 + noise), 400)
    wanders = forecast(history_of_values(steps, 0.5 + 0.015 * np.cumsum(generator.standard_normal(200)) + noise), 400)
    widths = [ahead.high[-1] - ahead.low[-1] for ahead in (stands, wanders)]
    assert widths[1] > 1.5 * widths[0]


def test_a_curve_that_stands_is_expected_to_rise_rather_than_to_fall():
    """Level and slope wander alike in both directions. The prior on falls alone lifts the lower end of the interval."""
    stands = forecast(history_of_values(np.arange(60), 0.5 + 0.1 * np.cos(np.arange(60))), 120)
    above, below = stands.high[-1] - stands.value[0], stands.value[0] - stands.low[-1]
    assert above > 1.3 * below > 0.05


def test_a_run_that_has_lost_what_it_learned_is_expected_to_go_on_falling():
    """The run has fallen by 2.1 logits when it is forecast, and falls by another 1.1."""
    level = np.concatenate([np.linspace(-1.5, 1.5, 50), np.linspace(1.5, -1.7, 60)])
    history = measured(1 / (1 + np.exp(-level)), prompts=64)
    ahead = forecast(history.until(history.steps[89]), history.steps[-1])
    assert ahead.low[-1] < history.values[-1] < ahead.high[-1]
    assert ahead.gain.value < -0.02


@pytest.mark.parametrize("seed", range(3))
def test_a_slow_decline_after_a_fast_rise_is_expected_to_go_on(seed):
    """The run rose from .3 to .8 within twenty rounds, and loses .2 in a hundred. A slope that had to fade as fast as
    that rise could not follow the decline: a gain was expected, and the end lay below the interval."""
    rounds = np.arange(100)
    curve = 0.8 - 0.5 * np.exp(-rounds / 5) - 0.002 * np.maximum(rounds - 25, 0)
    history = measured(curve, prompts=32, seed=seed)
    ahead = forecast(history.until(history.steps[69]), history.steps[-1])
    assert ahead.gain.value < 0
    assert ahead.low[-1] < curve[-1] < ahead.value[-1] < curve.max()


def test_a_fall_counts_by_its_size_and_a_great_one_by_no_more():
    none, usual, great, greater = fall_probability(np.array([0.0, 0.4, 4.0, 8.0]))
    assert none == 1 and usual == pytest.approx(0.1 + 0.9 * np.exp(-1))
    assert greater == pytest.approx(great, rel=1e-3) == pytest.approx(0.1, rel=1e-3)


def test_the_settings_posterior_follows_the_curve():
    """The posterior gives little wander to a level that stands, and much to one that walks. Its weights add up to
    one."""
    wander = SETTINGS[list(PRIORS).index("level_wander")]
    generator = np.random.default_rng(2)
    still = follow(measured(np.full(300, 0.5), prompts=256))
    walk = np.clip(0.5 + np.cumsum(0.02 * generator.standard_normal(300)), 0.1, 0.9)
    moving = follow(measured(walk, prompts=256))
    assert still.weights.sum() == pytest.approx(1) and moving.weights.sum() == pytest.approx(1)
    assert still.weights @ wander < 0.15 < 0.4 < moving.weights @ wander


def test_time_may_be_counted_in_any_unit():
    values = simulated(power_law, 1).values[:60]
    one, ten = (history_of_values(unit * np.arange(1, 61), values, unit) for unit in (1, 10))
    first, second = forecast(one, one.steps[0] + 99), forecast(ten, ten.steps[0] + 990)
    assert second.value == pytest.approx(first.value, abs=0.02)


@pytest.mark.parametrize("kind", [exponential, sigmoid, flat])
def test_two_rounds_are_enough_and_nothing_is_known_after_them(kind):
    history = simulated(kind, 0)
    ahead = forecast(history.until(history.steps[1]), 100)
    assert ahead.high[-1] - ahead.low[-1] > 0.3


def test_stopping_waits_for_the_fewest_steps_and_for_patience():
    history = measured(oscillating(400, stiffness=0.004), prompts=64)
    done, going = forecast(history, 400), forecast(history.until(30), 400)
    assert done.chance(0.02) < 0.1 < going.chance(0.02)
    rule = StopRule(least_gain=0.02, patience=2, fewest_steps=100)
    rounds_below, verdicts = 0, []
    asked = ((done, 90), (done, 95), (done, 100), (going, 105), (done, 110), (None, 115), (done, 120), (done, 125))
    for ahead, step in asked:
        stop, rounds_below = rule.next(ahead, step, rounds_below)
        verdicts.append(stop)
    assert verdicts == [False, False, True, False, False, False, False, True]


@pytest.mark.slow
def test_a_forecast_over_far_more_steps_than_were_measured_ends_at_knowing_nothing():
    """Its work once grew with the number of steps, so that 10¹² of them took for ever."""
    history = measured(np.full(10, 0.5), prompts=16)
    near, far = forecast(history, 40_000), forecast(history, 10**12)
    assert far.steps[-1] == 10**12
    assert far.low[-1] < 0.001 and far.high[-1] > 0.999
    assert near.low[-1] < 0.001 and near.high[-1] > 0.999
