import itertools

import numpy as np
import pytest
from scipy import integrate, stats

from grpo.dynamics import sigma

ONE = np.array([1.0])


@pytest.mark.parametrize(
    ("pass_rate", "sizes"), [(0.5, (7, 11, 51)), (0.3, (9, 14, 61)), (0.1, (22, 36, 144)), (0.05, (42, 69, 273))]
)
def test_exact_smallest_group_sizes_as_printed(pass_rate, sizes):
    smallest = tuple(sigma.smallest_group_size([pass_rate], ONE, shortfall) for shortfall in (0.1, 0.05, 0.01))
    assert smallest == sizes


def test_printed_fidelities_and_the_law_behind_them():
    assert sigma.fidelity([0.5, 0.05], 8) == pytest.approx([0.9278, 0.5390], abs=5e-5)
    # 1 − φ is 1/(8Gpq) for GRPO, and half of 1/G more with the sample σ; it is 1/G for Dr. GRPO.
    for exponent, ddof, law in ((1.0, 0, 1 / (8 * 0.3 * 0.7)), (1.0, 1, 1 / (8 * 0.3 * 0.7) + 0.5), (0.0, 0, 1.0)):
        shortfall = 1 - sigma.fidelity(0.3, 2000, exponent, ddof)
        assert shortfall * 2000 == pytest.approx(law, rel=2e-2)


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


def test_maxrl_loses_no_more_than_a_power_of_the_group_size():
    maxrl = {"exponent": 0.0, "mean_exponent": 1.0}
    p = np.array([0.05, 0.3, 0.9])
    assert sigma.drift(p, 8, **maxrl) == pytest.approx((1 - p) - (1 - p) ** 8)
    assert sigma.fidelity(p, 8, **maxrl) == pytest.approx(1 - (1 - p) ** 7)
    # 0.95^(G−1) ≤ 0.1 from G = 46 on; GRPO has 42 at the same pass rate.
    assert sigma.smallest_group_size([0.05], [1.0], 0.1, **maxrl) == 46


@pytest.mark.parametrize("dials", [(0.0, 1.0), (1.0, 0.5), (1.0, -0.5), (3.0, -1.0)])
def test_the_objective_on_the_plane_is_the_integral_of_its_weight(dials):
    alpha, beta = dials
    low, high = 0.02, 0.95
    area, _ = integrate.quad(lambda p: float(sigma.weight(p, alpha, beta)), low, high)
    gained = sigma.objective(high, alpha, beta) - sigma.objective(low, alpha, beta)
    assert gained == pytest.approx(area, rel=1e-9)
    # The weight is the drift per unit of the variance p(1−p), which is what a step along Δs gains.
    assert sigma.weight(0.3, alpha, beta) * 0.21 == pytest.approx(sigma.asymptotic_drift(0.3, alpha, beta))


def test_maxrl_ascends_the_logarithm():
    p = np.array([0.1, 0.5, 0.8])
    assert sigma.objective(p, 0.0, 1.0) == pytest.approx(np.log(2 * p))


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


def test_silent_rates_closed_form_and_by_subsampling():
    assert sigma.silent_rate([0.5, 0.0, 1.0], 4) == pytest.approx([0.125, 1.0, 1.0])
    # 2 of 4 tries right: of the 6 pairs, one is all right and one all wrong.
    assert sigma.subsampled_silent_rate(2, 4, 2) == pytest.approx(2 / 6)
    assert sigma.subsampled_silent_rate([0, 64, 32], [64, 64, 64], 4) == pytest.approx(
        [1, 1, 2 * 32 * 31 * 30 * 29 / (64 * 63 * 62 * 61)]
    )


def test_subsampling_of_binomial_tries_gives_the_silent_rate_on_average():
    k = np.arange(17)
    average = stats.binom.pmf(k, 16, 0.2) @ sigma.subsampled_silent_rate(k, np.full(17, 16), 5)
    assert average == pytest.approx(sigma.silent_rate(0.2, 5))


def test_objectives_of_the_three_settings():
    rates = np.array([0.02, 0.3, 0.5, 0.97])
    assert sigma.objective(rates, 0.0) == pytest.approx(rates)
    assert sigma.objective(rates, 1.0) == pytest.approx(2 * np.arcsin(np.sqrt(rates)))
    assert sigma.objective(rates, 2.0) == pytest.approx(np.log(rates / (1 - rates)))


@pytest.mark.parametrize("exponent", [-1.0, 0.5, 1.5, 3.0])
def test_the_objective_is_the_integral_of_its_weight(exponent):
    low, high = 0.1, 0.8
    area, _ = integrate.quad(lambda p: sigma.weight(p, exponent), low, high)
    assert sigma.objective(high, exponent) - sigma.objective(low, exponent) == pytest.approx(area)


def test_gradient_mass_moves_to_the_extremes_with_the_exponent():
    rates, weights = np.array([0.05, 0.5]), np.array([1.0, 1.0])
    dr = sigma.gradient_mass(rates, weights, [0, 0.1, 1], 0.0)
    grpo = sigma.gradient_mass(rates, weights, [0, 0.1, 1], 1.0)
    assert dr == pytest.approx([0.0475 / 0.2975, 0.25 / 0.2975])
    assert grpo == pytest.approx(np.sqrt([0.0475, 0.25]) / (np.sqrt(0.0475) + 0.5))
    assert sigma.gradient_mass(rates, weights, [0, 1], 1.0, group_size=4).sum() == pytest.approx(1)


def test_mean_fidelity_weighs_prompts_by_the_gradient_they_could_give():
    # A prompt that is never solved changes nothing.
    assert sigma.mean_fidelity([0.0, 0.5], [9.0, 1.0], 8) == pytest.approx(0.9278, abs=5e-5)
    assert sigma.smallest_group_size([1e-6], ONE, 0.01, largest=64) is None
    assert np.isnan(sigma.mean_fidelity([0.0, 1.0], [1.0, 1.0], 8))
