import json
from functools import partial

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from grpo.insight.pages import pictures
from grpo.insight.pages.curves import (
    Curves,
    draw_cache,
    draw_equal_groups,
    draw_pass_rate,
    draw_sources,
    draw_time,
    panels_of,
)
from grpo.insight.pages.small_charts import small_charts
from grpo.insight.pages.style import drawn, sheet, smooth

ROUNDS = [
    {"step": step, "reward/mean": step / 20, "pass_rate": step / 25, "policy/entropy": 1 / step}
    for step in range(1, 11)
]
EVALUATION = {"step": 0, "problems": 8, "pass@1": {"value": 0.5, "low": 0.25, "high": 0.75}}
BLUE, ORANGE = (0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)


def plot_run(rounds, evaluations, path):
    sheet([partial(draw_pass_rate, run=Curves(rounds, evaluations))], path, (10.0, 3.0), 1, first_wide=True)


def num_pixels(path, color) -> int:
    pixels = np.round(imread(path)[..., :3] * 255).astype(int)
    return int(np.all(pixels == color, axis=-1).sum())


@pytest.mark.parametrize("window", [1, 2, 5, 6, 40])
def test_smoothing_is_the_mean_of_each_window(window):
    values = np.random.default_rng(0).normal(size=23)
    behind, ahead = window // 2, (window - 1) // 2
    if window > len(values):
        behind = ahead = 11
    means = [values[max(0, at - behind) : at + ahead + 1].mean() for at in range(23)]
    assert smooth(values, window) == pytest.approx(means, abs=1e-12)


def test_smoothing_forgets_a_huge_value_beyond_its_window():
    means = smooth([0.5] * 19 + [1e20] + [0.5] * 40, 5)
    assert means[:17].tolist() == [0.5] * 17 and means[22:].tolist() == [0.5] * 38


def test_a_long_run_is_drawn_by_some_of_its_points():
    assert [len(range(count)[drawn(count)]) for count in (0, 1, 800, 801, 100_000)] == [0, 1, 800, 401, 800]


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


def marks(panel, metrics, evaluations=()):
    values = json.loads(pictures.picture(partial(panel, run=Curves(metrics, evaluations)))["values"])
    return {one["name"]: [point[2:] for point in one["points"]] for one in values["series"]}


def test_a_phase_tells_its_own_seconds_and_not_those_below_it():
    rounds = [{"step": step, "time/round_seconds": 5.0, "time/sample_seconds": 3.0} for step in (1, 2)]
    rounds = [row | {"time/learn_seconds": 2.0} for row in rounds]
    assert marks(draw_time, rounds) == {"sample": [["1", "3 s"], ["2", "3 s"]], "learn": [["1", "2 s"], ["2", "2 s"]]}


def test_an_evaluation_tells_its_interval_also_where_many_are_a_line():
    name = "held-out pass@1, 95 % interval (8 problems)"
    assert marks(draw_pass_rate, ROUNDS, [EVALUATION])[name] == [["0", "50.0% (25.0% to 75.0%)"]]
    many = [EVALUATION | {"step": step} for step in range(40)]
    axes = Figure().add_subplot()
    draw_pass_rate(axes, Curves(ROUNDS, many))
    assert not axes.containers, "forty error bars would hide each other"
    assert marks(draw_pass_rate, ROUNDS, many)[name][39] == ["39", "50.0% (25.0% to 75.0%)"]


def test_several_sources_have_a_curve_each():
    rounds = [{"step": step, "source/a/pass_rate": 0.25, "source/b/c/pass_rate": 0.5} for step in (1, 2)]
    assert draw_sources in panels_of(Curves(rounds, []))
    assert marks(draw_sources, rounds) == {
        "a": [["1", "25.0%"], ["2", "25.0%"]],
        "b/c": [["1", "50.0%"], ["2", "50.0%"]],
    }
    assert draw_sources not in panels_of(Curves([{"step": 1, "source/a/pass_rate": 0.25}], []))


def test_a_cache_that_sufficed_is_said_to_have():
    rounds = [{"step": 1, "rollout/cache_peak_fraction": 0.5, "rollout/preemptions": 0.0}]
    axes = Figure().add_subplot()
    assert draw_cache(axes, Curves(rounds, [])) == "The cache had room for all completions, so none was interrupted."


def test_a_round_tells_its_own_value_beside_the_mean_of_its_neighbours():
    rounds = [{"step": step, "pass_rate": step % 2 / 1.0} for step in range(1, 31)]
    points = marks(draw_pass_rate, rounds)["pass rate in training"]
    assert points[9] == ["10", "0.0% (mean 40.0%)"] and points[10] == ["11", "100.0% (mean 60.0%)"]


def test_a_line_that_would_hide_another_is_drawn_once_under_both_names():
    rounds = [{"step": step, "pass_rate": 0.25 * step, "reward/mean": 0.25 * step + 1e-9} for step in (1, 2, 3)]
    assert list(marks(draw_pass_rate, rounds)) == ["pass rate in training = mean reward in training"]
    axes = Figure().add_subplot()
    assert "The mean reward is the same number" in draw_pass_rate(axes, Curves(rounds, []))


def equal_groups(*rounds):
    names = [f"groups/{name}_fraction" for name in ("silent", "all_wrong", "all_correct")]
    return marks(draw_equal_groups, [{"step": 1, **dict(zip(names, shares, strict=True))} for shares in rounds])


def test_silent_groups_are_bands_of_which_none_hides_another():
    assert equal_groups((0.5, 0.5, 0.0)) == {"all wrong": [["1", "50.0%"]]}
    assert equal_groups((0.5, 0.125, 0.25)) == {
        "all wrong": [["1", "12.5%"]],
        "all right": [["1", "25.0%"]],
        "other equal rewards": [["1", "12.5%"]],
    }
    assert equal_groups((0.0, 0.0, 0.0)) == {"all rewards equal": [["1", "0.0%"]]}


def test_groups_that_are_all_wrong_and_teach_are_not_shown_as_silent():
    assert equal_groups((0.25, 0.875, 0.0)) == {"all rewards equal": [["1", "25.0%"]]}


def test_small_charts_are_of_what_the_run_has_and_of_parts_that_are_not_the_pass_rate():
    numbers = {"policy/loss": 0.1, "learner/learning_rate": 3e-7, "policy/reference_kl": 0.0, "pass_rate": 0.5}
    parts = {"reward/part/math": 0.5, "reward/part/rewards.py:short": 0.2}
    run = Curves([{"step": step, **numbers, **parts} for step in (1, 2)], [])
    panels, notes = small_charts(run)
    charts = [pictures.picture(partial(panel, run=run), pictures.SMALL_INCHES) for panel in panels]
    assert [chart["title"] for chart in charts] == ["Reward: short", "Loss", "Learning rate"]
    assert notes == ["The part math of the reward is the pass rate.", "Always 0 was: KL to the reference."]
    [rate] = json.loads(charts[2]["values"])["series"]
    assert rate["points"][0][2:] == ["1", "3·10⁻⁷"]


def test_a_number_that_a_reward_returns_beside_itself_is_not_called_a_part_of_the_reward():
    run = Curves([{"step": step, "reward/part/episode/tries": 1.5} for step in (1, 2)], [])
    [panel] = small_charts(run)[0]
    assert panel(Figure().add_subplot(), run) == "This part of the reward, or a number that comes with it."


def test_the_chart_of_phases_is_left_out_where_only_whole_rounds_were_timed():
    row = {"step": 1, "time/round_seconds": 30.0}
    assert draw_time not in panels_of(Curves([row], []))
    assert draw_time in panels_of(Curves([row | {"time/sample_seconds": 20.0}], []))


def test_a_small_chart_draws_all_of_its_lines():
    shares = {"episodes/failed_fraction": 0.1, "episodes/out_of_turns_fraction": 0.2}
    run = Curves([{"step": step, **shares, "episodes/out_of_room_fraction": 0.8} for step in (1, 2)], [])
    [panel] = small_charts(run)[0]
    series = json.loads(pictures.picture(partial(panel, run=run), pictures.SMALL_INCHES)["values"])["series"]
    assert [one["points"][0][3] for one in series] == ["10.0%", "20.0%", "80.0%"]
    assert len({one["color"] for one in series}) == 3


def test_a_learning_rate_is_drawn_as_it_was_set_and_a_measured_number_by_its_means():
    ends = {}
    for name in ("learner/learning_rate", "policy/loss"):
        run = Curves([{"step": step, name: 1 - step / 40} for step in range(1, 41)], [])
        axes = Figure().add_subplot()
        small_charts(run)[0][0](axes, run)
        ends[name] = axes.lines[-1].get_ydata()[-1]
    assert ends == {"learner/learning_rate": 0.0, "policy/loss": pytest.approx(0.025)}


def test_a_last_chart_without_a_neighbour_has_a_row_of_its_own():
    def panel(axes):
        axes.plot([1, 2], [1, 2])
        axes.set_title("t")
        return ""

    shapes = {
        (number, first): [one["only"] for one in pictures.pictures([panel] * number, first)]
        for number, first in ((1, False), (2, True), (3, True), (3, False))
    }
    assert shapes == {
        (1, False): ["wide", "narrow"],
        (2, True): ["wide", "narrow", "wide", "narrow"],
        (3, True): ["wide", "narrow", "", ""],
        (3, False): ["", "", "wide", "narrow"],
    }
