import numpy as np
import pytest

from grpo.dynamics.forecast import StopRule, forecast, phases, steps_to_plateau
from grpo.dynamics.identify import identify
from tests.dynamics.synthetic import measured, oscillating, sigmoid


def test_a_forecast_from_the_first_third_holds_the_plateau():
    curve = oscillating(150, start=0.2, plateau=0.8, stiffness=0.004)
    early = identify(measured(curve, prompts=64).until(49), 0.9)
    ahead = forecast(early, 150)
    assert ahead.low[-1] <= curve[-1] <= ahead.high[-1]
    assert ahead.plateau.low <= 0.8 <= ahead.plateau.high
    assert ahead.steps[0] == 49 and ahead.steps[-1] == 150
    assert np.all(ahead.low <= ahead.value) and np.all(ahead.value <= ahead.high)


def test_the_gain_left_shrinks_to_nothing():
    history = measured(oscillating(400, stiffness=0.002), prompts=64)
    early, late = (forecast(identify(history.until(step), 0.9), 400) for step in (60, 399))
    assert early.gain.value > 0.02
    assert late.gain.high < 0.02
    assert steps_to_plateau(early, 0.1) > 5


def test_stopping_waits_for_the_fewest_steps_and_for_patience():
    history = measured(oscillating(400, stiffness=0.002), prompts=64)
    done = forecast(identify(history, 0.9), 400)
    going = forecast(identify(history.until(60), 0.9), 400)
    rule = StopRule(least_gain=0.02, patience=2, fewest_steps=100)
    rounds_below, verdicts = 0, []
    for ahead, step in (
        (done, 90),
        (done, 95),
        (done, 100),
        (going, 105),
        (done, 110),
        (None, 115),
        (done, 120),
        (done, 125),
    ):
        stop, rounds_below = rule.next(ahead, step, rounds_below)
        verdicts.append(stop)
    assert verdicts == [False, False, True, False, False, False, False, True]


def test_three_phases_are_found_where_they_are_and_denied_where_not():
    found = phases(identify(measured(sigmoid(100, middle=40, width=5.0), prompts=256), 0.9))
    # 10 % and 90 % of a logistic lie ln 9 widths from its middle.
    assert found.rise == pytest.approx(40 - 5 * np.log(9), abs=3)
    assert found.plateau == pytest.approx(40 + 5 * np.log(9), abs=3)
    assert phases(identify(measured(0.8 - 0.6 * np.exp(-np.arange(100) / 15), prompts=256), 0.9)) is None
    assert phases(identify(measured(np.full(60, 0.3)), 0.9)) is None


@pytest.mark.slow
def test_forecasts_at_thirty_percent_hold_the_final_plateau_nine_times_of_ten():
    held, runs = 0, 60
    for seed in range(runs):
        generator = np.random.default_rng(seed)
        plateau = generator.uniform(0.5, 0.95)
        stiffness = 0.1 / (generator.uniform(0.1, 0.3) * 120 + 1)
        curve = oscillating(120, generator.uniform(0.05, 0.3), plateau, stiffness=stiffness)
        ahead = forecast(identify(measured(curve, seed=seed).until(36), 0.9), 120)
        held += ahead.plateau.low <= plateau <= ahead.plateau.high
    assert held >= 0.85 * runs
