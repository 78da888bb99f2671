import numpy as np
import pytest

from grpo.dynamics.history import history_of, pass_rate


def test_pass_rate_and_error_by_hand():
    # Groups of 4 with 0, 2, 2 and 4 correct: 8 of 16.
    rate, error = pass_rate({(0, 4): 1, (2, 4): 2, (4, 4): 1})
    assert rate == 0.5
    # Totals differ from 2 by −2, 0, 0, 2: 8/16² · 4/3.
    assert error == pytest.approx(np.sqrt(8 / 256 * 4 / 3))


def test_a_round_without_a_right_answer_is_not_known_to_be_hopeless():
    rate, error = pass_rate({(0, 8): 4})
    assert rate == 0.0
    assert error == pytest.approx(np.sqrt((1 / 34) * (33 / 34) / 32))


def test_errors_of_many_rounds_have_the_size_of_their_scatter():
    generator = np.random.default_rng(0)
    found = []
    for _ in range(800):
        rates = generator.beta(1.0, 2.0, 16)
        counts = {}
        for correct in generator.binomial(8, rates):
            counts[(int(correct), 8)] = counts.get((int(correct), 8), 0) + 1
        found.append(pass_rate(counts))
    rates, errors = np.array(found).T
    assert np.sqrt((errors**2).mean()) == pytest.approx(rates.std(), rel=0.05)


def test_a_point_stands_where_its_policy_was():
    history = history_of([(2, 2, {(1, 2): 1}), (3, 1, {(2, 2): 1}), (4, 1, {}), (8, 4, {(0, 2): 1})])
    assert history.steps.tolist() == [0, 2, 4]
    assert history.values.tolist() == [0.5, 1.0, 0.0]
    assert history.intervals.tolist() == [2, 1, 4]
    assert len(history.until(2)) == 2
