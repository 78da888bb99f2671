import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import logit
from scipy.stats import chi2

from benchmarks.papers.identify import fit_law, identify, laws
from benchmarks.papers.law_intervals import holds
from benchmarks.papers.laws import MIXTURE, gating_law, oscillator_law
from grpo.dynamics.history import History
from tests.dynamics.synthetic import measured, oscillating, sigmoid


def test_without_noise_the_constants_come_back():
    curve = oscillating(120, start=0.2, plateau=0.8, stiffness=0.008, inertia=0.95)
    fit = fit_law(oscillator_law(0.9), measured(curve, prompts=10**6))
    constants = fit.parameters
    assert constants["start"] == pytest.approx(0.2, abs=2e-3)
    assert constants["plateau"] == pytest.approx(0.8, abs=2e-3)
    assert constants["stiffness"] == pytest.approx(0.008, rel=0.02)


def test_a_change_of_the_refresh_interval_in_the_middle_is_followed():
    law = oscillator_law(0.9)
    intervals = np.array([1.0] * 20 + [8.0] * 40)
    steps = np.concatenate([[0.0], np.cumsum(intervals)[:-1]])
    truth = np.array([-1.4, 1.4, np.log(0.003), np.log(0.95)])
    history = measured(law.predict(truth, steps, intervals, 0 * steps), prompts=10**6, interval=intervals)
    assert fit_law(law, history).parameters["stiffness"] == pytest.approx(0.003, rel=0.02)
    # Read with the wrong intervals the same curve gives another stiffness.
    ignored = measured(law.predict(truth, steps, intervals, 0 * steps), prompts=10**6, interval=intervals)
    ignored = replace(ignored, intervals=np.ones(60))
    assert abs(fit_law(law, ignored).parameters["stiffness"] / 0.003 - 1) > 0.05


@pytest.mark.parametrize(
    ("momentum", "interval", "lag"),
    [(0.9, 1, 0), (0.9, 8, 0), (0.9, 16, 0), (0.9, 32, 0), (0.5, 8, 0), (0.9, 8, 8), (0.9, 1, 8), (0.9, 8, 16)],
)
def test_the_stiffness_of_training_that_holds_its_samples_comes_back(momentum, interval, lag):
    """Every step of a round takes the gradient at the round's beginning, as training does with the samples of a round,
    or at a policy `lag` steps older, where they were sampled ahead.

    Read with a constant lag of τ steps the stiffness came out 1, 6, 11, 20 and 6 % low, and with a lag read as a longer
    round 7 to 13 % high.
    """
    stiffness, rounds = (1 - momentum) / 67, max(400 // interval, 12)
    distances, velocity = [1.0], 0.0
    sampled = [max(interval * index - lag, 0) for index in range(rounds)]
    for policy in sampled:
        for _ in range(interval):
            velocity = momentum * velocity - stiffness * distances[policy]
            distances.append(distances[-1] + velocity)
    history = History(
        np.array(sampled, float),
        0.8 - 0.6 * np.array(distances)[sampled],
        np.full(rounds, 0.005),
        np.full(rounds, float(interval)),
        np.array([interval * index - policy for index, policy in enumerate(sampled)], float),
    )
    assert fit_law(oscillator_law(momentum), history).parameters["stiffness"] == pytest.approx(stiffness, rel=0.01)
    if lag:
        longer = replace(history, intervals=history.delays, lags=np.zeros(rounds))
        assert fit_law(oscillator_law(momentum), longer).parameters["stiffness"] > 1.06 * stiffness


@pytest.mark.slow
def test_each_law_is_chosen_on_its_own_curve():
    # Underdamped: only the oscillator overshoots.
    overshooting = measured(oscillating(100, plateau=0.6, stiffness=0.03, inertia=4.0), prompts=64)
    assert identify(overshooting, 0.9).fits[0].law.name == "oscillator"
    exponential = 0.8 - 0.6 * np.exp(-np.arange(100) / 20)
    assert identify(measured(exponential, prompts=64), 0.9).fits[0].law.name == "exponential"
    assert identify(measured(sigmoid(100), prompts=64), 0.9).fits[0].law.name == "sigmoid"
    assert identify(measured(np.full(60, 0.3)), 0.9).fits[0].law.name == "constant"


def test_the_mixture_law_is_exponentials_of_exponentially_distributed_rates():
    steps, time = np.array([0.0, 5.0, 40.0, 200.0]), 20.0
    # Mean of exp(-rate·t) over rates with density time·exp(-rate·time).
    share = [quad(lambda rate, t=t: time * np.exp(-rate * (time + t)), 0, np.inf)[0] for t in steps]
    predicted = MIXTURE.predict(np.array([logit(0.2), logit(0.9), np.log(time)]), steps, np.ones(4), np.zeros(4))
    assert predicted == pytest.approx(0.9 - 0.7 * np.array(share))
    curve = MIXTURE.predict(
        np.array([logit(0.2), logit(0.9), np.log(time)]), np.arange(200.0), np.ones(200), np.zeros(200)
    )
    identification = identify(measured(curve, prompts=256), 0.9)
    assert identification.fits[0].law.name == "mixture"


def test_gating_is_distinguished_from_a_single_exponential():
    law = gating_law(1.0)
    curve = law.predict(np.array([-3.5, 4.0, np.log(8.0)]), np.arange(120.0), np.ones(120), np.zeros(120))
    identification = identify(measured(curve, prompts=256), 0.9)
    assert identification.fits[0].law.name == "gating"
    assert identification.fit("gating").aicc < identification.fit("exponential").aicc - 10


def test_grpos_gating_law_is_the_closed_form_of_power_law_saturation():
    """For α = 1 the theory has p = ½[1 + u/√(1+u²)] with u = ηt/4 − (1−2p₀)/(2√(p₀(1−p₀)))."""
    start, rate = 0.1, 0.3
    steps = np.arange(0.0, 100.0)
    u = rate * steps / 4 - (1 - 2 * start) / (2 * np.sqrt(start * (1 - start)))
    # A ceiling of 1 is free → ∞.
    predicted = gating_law(1.0).predict(
        np.array([np.log(start / (1 - start)), 30.0, -np.log(rate)]), steps, steps, steps
    )
    assert predicted == pytest.approx(0.5 * (1 + u / np.sqrt(1 + u**2)), abs=1e-4)


@pytest.mark.parametrize("law", laws(0.9), ids=lambda law: law.name)
def test_the_curves_of_many_draws_are_those_of_each_alone(law):
    """The draws mix damped, overdamped and unstable curves, under intervals and lags that change."""
    intervals = np.array([1.0] * 30 + [8.0] * 30 + [64.0] * 5)
    steps = np.concatenate([[0.0], np.cumsum(intervals)[:-1]])
    timing = intervals, np.array([0.0] * 40 + [4.0] * 25)
    draws = np.random.default_rng(0).normal(0.0, 4.0, (300, len(law.names)))
    alone = np.array([law.predict(free, steps, *timing) for free in draws])
    assert np.isfinite(alone).all() and len(np.unique(alone, axis=0)) > 200
    np.testing.assert_array_equal(law.predict(draws, steps, *timing), alone)


def test_the_draws_of_a_long_curve_need_little_memory():
    """All curves at once would be 400 × 3000 numbers of 8 bytes, sixteen times over."""
    fit = fit_law(oscillator_law(0.9), measured(oscillating(3000, stiffness=0.01)))
    tracemalloc.start()
    try:
        assert fit.draws.shape == (400, 4)
        assert tracemalloc.get_traced_memory()[1] < 10 * 2**20
    finally:
        tracemalloc.stop()


def test_no_draw_leaves_the_likelihood_of_its_law():
    for history in (measured(oscillating(150, stiffness=0.01)).until(40), measured(0.2 + 0.002 * np.arange(40))):
        for fit in identify(history, 0.9).fits:
            timing = fit.history.intervals, fit.history.lags
            predicted = np.array([fit.law.predict(free, fit.history.steps, *timing) for free in fit.draws])
            chi_squares = (((fit.history.values - predicted) / fit.history.errors) ** 2).sum(axis=1)
            assert (chi_squares - fit.chi_square).max() <= chi2.isf(1e-4, len(fit.free)) + 1e-9


def test_the_stiffness_stays_below_the_bound_of_training_without_staleness():
    """A wave without damping once was fitted by a stiffness of 10⁴ and more, with an inertia to match."""
    values = 0.5 + 0.2 * np.cos(np.arange(100) / 8)
    wave = History(np.arange(100.0), values, np.full(100, 0.02), np.ones(100), np.zeros(100))
    identification = identify(wave, 0.9)
    assert identification.fit("oscillator").parameters["stiffness"] <= 2 * 1.9
    assert identification.stiffness.high <= 2 * 1.9 + 1e-9
    law = oscillator_law(0.9)
    assert law.read(np.array([0.0, 0.0, 50.0, 0.0]))[2] == pytest.approx(3.8)
    assert law.read(np.array([0.0, 0.0, np.log(1e-4), 0.0]))[2] == pytest.approx(1e-4, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("rounds", "missed"), [(60, ([4, 14], [3, 4])), (150, ([12], [0, 1, 12, 25]))])
def test_intervals_of_plateau_and_stiffness_miss_the_truth_on_few_curves(rounds, missed):
    """Of 30 curves these seeds are missed. Over 400 the intervals hold as often as they say, 91 to 95 %."""
    hit = np.array([holds(rounds, seed) for seed in range(30)])
    assert tuple(np.flatnonzero(~column).tolist() for column in hit.T) == missed
