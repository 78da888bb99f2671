"""These tests hold that signal and heat follow from products of steps, on a quadratic whose products are exact."""

import numpy as np
import pytest

from benchmarks.high_rate import products_of
from grpo.dynamics.gain import Gain, Products, weight_of_heat
from grpo.types import Mean, RoundPlan, RoundStatistics

MOMENTUM = 0.9


def responses(curvature, number):
    """Returns how far a unit of gradient has moved a weight after 0, 1, 2, … steps, where the slope falls with the
    weight. The learning rate is 1."""
    weight, mean, moved = 0.0, 1 - MOMENTUM, [0.0]
    for _ in range(number):
        weight += mean
        moved.append(weight)
        mean = MOMENTUM * mean - (1 - MOMENTUM) * curvature * weight
    return np.array(moved)


def product_of_noise(curvature, steps, time):
    """Returns the product of the path of the last `steps` steps with the next gradient, which only noise of variance 1
    has made, `time` steps after the start. Heat is `curvature`."""
    moved = responses(curvature, time)
    before = np.concatenate([np.zeros(steps), moved])[: len(moved)]
    return -curvature * float((moved - before) @ moved) / steps


@pytest.mark.parametrize("steps", [1, 5, 20])
def test_heat_lowers_a_product_by_its_weight_while_it_adds_up(steps):
    heat = 1e-7
    assert product_of_noise(heat, steps, 2000) == pytest.approx(-heat * weight_of_heat(MOMENTUM, steps), rel=0.01)


@pytest.mark.parametrize("steps", [1, 5, 20])
def test_heat_that_is_balanced_adds_half_of_itself_to_a_product(steps):
    heat = 1e-3
    expected = heat * (0.5 - weight_of_heat(MOMENTUM, steps))
    assert product_of_noise(heat, steps, 20_000) == pytest.approx(expected, rel=0.05, abs=0.01 * heat)


def test_the_last_step_alone_nearly_shows_what_a_step_gains():
    """A push of noise gains −C/2 while heat adds up and 0 where it is balanced, and so does the last step's product."""
    assert product_of_noise(1e-7, 1, 2000) == pytest.approx(-0.526e-7, rel=0.01)
    assert abs(product_of_noise(1e-3, 1, 20_000)) < 0.05e-3


@pytest.mark.parametrize("heat", [0.1, 0.5, 1.0, 2.0, 5.0])
@pytest.mark.parametrize(("interval", "length"), [(1, 0.05), (4, 0.05), (1, 1e-5)])
def test_heat_over_signal_is_found_from_products(heat, interval, length):
    signal = 0.02 * length
    gain = Gain(products_of(signal, heat * signal, interval=interval, length=length))
    assert gain.heat == pytest.approx(heat, rel=0.2, abs=0.06)
    low, high = gain.bounds()
    assert low < heat * 1.05 and high > heat * 0.95
    assert gain.of(1.0) == pytest.approx(1 - gain.heat / 2)
    lowest, highest = gain.best_rate(0.5)
    assert lowest < 1.05 * 0.5 / gain.heat and highest > 0.95 * 0.5 / gain.heat
    assert gain.of(2.0, 0.5) == pytest.approx(1 - gain.heat / 8)


def test_batches_of_several_sizes_share_one_heat():
    small = products_of(1e-3, 1e-3, aim=0.5, rounds=60)
    both = products_of(1e-3, 1e-3, aim=1.5, rounds=60, products=small, seed=1)
    assert Gain(both).heat == pytest.approx(1.0, rel=0.2)


def test_noise_alone_leaves_the_heat_unknown_and_harm_makes_it_high():
    low, high = Gain(products_of(0.0, 0.0, noise=1.0)).bounds()
    assert high > 10 * low
    assert Gain(products_of(0.0, 1e-3)).bounds()[0] > 2


def test_heat_is_that_of_the_present_length_of_a_step():
    """At twice the rate the signal is twice and the heat four times as large."""
    short = products_of(1e-3, 0.5e-3, length=0.05)
    long = products_of(2e-3, 2e-3, rounds=3, length=0.1, products=short)
    assert Gain(short).heat == pytest.approx(0.5, rel=0.15) and Gain(long).heat == pytest.approx(1.0, rel=0.15)


def test_older_rounds_lose_their_weight():
    turned = products_of(1e-3, 3e-3, rounds=250, products=products_of(1e-3, 0.1e-3))
    assert Gain(turned).heat == pytest.approx(3.0, rel=0.25)


@pytest.mark.parametrize("missing", ["step/gain", "step/length"])
def test_a_round_without_products_changes_nothing(missing):
    means = {"step/gain": Mean(1.0, 1), "step/cosine": Mean(0.1, 1), "step/length": Mean(1.0, 1)}
    statistics = RoundStatistics(0, 1, RoundPlan(8, 1, 8), means | {missing: Mean(0.0, 0.0)}, {}, {}, ())
    assert Products().after(statistics, 1.0, MOMENTUM).number == 0
