import itertools

import numpy as np
import pytest

from grpo.dynamics import sigma

ONE = np.array([1.0])


@pytest.mark.parametrize(("pass_rate", "ratio"), [(0.5, 0.84), (0.3, 0.78), (0.1, 0.59), (0.05, 0.52)])
def test_residual_dependence_of_the_drift_on_group_size(pass_rate, ratio):
    assert sigma.drift(pass_rate, 4, 1.0) / sigma.drift(pass_rate, 16, 1.0) == pytest.approx(ratio, abs=5e-3)
    assert sigma.drift(pass_rate, 4, 0.0) / sigma.drift(pass_rate, 16, 0.0) == pytest.approx(0.8)


def test_drift_of_dr_grpo_is_the_unbiased_variance_shrunk():
    rates = np.array([0.0, 0.05, 0.5, 0.9, 1.0])
    assert sigma.drift(rates, 8, 0.0) == pytest.approx(7 / 8 * rates * (1 - rates))


@pytest.mark.parametrize("dials", [(0.0, 1.0), (1.0, 0.5), (0.5, -1.0), (2.0, 1.0)])
def test_the_drift_on_the_plane_is_the_mean_over_every_outcome(dials):
    alpha, beta = dials
    p, size, total = 0.3, 5, 0.0
    for outcome in itertools.product((0.0, 1.0), repeat=size):
        rewards = np.array(outcome)
        if 0 < rewards.sum() < size:
            advantages = (rewards - rewards.mean()) / rewards.std() ** alpha / rewards.mean() ** beta
            chance = p ** rewards.sum() * (1 - p) ** (size - rewards.sum())
            total += chance * (advantages * rewards).mean()
    assert sigma.drift(p, size, alpha, mean_exponent=beta) == pytest.approx(total, rel=1e-12)


def test_maxrl_moves_gradient_to_hard_prompts_only():
    rates, weights, edges = np.array([0.05, 0.5, 0.95]), np.full(3, 1 / 3), [0, 0.25, 0.75, 1]
    maxrl = sigma.gradient_mass(rates, weights, edges, 0.0, mean_exponent=1.0)
    assert maxrl == pytest.approx(np.array([0.95, 0.5, 0.05]) / 1.5)
    grpo = sigma.gradient_mass(rates, weights, edges, 1.0)
    assert grpo[0] == pytest.approx(grpo[2])
    finite = sigma.gradient_mass(rates, weights, edges, 0.0, group_size=4, mean_exponent=1.0)
    assert finite[0] < maxrl[0], "most groups of a hard prompt are silent"


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("exponent", [-0.5, 0.0, 0.7, 1.0, 2.0])
def test_drift_is_the_mean_over_every_outcome(exponent, ddof):
    """The mean is over all 2^G reward vectors. Their advantages are those of a trainer, along scores of ±½."""
    p, size = 0.3, 6
    total = 0.0
    for rewards in itertools.product((0.0, 1.0), repeat=size):
        rewards = np.array(rewards)
        if rewards.std() == 0:
            continue
        advantages = (rewards - rewards.mean()) / rewards.std(ddof=ddof) ** exponent
        # Scores s = r − ½ make Δs = 1.
        gradient = (advantages * (rewards - 0.5)).mean()
        total += p ** rewards.sum() * (1 - p) ** (size - rewards.sum()) * gradient
    assert sigma.drift(p, size, exponent, ddof) == pytest.approx(total, rel=1e-12)


def test_gradient_mass_moves_to_the_extremes_with_the_exponent():
    rates, weights = np.array([0.05, 0.5]), np.array([1.0, 1.0])
    dr = sigma.gradient_mass(rates, weights, [0, 0.1, 1], 0.0)
    grpo = sigma.gradient_mass(rates, weights, [0, 0.1, 1], 1.0)
    assert dr == pytest.approx([0.0475 / 0.2975, 0.25 / 0.2975])
    assert grpo == pytest.approx(np.sqrt([0.0475, 0.25]) / (np.sqrt(0.0475) + 0.5))
    assert sigma.gradient_mass(rates, weights, [0, 1], 1.0, group_size=4).sum() == pytest.approx(1)
