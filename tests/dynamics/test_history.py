import numpy as np
import pytest
from scipy.signal import lfilter

from grpo.dynamics.history import history_of, noise_factor, pass_rate


def test_pass_rate_and_error_by_hand():
    # Groups of 4 with 0, 2, 2 and 4 correct: 8 of 16.
    rate, error = pass_rate({(0, 4): 1, (2, 4): 2, (4, 4): 1})
    assert rate == 0.5
    # Totals differ from 2 by −2, 0, 0, 2: 8/16² · 4/3.
    assert error == pytest.approx(np.sqrt(8 / 256 * 4 / 3))


def test_a_pass_rate_is_one_of_prompts_however_often_each_was_asked():
    # One prompt solved 2 of 4 times, one 16 of 16: (1/2 + 1) / 2, not 18 of 20.
    assert pass_rate({(2, 4): 1, (16, 16): 1})[0] == 0.75


def test_a_round_without_a_right_answer_is_not_known_to_be_hopeless():
    rate, error = pass_rate({(0, 8): 4})
    assert rate == 0.0
    assert error == pytest.approx(np.sqrt((1 / 34) * (33 / 34) / 32))


def test_errors_of_many_rounds_have_the_size_of_their_scatter():
    generator = np.random.default_rng(0)
    estimates = []
    for _ in range(800):
        rates = generator.beta(1.0, 2.0, 16)
        counts = {}
        for correct in generator.binomial(8, rates):
            counts[(int(correct), 8)] = counts.get((int(correct), 8), 0) + 1
        estimates.append(pass_rate(counts))
    rates, errors = np.array(estimates).T
    assert np.sqrt((errors**2).mean()) == pytest.approx(rates.std(), rel=0.05)


def test_errors_do_not_go_with_a_rounds_own_luck():
    generator = np.random.default_rng(1)
    rounds = []
    for index in range(400):
        correct = generator.binomial(8, generator.beta(2.0, 1.0, 8))
        rounds.append((index + 1, 1, 0, {(int(k), 8): int((correct == k).sum()) for k in set(correct)}))
    history = history_of(rounds)
    # The mean rate is 2/3; weighted by each round's own error it would come out above 0.685.
    own = np.array([pass_rate(counts)[1] for *_, counts in rounds])
    assert np.average(history.values, weights=own**-2.0) > 0.685
    assert np.average(history.values, weights=history.errors**-2.0) == pytest.approx(2 / 3, abs=0.015)
    assert np.sqrt((history.errors**2).mean()) == pytest.approx(history.values.std(), rel=0.1)


def test_a_point_stands_where_its_policy_was():
    one, two, none = {(1, 2): 1}, {(2, 2): 1}, {(0, 2): 1}
    history = history_of([(2, 2, 0, one), (3, 1, 0, two), (4, 1, 0, {}), (8, 4, 0, none)])
    assert history.steps.tolist() == [0, 2, 4]
    assert history.values.tolist() == [0.5, 1.0, 0.0]
    assert history.delays.tolist() == [2, 1, 4]
    assert len(history.until(2)) == 2


def test_sampled_ahead_a_point_stands_where_its_older_policy_was():
    count = {(1, 2): 1}
    # One round ahead, then two: never backwards.
    history = history_of([(2, 2, 0, count), (4, 2, 2, count), (6, 2, 2, count), (8, 2, 5, count)])
    assert history.steps.tolist() == [0, 0, 2, 2]
    assert history.intervals.tolist() == [2, 2, 2, 2]
    assert history.lags.tolist() == [0, 2, 2, 5]
    assert history.delays.tolist() == [2, 4, 4, 7]


def test_correlated_noise_counts_as_such_and_a_trend_does_not():
    """Noise of lag-1 correlation r multiplies the variance of a mean by (1 + r)/(1 − r): by 1 for r = 0 and by 4 for r
    = .6."""
    factors = {}
    for memory in (0.0, 0.6):
        factors_of_seeds = []
        for seed in range(20):
            noise = lfilter([1.0], [1, -memory], np.random.default_rng(seed).standard_normal(400))
            factors_of_seeds.append(noise_factor(0.3 + 0.001 * np.arange(400) + 0.02 * noise))
        factors[memory] = np.mean(factors_of_seeds)
    assert 1.0 <= factors[0.0] < 1.15
    assert 2.5 < factors[0.6] < 4.5
    assert noise_factor([0.1, 0.9] * 3) == noise_factor(np.full(50, 0.5)) == 1.0
