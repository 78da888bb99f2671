from dataclasses import replace

import numpy as np
import pytest

from grpo.dynamics.difficulty import Difficulty
from grpo.dynamics.history import History
from grpo.insight.logs.run_log import NOTHING, RunLog, Series
from grpo.insight.plans import whatif
from grpo.insight.plans.whatif import (
    BatchSetting,
    has_risen,
    predict,
    progress_of_step,
    silent_share,
    stages_of,
    step_tokens,
)

SETTING = BatchSetting(group_size=8, prompts_per_step=32)
ROUNDS = 100


def rate_at(step):
    return 0.8 - 0.6 * np.exp(-step / 40)


def run_log(interval=1, ess=1.0, **series):
    """Returns the log of a run whose pass rate relaxes from .2 to .8, measured almost exactly. Its prompts are all
    alike."""
    steps = np.arange(0, ROUNDS, interval, dtype=float)
    ends = steps + interval
    columns = {"prompts/length_mean": 20.0, "completions/length_mean": 100.0, "policy/ess_fraction": ess}
    columns |= {"plan/group_size": 8.0, "plan/prompts_per_step": 32.0, "plan/refresh_interval": float(interval)}
    columns |= {"time/round_seconds": 2.0 * interval + 1.0, "time/sync_seconds": 1.0}
    values = {name: Series(ends, np.full(len(steps), value)) for name, value in columns.items()} | series
    errors, intervals = np.full(len(steps), 1e-3), np.full(len(steps), float(interval))
    history = History(steps, rate_at(steps), errors, intervals, np.zeros(len(steps)))
    counts = [{(round(8 * rate), 8): 32 * interval} for rate in history.values]
    return RunLog(history, values, counts)


@pytest.fixture(autouse=True)
def certain(monkeypatch):
    """Sets the power of the signal-to-noise ratio to 1, and removes the differences between seeds, the loss of few
    prompts, and the price of noise where it is not measured."""
    monkeypatch.setattr(whatif, "LEAST_POWER", 1.0)
    monkeypatch.setattr(whatif, "GREATEST_POWER", 1.0)
    monkeypatch.setattr(whatif, "SEED_SPREAD", 0.0)
    monkeypatch.setattr(whatif, "GREATEST_LOSS", 0.0)
    monkeypatch.setattr(whatif, "UNSURE", (0.0, 0.0))


def course(setting=SETTING, log=None):
    log = log or run_log()
    return predict(log, stages_of(log, SETTING), setting)


def rates_at(predicted, step):
    return float(np.median(predicted.at("steps", step)["rates"]))


def test_the_same_setting_gives_the_same_curve_and_its_costs():
    same = course()
    for step in (0, 20, 50, 90):
        assert rates_at(same, step) == pytest.approx(rate_at(step), abs=0.01)
    there = same.at("steps", 50)
    # 32 × (20 + 8 × 100) tokens a step; 2 s and a refresh of 1 s.
    assert np.median(there["tokens"]) == pytest.approx(50 * 26_240)
    assert np.median(there["seconds"]) == pytest.approx(150)
    back = same.at("tokens", 50 * 26_240)
    assert np.median(back["steps"]) == pytest.approx(50) and np.median(back["rates"]) == pytest.approx(
        np.median(there["rates"])
    )


def test_each_of_two_passes_samples_half_of_its_groups():
    log = run_log(interval=2)
    twice = replace(log, counts=[{group: number // 2 for group, number in one.items()} for one in log.counts])
    setting = replace(SETTING, refresh_interval=2, passes=2)
    there = predict(twice, stages_of(twice, setting), setting).at("steps", 50)
    # A round of two steps samples 32 groups, in 4 s and a refresh of 1 s.
    assert np.median(there["tokens"]) == pytest.approx(25 * 26_240)
    assert np.median(there["seconds"]) == pytest.approx(25 * 5)


def test_groups_that_could_not_be_graded_took_their_share_of_the_seconds():
    log = run_log()
    # Each round samples 40 groups of 8 × 100 + 20 tokens in 2 s, and 32 of them are graded.
    sampled = Series(log["time/round_seconds"].steps, np.full(ROUNDS, 40.0))
    partly_out = replace(log, series={**log.series, "groups/num_sampled": sampled})
    assert {stage.token_seconds for stage in stages_of(partly_out, SETTING)} == {2.0 / (40 * 820)}
    assert {stage.token_seconds for stage in stages_of(log, SETTING)} == {2.0 / (32 * 820)}


def test_four_times_the_prompts_are_twice_as_fast_a_step():
    faster = course(replace(SETTING, prompts_per_step=128))
    for step in (10, 25, 45):
        assert rates_at(faster, step) == pytest.approx(rate_at(2 * step), abs=0.015)
    assert np.median(faster.at("steps", 10)["tokens"]) == pytest.approx(10 * 4 * 26_240)


def test_a_measured_staleness_slows_a_longer_interval_and_its_refreshes_cost_less():
    """At τ = 4 a tenth of the samples is lost. 1 − ESS grows as the square of the steps, so at τ = 8 it is
    (7.5/3.5)²·.1."""
    log = run_log(interval=4, ess=0.9)
    longer = predict(log, stages_of(log, SETTING), replace(SETTING, refresh_interval=8))
    slower = ((1 - 0.1 * (7.5 / 3.5) ** 2) / 0.9) ** 0.5
    assert rates_at(longer, 40) == pytest.approx(rate_at(slower * 40), abs=0.015)
    assert np.median(longer.at("steps", 40)["seconds"]) == pytest.approx(40 * (2 + 1 / 8))


def test_an_interval_that_was_never_measured_widens_the_prediction():
    known, guessed = (course(replace(SETTING, refresh_interval=tau)).at("steps", 50)["rates"] for tau in (1, 16))
    assert np.ptp(guessed) > 2 * np.ptp(known)


def test_the_power_of_the_ratio_and_luck_widen_the_prediction(monkeypatch):
    monkeypatch.setattr(whatif, "LEAST_POWER", 0.2)
    monkeypatch.setattr(whatif, "SEED_SPREAD", 0.12)
    low, high = np.quantile(course(replace(SETTING, prompts_per_step=128)).at("steps", 25)["rates"], [0.05, 0.95])
    # Between hardly a gain and twice the speed.
    assert rate_at(0.9 * 25) < low < rate_at(35) < rate_at(43) < high


def test_a_step_with_few_prompts_may_be_slower_than_the_ratio_says(monkeypatch):
    """With 4 prompts instead of 32 a step is 8^.5 times slower by the ratio, and by up to exp(4/4 − 4/32) = 2.4
    beyond."""
    monkeypatch.setattr(whatif, "GREATEST_LOSS", 4.0)
    low, high = np.quantile(course(replace(SETTING, prompts_per_step=4)).at("steps", 226)["rates"], [0.05, 0.95])
    assert rate_at(80 / 2.4) < low < rate_at(80 / 2.2) and rate_at(80 / 1.1) < high < rate_at(80)
    same = course().at("steps", 80)["rates"]
    assert np.median(same) == pytest.approx(rate_at(80), abs=0.01) and np.ptp(same) < 0.02, (
        "its own batch loses nothing"
    )


def products(gain, signal=0.0):
    """Returns the series of steps whose products with the next gradients are about `gain`."""
    steps = np.arange(1.0, ROUNDS + 1)
    return {
        "step/gain": Series(steps, gain * (1 + 0.1 * (-1) ** steps)),
        "step/signal": Series(steps, np.full(ROUNDS, signal)),
    }


def test_noise_costs_up_to_half_of_what_steps_gain_where_their_products_are_positive():
    """With r times the signal-to-noise ratio, a step is (r − χ)/(1 − χ) times as fast, and χ lies between 0 and ½. So
    four times the prompts are 2 to 3 times as fast, and a quarter of them 0 to ½ times."""
    log = run_log(**products(1e-3))
    assert {stage.heat for stage in stages_of(log, SETTING)} == {(0.0, 0.5)}
    more, fewer = (course(replace(SETTING, prompts_per_step=number), log) for number in (128, 8))
    low, high = np.quantile(more.at("steps", 20)["rates"], [0.05, 0.95])
    assert rate_at(2 * 20) < low < rate_at(2.1 * 20) and rate_at(2.8 * 20) < high < rate_at(3 * 20)
    low, high = np.quantile(fewer.at("steps", 80)["rates"], [0.05, 0.95])
    assert rate_at(0) < low < rate_at(0.15 * 80) and rate_at(0.4 * 80) < high < rate_at(0.5 * 80)
    assert rates_at(course(log=log), 50) == pytest.approx(rate_at(50), abs=0.01), "its own batch is as it was"


def test_a_smaller_batch_goes_back_along_the_path_where_products_of_steps_are_negative():
    log = run_log(**products(-1e-3))
    assert {stage.heat for stage in stages_of(log, SETTING)} == {(0.5, 0.9)}
    low, high = np.quantile(course(replace(SETTING, prompts_per_step=8), log).at("steps", 80)["rates"], [0.05, 0.95])
    assert low == pytest.approx(rate_at(0), abs=0.01) and high < rate_at(10)


def test_a_gradient_that_is_mostly_signal_gains_little_by_more_prompts():
    """A share s = ½ of signal becomes 1/(1 + 1/4) = .8 with four times the prompts, and the speed √(.8/.5) = 1.26."""
    log = run_log(**products(0.0, signal=0.5))
    more = course(replace(SETTING, prompts_per_step=128), log)
    assert rates_at(more, 40) == pytest.approx(rate_at(1.265 * 40), abs=0.015)
    # The share of a gradient that is almost 0 may be any number, and counts as one.
    odd = products(0.0, signal=0.5)
    odd["step/signal"].values[3] = -252938.0
    assert {round(stage.signal, 1) for stage in stages_of(run_log(**odd), SETTING)} <= {0.4, 0.5}


def test_a_curve_has_risen_only_if_it_surely_ends_above_its_beginning():
    steps = np.arange(40.0)
    ones = np.ones(40)
    for rise, risen in ((0.0, False), (0.02, False), (0.06, True), (-0.1, False)):
        values = 0.3 + rise * steps / 40 + 0.01 * (-1) ** steps
        assert has_risen(History(steps, values, 0.02 * ones, ones, 0 * ones)) == risen


def test_the_progress_of_a_step_by_hand():
    """Dr. GRPO at rate p, with prompts all alike, has the signal (1 − 1/G)·pq and that over G as noise. Progress is
    √(B·G·(1 − 1/G)·pq)."""
    alike = Difficulty(np.array([0.3]), np.array([1.0]))
    setting = BatchSetting(group_size=4, prompts_per_step=10, exponent=0.0)
    assert progress_of_step(setting, alike, 0.0) == pytest.approx((10 * 3 * 0.21) ** 0.5)
    silent = 0.3**4 + 0.7**4
    assert silent_share(setting, alike) == pytest.approx(silent)
    refilled = replace(setting, refilled=True)
    # Ten groups that speak instead of 10·(1 − silent).
    assert progress_of_step(refilled, alike, 0.0) == pytest.approx((10 * 3 * 0.21 / (1 - silent)) ** 0.5)
    stage = whatif.Stage(0.0, setting, alike, 20.0, 100.0, 0.0, 0.0, 1.0)
    assert step_tokens(refilled, stage) == pytest.approx(10 * 420 / (1 - silent))


def test_a_schedule_of_the_learning_rate_goes_by_the_step():
    """The rate falls to 0 at step 100. With four times the prompts the policy is ahead, but its rate is that of the
    step: at step t it has come to where ∫ of the rate is twice as large."""
    steps = np.arange(ROUNDS, dtype=float)
    log = run_log(**{"learner/learning_rate": Series(steps, 1e-3 * (1 - steps / 100))})
    faster = predict(log, stages_of(log, SETTING), replace(SETTING, prompts_per_step=128))
    area = 2 * (20 - 20**2 / 200)
    assert rates_at(faster, 20) == pytest.approx(rate_at(100 - (100**2 - 200 * area) ** 0.5), abs=0.02)


def test_a_falling_rate_is_no_plateau_so_another_schedule_leads_further():
    """The run's rate falls to 0 at step 100. At its first rate throughout, 30 steps lead where the run was after s
    steps, s − s²/200 = 30. At twice the speed its own schedule leads beyond the run's end."""
    steps = np.arange(ROUNDS, dtype=float)
    log = run_log(**{"learner/learning_rate": Series(steps, 1e-3 * (1 - steps / 100))})
    stages = stages_of(log, SETTING)
    flat = predict(log, stages, SETTING, rate=lambda steps: np.full(len(steps), 1e-3))
    assert rates_at(flat, 30) == pytest.approx(rate_at(100 - (100**2 - 200 * 30) ** 0.5), abs=0.01)
    faster = predict(log, stages, replace(SETTING, prompts_per_step=128))
    assert rates_at(faster, 95) > rate_at(100) + 0.05
    assert rates_at(faster, 200) == pytest.approx(rates_at(faster, 101), abs=0.01), "the rate is 0 by then"


def test_a_course_of_cheap_steps_is_followed_as_far_as_the_same_tokens_lead():
    small = course(replace(SETTING, prompts_per_step=4))
    there = small.at("tokens", 300 * 26_240)
    assert np.median(there["steps"]) == pytest.approx(2400, rel=0.01)
    # An eighth of the prompts is 8^.5 times slower a step, so 80 steps of the run take 226.
    assert rates_at(small, 226) == pytest.approx(rate_at(80), abs=0.01)


def test_a_course_says_from_where_on_its_rate_stands_still():
    """Four times the run's 100 steps are predicted. A quarter of the prompts comes half as far a step."""
    same, small = course(), course(replace(SETTING, prompts_per_step=8))
    assert not same.at("steps", 390)["beyond"].any()
    assert not small.at("steps", 780)["beyond"].any() and small.at("steps", 850)["beyond"].all()


def test_a_level_costs_the_steps_to_it():
    same = course()
    tokens = np.median(same.cost("tokens", 0.5))
    # 0.5 is reached at step 40·ln 2.
    assert tokens == pytest.approx(26_240 * 40 * np.log(2), rel=0.05)
    assert np.all(np.isinf(same.cost("steps", 1.1)))


def test_a_log_without_counts_is_refused():
    with pytest.raises(ValueError, match="no counts"):
        stages_of(replace(run_log(), counts=(), held_out=NOTHING), SETTING)
