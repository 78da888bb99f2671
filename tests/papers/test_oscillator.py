import numpy as np
import pytest
from scipy.integrate import solve_ivp

from benchmarks.papers.oscillator import oscillator, propagate, sampled_oscillator


def from_rest(times, ratio, frequency):
    """Returns E(t)/E(0) for E(0) = 1 and Ė(0) = 0."""
    return propagate(times, 1.0, 0.0, ratio, frequency)[0]


def test_coefficients_and_what_follows_from_them():
    model = oscillator(momentum=0.9, stiffness=0.01, lag=4)
    assert (model.mass, model.damping, model.stiffness) == pytest.approx((0.95 + 0.08, 0.1 - 0.04, 0.01))
    assert model.damping_ratio == pytest.approx(0.06 / (2 * np.sqrt(0.01 * 1.03)))


def test_a_gradient_under_sample_and_hold_has_the_mean_of_its_samples_ages():
    """With τ = 4, sampled 3 steps ahead, the ages are 3, 4, 5 and 6. Their mean is 4.5, and that of their squares
    21.5."""
    sampled = sampled_oscillator(momentum=0.9, stiffness=0.01, interval=4, lag=3)
    assert (sampled.mass, sampled.damping) == pytest.approx((0.95 + 0.01 * 21.5 / 2, 0.1 - 0.045))
    assert sampled_oscillator(0.9, 0.01, 1, lag=5) == oscillator(0.9, 0.01, lag=5)


@pytest.mark.parametrize(
    ("interval", "lag", "stiffness"), [(2, 0, 1.8e-3), (8, 0, 1.5e-3), (16, 0, 7e-4), (4, 4, 1.4e-3)]
)
def test_training_that_samples_and_holds_decays_at_the_rate_of_its_model(interval, lag, stiffness):
    """Momentum is .9, and each round keeps the gradient of its first policy. A lag of all τ steps is far off."""
    past, velocity, sampled = [1.0] * (interval + lag + 1), 0.0, 1.0
    for step in range(600 * interval):
        sampled = past[-1 - lag] if step % interval == 0 else sampled
        velocity = 0.9 * velocity - stiffness * sampled
        past.append(past[-1] + velocity)
    window = 20 * interval
    measured = np.log(past[-1 - window] / past[-1]) / window

    def slowest(model):
        return -np.roots([model.mass, model.damping, model.stiffness]).real.max()

    assert slowest(sampled_oscillator(0.9, stiffness, interval, lag)) == pytest.approx(measured, rel=1e-3)
    assert slowest(oscillator(0.9, stiffness, interval + lag)) > 1.04 * measured


@pytest.mark.parametrize("ratio", [0.05, 0.7, 0.999999, 1.0, 1.000001, 1.3, 8.0, 300.0])
def test_the_closed_form_solves_the_equation_in_every_regime(ratio):
    times = np.linspace(0, 12, 40)
    for start in ((1.0, 0.0), (0.3, -0.8)):
        solved = solve_ivp(
            lambda t, y: [y[1], -2 * ratio * 0.5 * y[1] - 0.25 * y[0]],
            (0, 12),
            start,
            t_eval=times,
            rtol=1e-10,
            atol=1e-12,
            method="LSODA",
        )
        position, velocity = propagate(times, *start, ratio, 0.5)
        assert position == pytest.approx(solved.y[0], abs=2e-7)
        assert velocity == pytest.approx(solved.y[1], abs=2e-7)


def test_regimes_join_smoothly_at_critical_damping():
    times = np.array([0.1, 1.0, 7.0, 60.0])
    critical = (1 + times) * np.exp(-times)
    assert from_rest(times, 1.0, 1.0) == pytest.approx(critical, rel=1e-12)
    below, above = (from_rest(times, 1 + side * 1e-5, 1.0) for side in (-1, 1))
    # Values meet, and so do slopes in ζ: the middle is the mean to second order.
    assert (below + above) / 2 == pytest.approx(critical, rel=1e-6)
    assert np.abs(above - below).max() < 1e-4


def test_nothing_overflows_or_cancels():
    assert from_rest(1e9, 5.0, 1.0) == 0.0
    assert from_rest([0.0, 1e-12], 1e6, 1e-3) == pytest.approx([1.0, 1.0])
    # Far overdamped: one exponential of rate ω/(2ζ).
    assert from_rest(2e6, 1e6, 1.0) == pytest.approx(np.exp(-1.0), rel=1e-6)
    assert np.isfinite(from_rest(np.linspace(0, 100, 50), -0.2, 0.5)).all()
