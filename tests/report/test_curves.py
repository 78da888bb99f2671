import numpy as np
import pytest
from matplotlib.image import imread

from grpo.config import UserError
from grpo.report import plot_run
from grpo.report.style import drawn, smooth

ROUNDS = [
    {"step": step, "reward/mean": step / 20, "pass_rate": step / 25, "policy/entropy": 1 / step}
    for step in range(1, 11)
]
EVALUATION = {"step": 0, "problems": 8, "pass@1": {"value": 0.5, "low": 0.25, "high": 0.75}}
BLUE, ORANGE = (0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)


def num_pixels(path, color) -> int:
    pixels = np.round(imread(path)[..., :3] * 255).astype(int)
    return int(np.all(pixels == color, axis=-1).sum())


def test_smoothing_averages_what_there_is_near_the_ends():
    assert smooth([0.0, 3.0, 6.0, 0.0], 3).tolist() == [1.5, 3.0, 3.0, 3.0]


@pytest.mark.parametrize("window", [1, 2, 5, 6, 40])
def test_smoothing_is_the_mean_of_each_window(window):
    values = np.random.default_rng(0).normal(size=23)
    behind, ahead = window // 2, (window - 1) // 2
    if window > len(values):
        behind = ahead = 11
    means = [values[max(0, at - behind) : at + ahead + 1].mean() for at in range(23)]
    assert smooth(values, window) == pytest.approx(means, abs=1e-12)


def test_a_long_run_is_drawn_by_some_of_its_points():
    assert [len(range(count)[drawn(count)]) for count in (0, 1, 2000, 2001, 100_000)] == [0, 1, 2000, 1001, 2000]


def test_smoothing_keeps_a_constant_however_wide():
    assert smooth([2.0] * 5, 99).tolist() == [2.0] * 5


def test_reward_and_pass_rate_are_both_drawn(tmp_path):
    plot_run(ROUNDS, [EVALUATION], tmp_path / "run.png")
    assert num_pixels(tmp_path / "run.png", BLUE) > 500
    assert num_pixels(tmp_path / "run.png", ORANGE) > 500


def test_a_reward_that_is_the_pass_rate_is_drawn_once(tmp_path):
    rounds = [row | {"reward/mean": row["pass_rate"]} for row in ROUNDS]
    plot_run(rounds, [], tmp_path / "run.png")
    assert num_pixels(tmp_path / "run.png", BLUE) > 500
    assert num_pixels(tmp_path / "run.png", ORANGE) == 0


def test_a_run_of_one_round_can_be_drawn(tmp_path):
    plot_run(ROUNDS[:1], [], tmp_path / "run.png")
    assert (tmp_path / "run.png").stat().st_size > 0


def test_a_run_without_rounds_says_so(tmp_path):
    with pytest.raises(UserError, match="first round"):
        plot_run([], [EVALUATION], tmp_path / "run.png")
