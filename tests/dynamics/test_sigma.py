"""These tests check the spread of rewards, how difficult problems are, and where a round's completions go."""

import itertools
from collections import Counter

import numpy as np
import pytest

from benchmarks.papers.bernoulli import big_math_like
from grpo.dynamics import sigma
from grpo.dynamics.budget import expected_gradient, further_tries
from grpo.dynamics.difficulty import Difficulty, fit_difficulty
from grpo.dynamics.sigma import drift, silent_rate

ONE = np.array([1.0])


@pytest.mark.parametrize(("pass_rate", "ratio"), [(0.5, 0.84), (0.3, 0.78), (0.1, 0.59), (0.05, 0.52)])
def test_residual_dependence_of_the_drift_on_group_size(pass_rate, ratio):
    assert sigma.drift(pass_rate, 4, 1.0) / sigma.drift(pass_rate, 16, 1.0) == pytest.approx(ratio, abs=5e-3)
    assert sigma.drift(pass_rate, 4, 0.0) / sigma.drift(pass_rate, 16, 0.0) == pytest.approx(0.8)


def test_maxrl_moves_gradient_to_hard_prompts_only():
    rates, weights, edges = np.array([0.05, 0.5, 0.95]), np.full(3, 1 / 3), [0, 0.25, 0.75, 1]
    maxrl = sigma.gradient_mass(rates, weights, edges, 0.0, mean_exponent=1.0)
    assert maxrl == pytest.approx(np.array([0.95, 0.5, 0.05]) / 1.5)
    grpo = sigma.gradient_mass(rates, weights, edges, 1.0)
    assert grpo[0] == pytest.approx(grpo[2])
    finite = sigma.gradient_mass(rates, weights, edges, 0.0, group_size=4, mean_exponent=1.0)
    assert finite[0] < maxrl[0], "most groups of a hard prompt are silent"


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("mean_exponent", [-1.0, 0.0, 0.5, 1.0])
@pytest.mark.parametrize("exponent", [-0.5, 0.0, 0.7, 1.0, 2.0])
def test_drift_is_the_mean_over_every_outcome(exponent, mean_exponent, ddof):
    """The mean is over all 2^G reward vectors. Their advantages are those of a trainer, along scores of ±½."""
    p, size = 0.3, 6
    total = 0.0
    for rewards in itertools.product((0.0, 1.0), repeat=size):
        rewards = np.array(rewards)
        if rewards.std() == 0:
            continue
        advantages = (rewards - rewards.mean()) / rewards.std(ddof=ddof) ** exponent / rewards.mean() ** mean_exponent
        # Scores s = r − ½ make Δs = 1.
        gradient = (advantages * (rewards - 0.5)).mean()
        total += p ** rewards.sum() * (1 - p) ** (size - rewards.sum()) * gradient
    assert sigma.drift(p, size, exponent, ddof, mean_exponent) == pytest.approx(total, rel=1e-12)


def test_gradient_mass_moves_to_the_extremes_with_the_exponent():
    rates, weights = np.array([0.05, 0.5]), np.array([1.0, 1.0])
    dr = sigma.gradient_mass(rates, weights, [0, 0.1, 1], 0.0)
    grpo = sigma.gradient_mass(rates, weights, [0, 0.1, 1], 1.0)
    assert dr == pytest.approx([0.0475 / 0.2975, 0.25 / 0.2975])
    assert grpo == pytest.approx(np.sqrt([0.0475, 0.25]) / (np.sqrt(0.0475) + 0.5))
    assert sigma.gradient_mass(rates, weights, [0, 1], 1.0, group_size=4).sum() == pytest.approx(1)


def drawn(rates, sizes):
    """Draws counts of (correct, tried) for prompts with these pass rates and group sizes."""
    generator = np.random.default_rng(0)
    return Counter((int(generator.binomial(size, rate)), int(size)) for rate, size in zip(rates, sizes, strict=True))


def test_one_kind_of_prompt_is_recognized():
    difficulty = fit_difficulty({(4, 8): 50.0, (3, 8): 40.0, (5, 8): 40.0, (2, 8): 20.0, (6, 8): 20.0})
    assert difficulty.mean == pytest.approx(0.5, abs=0.01)
    spread = difficulty.weights @ (difficulty.pass_rates - difficulty.mean) ** 2
    # Binomial noise alone: the pass rates themselves hardly differ.
    assert spread < 0.01


def test_silent_rates_of_other_group_sizes_come_out_right_where_plugging_in_fails():
    generator = np.random.default_rng(5)
    rates = generator.beta(0.5, 1.5, 3000)
    sizes = generator.choice([4, 8], 3000)
    counts = drawn(rates, sizes)
    difficulty = fit_difficulty(counts)
    for size in (2, 16):
        truth = silent_rate(rates, size).mean()
        assert difficulty.weights @ silent_rate(difficulty.pass_rates, size) == pytest.approx(truth, abs=0.02)
    plugged = sum(number * silent_rate(k / size, 16) for (k, size), number in counts.items()) / 3000
    assert plugged > silent_rate(rates, 16).mean() + 0.05


def test_prompts_that_are_never_or_always_solved_are_distinguished_from_hard_and_easy_ones():
    difficulty = fit_difficulty({(0, 64): 300.0, (64, 64): 100.0, (32, 64): 600.0})
    assert difficulty.weights[difficulty.pass_rates < 0.01].sum() == pytest.approx(0.3, abs=0.01)
    assert difficulty.weights[difficulty.pass_rates > 0.99].sum() == pytest.approx(0.1, abs=0.01)


def test_a_prompts_own_tries_sharpen_what_is_known_of_it():
    prior = fit_difficulty({(0, 8): 10.0, (4, 8): 10.0, (8, 8): 10.0})
    means = [prior.posterior(correct, 8).mean for correct in (0, 4, 8)]
    assert means[0] < 0.1 and means[1] == pytest.approx(0.5, abs=0.05) and means[2] > 0.9
    assert prior.posterior(0, 0).mean == pytest.approx(prior.mean)


def test_without_counts_everything_is_possible():
    assert fit_difficulty({}).weights.max() == pytest.approx(1 / 101)


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
