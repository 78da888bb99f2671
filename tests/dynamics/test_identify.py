import tracemalloc
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.signal import lfilter
from scipy.special import logit
from scipy.stats import chi2

from benchmarks.flat_curves import flat, lawful
from benchmarks.law_intervals import holds
from grpo.dynamics import wander
from grpo.dynamics.identify import _stiffness_doubt, fit_law, identify, laws
from grpo.dynamics.laws import EXPONENTIAL, MIXTURE, History, gating_law, oscillator_law
from grpo.types import Interval
from tests.dynamics.synthetic import measured, oscillating, sigmoid


def test_without_noise_the_constants_come_back():
    curve = oscillating(120, start=0.2, plateau=0.8, stiffness=0.008, inertia=0.95)
    fit = fit_law(oscillator_law(0.9), measured(curve, prompts=10**6))
    constants = fit.parameters
    assert constants["start"] == pytest.approx(0.2, abs=2e-3)
    assert constants["plateau"] == pytest.approx(0.8, abs=2e-3)
    assert constants["stiffness"] == pytest.approx(0.008, rel=0.02)
    assert fit.r_squared > 0.999


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
    assert identification.plateau.low < 0.9 < identification.plateau.high


def test_gating_is_told_from_a_single_exponential():
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


def test_nothing_is_claimed_of_a_curve_that_has_not_bent():
    rising = measured(0.2 + 0.002 * np.arange(40))
    identification = identify(rising, 0.9)
    assert not identification.identified
    assert identification.reason.startswith("not identified yet")
    assert identification.fits[0].law.name == "line"
    assert identify(rising.until(4), 0.9) is None


def test_a_curve_that_has_levelled_off_is_identified():
    identification = identify(measured(oscillating(150, stiffness=0.01)), 0.9)
    assert identification.identified
    assert identification.plateau.low < 0.8 < identification.plateau.high
    assert identification.plateau.high - identification.plateau.low < 0.1
    assert sum(identification.weights.values()) == pytest.approx(1)


@pytest.mark.parametrize("law", laws(0.9, 1.0), ids=lambda law: law.name)
def test_the_curves_of_many_draws_are_those_of_each_alone(law):
    """The draws mix damped, overdamped and unstable curves, under intervals and lags that change."""
    intervals = np.array([1.0] * 30 + [8.0] * 30 + [64.0] * 5)
    steps = np.concatenate([[0.0], np.cumsum(intervals)[:-1]])
    held = intervals, np.array([0.0] * 40 + [4.0] * 25)
    draws = np.random.default_rng(0).normal(0.0, 4.0, (300, len(law.names)))
    alone = np.array([law.predict(free, steps, *held) for free in draws])
    assert np.isfinite(alone).all() and len(np.unique(alone, axis=0)) > 200
    np.testing.assert_array_equal(law.predict(draws, steps, *held), alone)


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
            held = fit.history.intervals, fit.history.lags
            predicted = np.array([fit.law.predict(free, fit.history.steps, *held) for free in fit.draws])
            chi_squares = (((fit.history.values - predicted) / fit.history.errors) ** 2).sum(axis=1)
            assert (chi_squares - fit.chi_square).max() <= chi2.isf(1e-4, len(fit.free)) + 1e-9


@pytest.mark.slow
def test_flat_curves_of_correlated_noise_are_not_identified():
    """Three curves are drawn for each memory. An earlier version identified most of those whose memory is .6 or .8."""
    claimed = []
    for memory in (0.0, 0.3, 0.6, 0.8):
        own = [lfilter([np.sqrt(1 - memory**2)], [1, -memory], np.random.default_rng(seed).standard_normal(200))
               for seed in range(3)]  # fmt: skip
        curves = [
            History(np.arange(200.0), 0.5 + 0.05 * noise, np.full(200, 0.05), np.ones(200), np.zeros(200))
            for noise in own
        ]
        claimed.append(sum(identify(curve, 0.9).identified for curve in curves))
    assert claimed == [0, 0, 0, 0]


@pytest.mark.slow
def test_flat_curves_that_wander_are_not_identified_and_curves_of_a_law_that_wander_are():
    """These flat curves once were identified, as one in eight is whose memory is .6 to .95."""
    assert [identify(flat(seed)[0], 0.9).identified for seed in (23, 63, 111, 131, 147, 151)] == [False] * 6
    assert [identify(lawful(seed)[0], 0.9).identified for seed in (1, 2, 4, 5, 6)] == [True] * 5


def test_the_likelihood_of_a_wandering_curve_is_that_of_its_covariance():
    """The filter's likelihood at the best of its grid is compared with normal densities of the full covariance."""
    generator = np.random.default_rng(0)
    errors = generator.uniform(0.05, 0.1, 25)
    values = (
        0.4 + 0.1 * lfilter([0.6], [1, -0.8], generator.standard_normal(25)) + errors * generator.standard_normal(25)
    )
    curves = np.array([np.full(25, 0.4), np.linspace(0.2, 0.6, 25)])
    gaps = np.abs(np.arange(25)[:, None] - np.arange(25))
    rows = np.stack([np.ones(25), np.linspace(-1, 1, 25)])
    expected = np.full(4, np.inf)
    for memory, size in product(wander.MEMORIES, wander.SIZES):
        covariance = size * np.mean(errors**2) * memory**gaps + np.diag(errors**2)
        root = np.linalg.cholesky(covariance)
        value, line = (np.linalg.solve(root, column.T) for column in (values, rows))
        left = [np.linalg.lstsq(line[:, :number], value)[1][0] for number in (1, 2)]
        squares = [np.sum(np.linalg.solve(root, values - curve) ** 2) for curve in curves]
        expected = np.minimum(expected, [*squares, *left] + np.linalg.slogdet(covariance)[1])
    assert np.concatenate(wander.deviances(values, errors, curves)) == pytest.approx(expected)


def test_the_wander_of_a_long_curve_is_that_of_its_blocks():
    generator = np.random.default_rng(1)
    values = 0.5 + 0.1 * generator.standard_normal(4000)
    curve = np.full((1, 4000), 0.5)
    blocks = values.reshape(400, 10).mean(axis=1)
    for long, short in zip(
        wander.deviances(values, np.full(4000, 0.1), curve),
        wander.deviances(blocks, np.full(400, 0.1 / 10**0.5), curve[:, :400]),
        strict=True,
    ):
        assert long == pytest.approx(short, rel=1e-3)


def test_the_stiffness_stays_below_the_bound_of_training_without_staleness():
    """A wave without damping once was fitted by a stiffness of 10⁴ and more, with an inertia to match."""
    values = 0.5 + 0.2 * np.cos(np.arange(100) / 8)
    wave = History(np.arange(100.0), values, np.full(100, 0.02), np.ones(100), np.zeros(100))
    identification = identify(wave, 0.9)
    assert identification.fit("oscillator").parameters["stiffness"] <= 2 * 1.9
    assert identification.stiffness.high <= 2 * 1.9 + 1e-9
    assert not identification.identified
    law = oscillator_law(0.9)
    assert law.read(np.array([0.0, 0.0, 50.0, 0.0]))[2] == pytest.approx(3.8)
    assert law.read(np.array([0.0, 0.0, np.log(1e-4), 0.0]))[2] == pytest.approx(1e-4, rel=1e-4)


def test_a_curve_of_an_unknown_stiffness_is_not_identified_as_the_oscillators():
    assert _stiffness_doubt(Interval(0.002, 0.001, 0.004), 0.9) == ""
    told = "its stiffness lies anywhere between 0.001 and 0.0041"
    assert told in _stiffness_doubt(Interval(0.002, 0.001, 0.0041), 0.9)
    # Training is unstable above 3.8, and a law goes no further.
    assert _stiffness_doubt(Interval(3.7, 3.6, 3.8), 0.9)


def test_a_curve_whose_residuals_show_a_pattern_is_not_identified():
    steps = np.arange(200)
    curve = 0.8 - 0.6 * np.exp(-steps / 30) + 0.04 * np.sin(steps / 6)
    identification = identify(measured(curve, prompts=128), 0.9)
    assert not identification.identified and "misses the curve by more than noise" in identification.reason
    assert identify(measured(0.8 - 0.6 * np.exp(-steps / 30), prompts=128), 0.9).identified


def test_a_wrong_law_shows_in_its_residuals():
    history = measured(sigmoid(100, width=3.0), prompts=256)
    wrong = fit_law(EXPONENTIAL, history)
    assert wrong.misfit_p < 1e-6 and wrong.pattern_p < 1e-6
    right = identify(history, 0.9).fit("sigmoid")
    assert right.misfit_p > 0.01 and right.pattern_p > 0.01
    # The middle is a step, which once was read as the logarithm of one.
    constants = {"floor": 0.1, "plateau": 0.8, "width_steps": 3.0, "middle_step": 40.0}
    assert right.parameters == pytest.approx(constants, rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize(("rounds", "missed"), [(60, ([4, 14], [3, 4])), (150, ([12], [0, 1, 12, 25]))])
def test_intervals_of_plateau_and_stiffness_miss_the_truth_on_few_curves(rounds, missed):
    """Of 30 curves these seeds are missed. Over 400 the intervals hold as often as they say, 91 to 95 %."""
    held = np.array([holds(rounds, seed) for seed in range(30)])
    assert tuple(np.flatnonzero(~column).tolist() for column in held.T) == missed


def test_without_dials_there_is_no_law_of_gating():
    assert [law.name for law in laws(0.9, None)] == [law.name for law in laws(0.9, 1.0) if law.name != "gating"]
