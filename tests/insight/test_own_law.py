"""These tests fit laws of a person's own to reward curves."""

import numpy as np
import pytest

from grpo.cli import main
from grpo.config import UserError
from grpo.insight.plans.own_law import fit_law, own_law
from tests.dynamics.synthetic import measured
from tests.insight.runs import write_run

LAWS = """
import numpy as np
def rise(steps, start=0.5, end=0.5, time=20.0): return end + (start - end) * np.exp(-steps / time)
def line(steps, start=0.5, slope=0.0): return start + slope * steps
def flat(steps, level=0.5, unused=1.0): return level + 0 * steps
def one(steps, level=0.5): return level
def bare(steps): return steps
def word(steps, level="high"): return steps
def broken(steps, level=0.5): return steps / None
def infinite(steps, level=0.0): return steps / level
def complex_one(steps, level=0.5): return level + 1j * steps
def ending(steps, level=0.5): raise SystemExit(3)
def changing(steps, start=0.5, slope=0.0):
    steps -= steps[0]
    return start + slope * steps
many = eval("lambda steps, " + ", ".join(f"p{i}=0.5" for i in range(99)) + ": p0 + 0 * steps")
"""


@pytest.fixture
def laws(tmp_path):
    """Writes a file of laws, and returns the path of each by its name."""
    (tmp_path / "laws.py").write_text(LAWS)
    return lambda name: f"{tmp_path}/laws.py:{name}"


def rising(rounds):
    return 0.8 - 0.6 * np.exp(-np.arange(rounds) / 50)


def test_a_law_of_ones_own_finds_its_parameters_and_what_is_to_come(laws):
    fit = fit_law(own_law(laws("rise")), measured(rising(120), prompts=64))
    assert np.abs(fit.values - [0.2, 0.8, 50]).tolist() < (3 * fit.errors).tolist()
    assert fit.errors[1] < 0.03 and fit.probability > 0.01
    [rate], [low], [high] = fit.band(np.array([300.0]))
    assert low < 0.7985 < high and high - low < 0.1 and low < rate < high


def test_a_laws_intervals_hold_as_often_as_they_say(laws):
    fits = [fit_law(own_law(laws("rise")), measured(rising(80), seed=seed)) for seed in range(100)]
    ends = [(low[0], high[0]) for _, low, high in (fit.band(np.array([120.0])) for fit in fits)]
    assert 80 <= sum(low < 0.8 - 0.6 * np.exp(-120 / 50) < high for low, high in ends) <= 99


def test_the_better_of_two_laws_stands_first_beside_the_forecast(laws, tmp_path, capsys):
    write_run(tmp_path, 60)
    assert main(["dynamics", "forecast", str(tmp_path), f"law={laws('line')},{laws('rise')}"]) == 0
    names = [line.split("│")[1].strip() for line in capsys.readouterr().out.splitlines() if "│" in line]
    assert names.index("rise") < names.index("line") < names.index("forecast")


def test_a_law_gets_steps_of_its_own(laws):
    steps = np.arange(5.0, 9.0)
    assert own_law(laws("changing")).rates(steps, np.array([0.5, 0.1])).tolist() == pytest.approx([0.5, 0.6, 0.7, 0.8])
    assert steps.tolist() == [5.0, 6.0, 7.0, 8.0]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing", "cannot be imported: AttributeError: module 'laws' has no attribute 'missing'"),
        ("bare", "needs a number as default of a parameter after the steps"),
        ("word", "needs a number as default of level"),
        ("broken", "fails: TypeError: unsupported operand"),
        ("one", r"returns the shape \(\) for 30 steps: return one pass rate for each"),
        ("infinite", r"is not finite at its defaults \(level 0\)"),
        ("complex_one", "returns complex numbers: return pass rates"),
        ("ending", "fails: SystemExit: 3"),
        ("flat", "unused changes nothing where the fit ends"),
        ("many", "has 99 parameters, and 30 rounds decide at most 28"),
    ],
)
def test_a_law_that_does_not_fit_is_refused_in_a_line(laws, name, words):
    with pytest.raises(UserError, match=words):
        fit_law(own_law(laws(name)), measured(rising(30)))
    with pytest.raises(UserError, match="law=rise is no import path"):
        own_law("rise")
