import numpy as np
import pytest
from scipy.signal import lfilter

from grpo.insight.diagnosis.evidence import change, level, start
from grpo.insight.logs.run_log import Series


def noises(rounds, memory):
    """Returns AR(1) series of mean 0 and variance 1."""
    drawn = np.random.default_rng(0).standard_normal((200, 100 + rounds))
    own = lfilter([np.sqrt(1 - memory**2)], [1, -memory], drawn, axis=1)
    return [Series(np.arange(rounds), values[-rounds:]) for values in own]


def half_width(interval):
    return interval.high - interval.value


@pytest.mark.parametrize("rounds", [20, 40])
def test_luck_of_few_rounds_makes_no_interval_absurd(rounds):
    """An earlier version took the correlation of each window alone from its ten rounds. Then the widest of these
    intervals were 3.5 and 3.9 times as wide as the usual one."""
    halves = [half_width(change(series)) for series in noises(rounds, 0.0)]
    assert max(halves) < 3 * np.median(halves)


@pytest.mark.parametrize(
    ("rounds", "memory", "fewest"), [(20, 0.6, 0.91), (40, 0.6, 0.93), (100, 0.8, 0.92), (40, 0.0, 0.98)]
)
def test_intervals_hold_for_correlated_rounds(rounds, memory, fewest):
    covered = [interval.low <= 0 <= interval.high for interval in map(level, noises(rounds, memory))]
    assert np.mean(covered) >= fewest


def test_a_window_without_scatter_has_an_exact_mean():
    series = Series(np.arange(40), np.repeat([0.25, 0.75], 20))
    assert half_width(start(series)) == pytest.approx(0, abs=1e-6)
    assert change(series).value == pytest.approx(0.5) and half_width(change(series)) == pytest.approx(0, abs=1e-6)


def test_windows_without_scatter_tell_nothing_of_the_correlation():
    """One row of ten differs, after many that are all alike. Its window alone has a standard error of .1."""
    alone = level(Series(np.arange(10), np.repeat([0.0, 1.0], [9, 1])))
    after = level(Series(np.arange(30), np.repeat([0.0, 1.0], [29, 1])))
    assert half_width(after) == pytest.approx(half_width(alone)) and half_width(after) < 0.8
