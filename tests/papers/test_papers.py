"""These tests check the papers' numbers, from the same functions that the scripts of benchmarks/papers run."""

import numpy as np
import pytest

from benchmarks.papers import bandit_model as bandit
from benchmarks.papers import bernoulli, comparison, identity, invariance, plane, slow_start
from benchmarks.papers.ensemble import Policy, pass_rates
from benchmarks.papers.stability import critical_gain


def ours(reproduction):
    return {row.quantity: row.ours for table in reproduction.comparisons for row in table.rows}


@pytest.fixture(scope="module")
def identity_numbers():
    return ours(identity.reproduce())


@pytest.mark.slow
def test_big_math_numbers_on_the_stand_in(identity_numbers):
    """The expected numbers are as printed: 59/44/32/23/17 % silent, 59/43/30 % subsampled, extreme mass 13.9 → 24.7 %,
    medium 22.8 → 17.5 %."""

    def percent(name):
        return float(identity_numbers[name].rstrip("%"))

    silent = [percent(f"silent groups at G = {size}") for size in (4, 8, 16, 32, 64)]
    assert silent == pytest.approx([59, 44, 32, 23, 17], abs=0.6)
    again = [percent(f"the same, subsampling the 64 tries, G = {size}") for size in (4, 8, 16)]
    assert again == pytest.approx([59, 43, 30], abs=1)
    assert percent("gradient mass on extreme prompts, Dr. GRPO") == pytest.approx(13.9, abs=1)
    assert percent("gradient mass on extreme prompts, GRPO") == pytest.approx(24.7, abs=1)
    assert percent("gradient mass on medium prompts, Dr. GRPO") == pytest.approx(22.8, abs=1.5)
    assert percent("gradient mass on medium prompts, GRPO") == pytest.approx(17.5, abs=1.5)


def test_the_plane_marks_the_known_methods_and_has_their_numbers():
    sizes, mass = plane.reproduce(np.array([0.05, 0.5, 0.95])).comparisons
    names = {row.quantity: (row.expected, row.ours) for row in sizes.rows}
    assert len(names) == 12
    # 7, 22 and 42 are the printed sizes of GRPO; MaxRL's are 1 + ln .1/ln(1 − p), rounded up.
    assert names["α = 1, β = 0"] == ("GRPO, DAPO: 2·arcsin√p", "7 / 22 / 42")
    assert names["α = 0, β = 0"] == ("Dr. GRPO, RLOO: p", "10 / 10 / 10")
    assert names["α = 0, β = 1"] == ("MaxRL: log p", "5 / 23 / 46")
    assert {row.quantity: row.expected for row in mass.rows}["α = 0, β = 1"] == "63% / 33% / 3%"


def test_the_six_thousand_prompts_end_where_printed(identity_numbers):
    assert identity_numbers["hardest quarter ends at, GRPO"] == "0.99"
    assert identity_numbers["hardest quarter ends at, Dr. GRPO"] == "0.88"
    assert float(identity_numbers["silent rate against its closed form, R²"]) >= 0.999


def test_redrawing_asks_the_same_prompt_and_refilling_others():
    generator = np.random.default_rng(0)
    # One prompt that can never be mixed among many that nearly always are.
    rates = np.array([0.0] + [0.5] * 99)
    gains, first, tries = bernoulli.redrawn(rates, 8, generator)
    assert gains[0] == 0 and first[0] == 0
    assert tries >= 8 * (100 + 4)
    gains, _, tries = bernoulli.refilled(rates, 8, generator)
    assert gains[0] == 0 and gains.max() > 0.5 and 8 * 101 <= tries < 8 * 110


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "law", "momentum"),
    [
        ("constant_lag", "constant_lag", 0.0),
        ("constant_lag", "constant_lag", 0.9),
        ("sample_and_hold", "sample_and_hold", 0.0),
        ("sample_and_hold", "sample_and_hold", 0.9),
        ("ratio", "sample_and_hold", 0.9),
        ("ratio_and_loss", "fresh", 0.0),
    ],
)
def test_the_bandit_loses_stability_where_the_eigenvalues_say(mode, law, momentum):
    """Importance weights leave the threshold where it is while the KL penalty is inside the reward. With the penalty in
    the loss, nothing is stale."""
    step_size = bandit.critical_step_size(bandit.MODES[mode], momentum, 4)
    gain = step_size * bandit.curvature() * 4 / (1 - momentum)
    assert gain == pytest.approx(critical_gain(law, momentum, 4), rel=2e-3)


def test_stiffness_is_measured_from_the_early_curve():
    for momentum in (0.0, 0.9):
        assert bandit.measured_stiffness(momentum, 0.01) == pytest.approx(0.01 * bandit.curvature(), rel=5e-3)


def test_the_bandits_gradient_is_that_of_its_objective():
    def objective(theta):
        rate = 1 / (1 + np.exp(-theta))
        divergence = rate * np.log(2 * rate) + (1 - rate) * np.log(2 * (1 - rate))
        return rate - bandit.PENALTY * divergence

    for theta in (-1.0, 0.3, 2.5):
        slope = (objective(theta + 1e-5) - objective(theta - 1e-5)) / 2e-5
        assert bandit.exact(theta) == pytest.approx(slope, abs=1e-8)
        past = np.array([theta])
        # On-policy, every way of reading the samples is the exact gradient.
        for gradient in bandit.MODES.values():
            assert gradient(past, 0, 4) == pytest.approx(bandit.exact(theta))


@pytest.mark.slow
def test_group_size_changes_the_mean_curve_under_sgd_and_hardly_under_adam():
    numbers = ours(invariance.reproduce())
    for rate, expected in ((0.5, 0.84), (0.3, 0.78), (0.1, 0.59), (0.05, 0.52)):
        assert float(numbers[f"drift G = 4 : G = 16 at p = {rate}, GRPO"]) == pytest.approx(expected, abs=0.015)
        assert float(numbers[f"drift G = 4 : G = 16 at p = {rate}, Dr. GRPO"]) == pytest.approx(0.80, abs=0.015)
    far = "largest distance of a mean curve from that of G = 32"
    assert float(numbers[f"{far}, sgd"]) > 0.15 > 0.03 > float(numbers[f"{far}, adam"])
    assert float(numbers["exponent of G in the variance"]) == pytest.approx(-1.1, abs=0.15)


def test_momentum_and_gating_delay_a_hard_start_together():
    delays = {momentum: slow_start.delay(slow_start._curve(0.05, momentum)) for momentum in (0.0, 0.5, 0.97)}
    assert abs(delays[0.5] - delays[0.0]) <= 3
    assert delays[0.97] - delays[0.0] > 20
    assert slow_start.delay(slow_start._curve(0.4, 0.0)) <= 1


def test_without_noise_an_ensemble_follows_the_gating_law():
    """Dr. GRPO's drift is (1 − 1/G)·p(1−p), so that dp/dt = η(1 − 1/G)[p(1−p)]²."""
    policy = Policy(group_size=64, exponent=0.0, start=0.3, prompts=64, step_size=0.05)
    rates = pass_rates(policy, 200, 200).mean(axis=1)
    p = 0.3
    for _ in range(200):
        p += 0.05 * (63 / 64) * (p * (1 - p)) ** 2
    assert rates[-1] == pytest.approx(p, abs=2e-3)


@pytest.mark.slow
def test_a_reproduction_prints_writes_and_draws(tmp_path, capsys):
    rates = tmp_path / "rates.csv"
    rates.write_text("llama8b_solve_rate\n" + "".join(f"{k / 64}\n" for k in range(65)))
    comparison.command([str(tmp_path), f"rates={rates}"], identity.reproduce, rates=comparison.pass_rates)
    printed = capsys.readouterr().out
    assert "The pass rates are the 65 given ones." in printed and "0.9278" in printed
    assert (tmp_path / "identity.png").stat().st_size > 10_000
    assert "| fidelity φ(8, 0.5) | 0.9278 | 0.9278 |" in (tmp_path / "identity.md").read_text()
