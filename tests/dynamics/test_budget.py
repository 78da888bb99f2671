"""These tests check where the completions of a round with ragged groups go."""

from collections import Counter

import numpy as np
import pytest

from benchmarks.papers.bernoulli import big_math_like
from grpo.dynamics.budget import expected_gradient, further_tries
from grpo.dynamics.difficulty import Difficulty, fit_difficulty
from grpo.dynamics.sigma import drift

# A round of 200 prompts, four tries each: a third is never solved, a tenth always, the rest lie between.
EVERYONE = [(0, 4)] * 90 + [(1, 4)] * 35 + [(2, 4)] * 30 + [(3, 4)] * 25 + [(4, 4)] * 20


def test_from_nothing_the_expected_gradient_is_the_drift():
    prior = Difficulty(np.array([0.1, 0.5]), np.array([0.25, 0.75]))
    gradients = expected_gradient(prior, 0, 0, largest=8, exponent=1.0)[1:]
    assert gradients == pytest.approx([0.25 * drift(0.1, n, 1.0) + 0.75 * drift(0.5, n, 1.0) for n in range(1, 9)])


def test_expected_gradient_after_counts_by_hand():
    # p = 1/2, one wrong answer so far. One more: right with 1/2, then sigma = 1/2. Two more: 1 or 2 of 3 right with
    # 3/4, sigma = sqrt(2)/3 either way.
    even = Difficulty(np.array([0.5]), np.array([1.0]))
    assert expected_gradient(even, 0, 1, 3, exponent=1.0) == pytest.approx([0.0, 0.25, 0.75 * np.sqrt(2) / 3])
    assert expected_gradient(even, 0, 1, 3, exponent=0.0) == pytest.approx([0.0, 0.125, 0.75 * 2 / 9])


def test_no_more_than_the_budget_is_spent_and_no_group_grows_too_large():
    more = further_tries(EVERYONE, budget=20, largest=32, exponent=1.0)
    assert sum(more) == 20 and min(more) >= 0
    assert max(further_tries(EVERYONE, budget=4000, largest=12, exponent=1.0)) == 8
    assert further_tries(EVERYONE, budget=0, largest=32, exponent=1.0) == [0] * 200
    assert further_tries(EVERYONE, budget=9, largest=4, exponent=1.0) == [0] * 200


def test_prompts_that_are_silent_for_sure_get_nothing():
    assert further_tries([(0, 64)] * 200 + [(64, 64)] * 200, 64, 128, 1.0) == [0] * 400
    # Silent in four tries, but half of the round's prompts are even odds: it may well speak.
    assert further_tries([(0, 4), (2, 4)] + [(32, 64)] * 100 + [(0, 64)] * 100, 4, 128, 1.0) == [4] + [0] * 201


@pytest.mark.parametrize("exponent", [0.0, 1.0, 1.5])
def test_no_other_spread_has_more_expected_gradient(exponent):
    budget, counts = 6, [(0, 4), (1, 4), (4, 4)]
    prior = fit_difficulty(Counter(counts))
    curves = [expected_gradient(prior, *count, 10, exponent) for count in counts]

    def worth(more):
        return sum(curve[extra] for curve, extra in zip(curves, more, strict=True))

    every = [more for more in np.ndindex(7, 7, 7) if sum(more) <= budget]
    tries = further_tries(counts, budget, 10, exponent)
    assert worth(tries) == pytest.approx(max(map(worth, every)), rel=0.02)


def test_the_same_completions_give_more_gradient_and_fewer_silent_groups():
    generator = np.random.default_rng(0)
    sigma, silent = np.zeros(2), np.zeros(2)
    for seed in range(10):
        rates = big_math_like(64, seed)
        first = generator.binomial(4, rates)
        counts = [(int(correct), 4) for correct in first]
        more = np.array(further_tries(counts, budget=4 * 64, largest=32, exponent=1.0))
        assert more.sum() <= 4 * 64
        for arm, extra in enumerate((np.full(64, 4), more)):
            share = (first + generator.binomial(extra, rates)) / (4 + extra)
            sigma[arm] += np.sqrt(share * (1 - share)).sum()
            silent[arm] += (share * (1 - share) == 0).sum()
    assert sigma[1] > 1.05 * sigma[0]
    assert silent[1] < 0.95 * silent[0]
