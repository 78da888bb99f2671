from collections import Counter

import numpy as np
import pytest

from grpo.dynamics.difficulty import fit_difficulty
from grpo.dynamics.sigma import silent_rate


def drawn(rates, sizes, seed=0):
    """Draws counts of (correct, tried) for prompts with these pass rates and group sizes."""
    generator = np.random.default_rng(seed)
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
