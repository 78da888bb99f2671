import numpy as np
import pytest
from scipy import integrate, stats

from benchmarks.papers import sigma_laws
from grpo.dynamics import sigma

ONE = np.array([1.0])


@pytest.mark.parametrize(
    ("pass_rate", "sizes"), [(0.5, (7, 11, 51)), (0.3, (9, 14, 61)), (0.1, (22, 36, 144)), (0.05, (42, 69, 273))]
)
def test_exact_smallest_group_sizes_as_printed(pass_rate, sizes):
    smallest = tuple(sigma_laws.smallest_group_size([pass_rate], ONE, shortfall) for shortfall in (0.1, 0.05, 0.01))
    assert smallest == sizes


def test_printed_fidelities_and_the_law_behind_them():
    assert sigma_laws.fidelity([0.5, 0.05], 8) == pytest.approx([0.9278, 0.5390], abs=5e-5)
    # 1 − φ is 1/(8Gpq) for GRPO, and half of 1/G more with the sample σ; it is 1/G for Dr. GRPO.
    for exponent, ddof, law in ((1.0, 0, 1 / (8 * 0.3 * 0.7)), (1.0, 1, 1 / (8 * 0.3 * 0.7) + 0.5), (0.0, 0, 1.0)):
        shortfall = 1 - sigma_laws.fidelity(0.3, 2000, exponent, ddof)
        assert shortfall * 2000 == pytest.approx(law, rel=2e-2)


def test_maxrl_loses_no_more_than_a_power_of_the_group_size():
    maxrl = {"exponent": 0.0, "mean_exponent": 1.0}
    p = np.array([0.05, 0.3, 0.9])
    assert sigma.drift(p, 8, **maxrl) == pytest.approx((1 - p) - (1 - p) ** 8)
    assert sigma_laws.fidelity(p, 8, **maxrl) == pytest.approx(1 - (1 - p) ** 7)
    # 0.95^(G−1) ≤ 0.1 from G = 46 on; GRPO has 42 at the same pass rate.
    assert sigma_laws.smallest_group_size([0.05], [1.0], 0.1, **maxrl) == 46


@pytest.mark.parametrize("dials", [(0.0, 1.0), (1.0, 0.5), (1.0, -0.5), (3.0, -1.0)])
def test_the_objective_on_the_plane_is_the_integral_of_its_weight(dials):
    alpha, beta = dials
    low, high = 0.02, 0.95
    area, _ = integrate.quad(lambda p: float(sigma_laws.weight(p, alpha, beta)), low, high)
    gained = sigma_laws.objective(high, alpha, beta) - sigma_laws.objective(low, alpha, beta)
    assert gained == pytest.approx(area, rel=1e-9)
    # The weight is the drift per unit of the variance p(1−p), which is what a step along Δs gains.
    assert sigma_laws.weight(0.3, alpha, beta) * 0.21 == pytest.approx(sigma.asymptotic_drift(0.3, alpha, beta))


def test_maxrl_ascends_the_logarithm():
    p = np.array([0.1, 0.5, 0.8])
    assert sigma_laws.objective(p, 0.0, 1.0) == pytest.approx(np.log(2 * p))


def test_silent_rates_closed_form_and_by_subsampling():
    assert sigma.silent_rate([0.5, 0.0, 1.0], 4) == pytest.approx([0.125, 1.0, 1.0])
    # 2 of 4 tries right: of the 6 pairs, one is all right and one all wrong.
    assert sigma_laws.subsampled_silent_rate(2, 4, 2) == pytest.approx(2 / 6)
    assert sigma_laws.subsampled_silent_rate([0, 64, 32], [64, 64, 64], 4) == pytest.approx(
        [1, 1, 2 * 32 * 31 * 30 * 29 / (64 * 63 * 62 * 61)]
    )


def test_subsampling_of_binomial_tries_gives_the_silent_rate_on_average():
    k = np.arange(17)
    average = stats.binom.pmf(k, 16, 0.2) @ sigma_laws.subsampled_silent_rate(k, np.full(17, 16), 5)
    assert average == pytest.approx(sigma.silent_rate(0.2, 5))


def test_objectives_of_the_three_settings():
    rates = np.array([0.02, 0.3, 0.5, 0.97])
    assert sigma_laws.objective(rates, 0.0) == pytest.approx(rates)
    assert sigma_laws.objective(rates, 1.0) == pytest.approx(2 * np.arcsin(np.sqrt(rates)))
    assert sigma_laws.objective(rates, 2.0) == pytest.approx(np.log(rates / (1 - rates)))


@pytest.mark.parametrize("exponent", [-1.0, 0.5, 1.5, 3.0])
def test_the_objective_is_the_integral_of_its_weight(exponent):
    low, high = 0.1, 0.8
    area, _ = integrate.quad(lambda p: sigma_laws.weight(p, exponent), low, high)
    assert sigma_laws.objective(high, exponent) - sigma_laws.objective(low, exponent) == pytest.approx(area)


def test_mean_fidelity_weighs_prompts_by_the_gradient_they_could_give():
    # A prompt that is never solved changes nothing.
    assert sigma.mean_fidelity([0.0, 0.5], [9.0, 1.0], 8) == pytest.approx(0.9278, abs=5e-5)
    assert sigma_laws.smallest_group_size([1e-6], ONE, 0.01, largest=64) is None
    assert np.isnan(sigma.mean_fidelity([0.0, 1.0], [1.0, 1.0], 8))
