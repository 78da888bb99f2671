import numpy as np
import pytest

from benchmarks.papers import stability


@pytest.mark.slow
@pytest.mark.parametrize(("lag", "gain"), [(1, 1.0), (2, 1.025), (8, 1.115), (32, 1.300), (128, 1.471)])
def test_constant_lag_is_unstable_beyond_these_gains(lag, gain):
    assert stability.critical_gain("constant_lag", 0.9, lag) == pytest.approx(gain, abs=5e-4)


@pytest.mark.parametrize(("interval", "gain"), [(4, 2.92), (8, 2.71), (16, 2.99), (32, 4.07), (64, 2.78), (128, 2.33)])
def test_sample_and_hold_is_unstable_beyond_these_gains(interval, gain):
    assert stability.critical_gain("sample_and_hold", 0.9, interval) == pytest.approx(gain, abs=6e-3)


@pytest.mark.parametrize("interval", [1, 3, 20])
def test_sample_and_hold_without_momentum_takes_twice_the_printed_bound(interval):
    assert stability.critical_gain("sample_and_hold", 0.0, interval) == pytest.approx(2.0)


def test_sampling_a_round_ahead_shortens_the_stable_interval_of_sample_and_hold():
    alone, ahead, less = (stability.critical_stiffness("sample_and_hold", 0.9, 8, lag) for lag in (0, 8, 5))
    assert (alone, ahead) == (pytest.approx(0.03386, rel=1e-3), pytest.approx(0.01023, rel=1e-3))
    # A lag counts in whole rounds.
    assert less == pytest.approx(ahead)
    # Every step on-policy is stable up to the heavy ball's own limit; one step late, up to the printed bound of κ.
    assert stability.critical_stiffness("sample_and_hold", 0.9, 1, 1) == pytest.approx(1 - 0.9)


def test_fresh_gradients_have_the_heavy_balls_own_limit():
    assert stability.critical_stiffness("fresh", 0.9, 7) == pytest.approx(2 * 1.9)


@pytest.mark.parametrize("lag", [0, 6, 12])
@pytest.mark.parametrize("kind", ["constant_lag", "sample_and_hold"])
def test_the_limit_parts_decay_from_growth_when_simulated(kind, lag):
    momentum, interval = 0.5, 6
    limit = stability.critical_stiffness(kind, momentum, interval, lag)

    def size_after(stiffness, steps=3000 + 1000 * lag):
        past = [1.0] * (interval + lag + 1)
        sampled, velocity = 1.0, 0.0
        for step in range(steps):
            sampled = past[-1 - lag] if step % interval == 0 else sampled
            old = sampled if kind == "sample_and_hold" else past[-1 - interval - lag]
            velocity = momentum * velocity - stiffness * old
            past.append(past[-1] + velocity)
        return abs(np.array(past[-50:])).max()

    assert size_after(0.98 * limit) < 1e-2 < 1e2 < size_after(1.02 * limit)
