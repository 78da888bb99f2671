"""These tests search with Optuna, whose trials are cells of a ledger. The runs are stand-ins whose score is best at a
rate of 1e-3."""

import json
import math
import re
import sys
from pathlib import Path

import pytest

from grpo.cli import main
from grpo.config import UserError
from grpo.config.sweep_words import Range, grid, ranges
from grpo.sweep.ledger import DONE, FAILED, RUNNING, State, open_ledger
from grpo.sweep.search import _distribution

STAND_IN = f"{sys.executable} {Path(__file__).with_name('stand_in.py')}"
RATE = "learner.learning_rate=tag(log,interval(1e-6,0.4))"


def words(output, trials, *more):
    own = [f"output_dir={output}", f"command={STAND_IN}", "seeds=1", f"trials={trials}"]
    return ["sweep", "sweep=seeds", "experiment=tiny", RATE, *own, *more]


def runs(output):
    """Returns (learning rate, how often it was run) of each trial, by the trial's name."""
    ledger = open_ledger(output)
    times = {cell.name: (ledger.path(cell) / "ran.txt").read_text().count("\n") for cell in ledger.cells}
    rates = {cell.name: next(word for word in cell.overrides if word.startswith("learner.")) for cell in ledger.cells}
    return {name: (float(rates[name].partition("=")[2]), times[name]) for name in times}


def test_ranges_are_read_in_hydras_grammar():
    assert ranges(["a=interval(0.1,2.0)", "b=tag(log,int(interval(1,8)))", "c=range(2,10,2)", "d=x,y", "e=5"]) == {
        "a": Range(low=0.1, high=2.0),
        "b": Range(low=1, high=8, log=True, whole=True),
        "c": Range(low=2, high=8, step=2, whole=True),
        "d": Range(choices=("x", "y")),
    }


@pytest.mark.parametrize(
    ("word", "values"),
    [("range(1,10,4)", [1, 5, 9]), ("range(1,2,4)", [1]), ("range(10,0,-2)", [2, 4, 6, 8, 10])],
)
def test_a_search_tries_all_whole_numbers_of_a_range_and_no_others(word, values):
    space = _distribution(ranges([f"a={word}"])["a"])
    assert [number for number in range(-20, 20) if space._contains(number)] == values


def test_a_search_tries_the_last_number_of_a_range_with_fractions():
    space = _distribution(ranges(["a=range(0,1,0.3)"])["a"])
    assert (space.low, space.high, space.step) == (0.0, 0.9, 0.3)


@pytest.mark.parametrize("word", ["a=range(3,3)", "a=range(1,5,0)", "a=range(1,5,-1)"])
@pytest.mark.parametrize("read", [ranges, grid])
def test_a_range_without_values_is_refused(read, word):
    with pytest.raises(UserError, match=r"a=range\(.*\) holds no value"):
        read([word])


@pytest.mark.slow
def test_the_trials_of_a_search_are_runs_and_the_best_is_named(tmp_path, capsys):
    assert main(words(tmp_path, 8)) == 0
    rates = [rate for rate, _ in runs(tmp_path).values()]
    assert len(rates) == len(set(rates)) == 8
    printed = capsys.readouterr().out
    best, score = re.search(r"best: learner.learning_rate=(\S+) \(score (\S+), trial", printed).groups()
    assert 1e-4 < float(best) < 1e-2 and float(score) > 0.5


@pytest.mark.slow
def test_what_a_search_tries_after_ten_random_trials_depends_on_their_scores(tmp_path, monkeypatch):
    def tried(best):
        """Returns the rates of thirteen trials whose score is best at the rate `best`."""
        rates = []

        def score_at_once(run_cell, pending, folder, hydra):
            ledger = open_ledger(folder)
            for cell in (ledger.cells[index] for index in pending):
                rates.append(float(next(word for word in cell.overrides if word.startswith("learner.")).split("=")[1]))
                row = {"step": 1, "pass@1": {"value": 1 / (1 + abs(math.log10(rates[-1] / best)))}}
                (ledger.path(cell) / "evaluations.jsonl").write_text(json.dumps(row) + "\n")
                ledger.record(cell, State(DONE))

        monkeypatch.setattr("grpo.sweep.search.launch_all", score_at_once)
        assert main(words(tmp_path / str(best), 13, "batch=10")) == 0
        return rates

    low, high = tried(1e-6), tried(1.0)
    assert low[:10] == high[:10]
    assert low[10:] != high[10:]


@pytest.mark.slow
def test_a_search_that_was_cut_goes_on_with_the_same_trials(tmp_path):
    assert main(words(tmp_path / "cut", 2)) == 0
    assert main(words(tmp_path / "cut", 3)) == 0
    assert main(words(tmp_path / "whole", 3)) == 0
    assert runs(tmp_path / "cut") == runs(tmp_path / "whole")
    assert [times for _, times in runs(tmp_path / "cut").values()] == [1] * 3


@pytest.mark.slow
def test_trials_of_a_batch_run_side_by_side_and_one_that_fails_scores_nothing(tmp_path, capsys):
    (tmp_path / "trial000-learning_rate-0.001187-seed0.wish").write_text("fail")
    assert main(words(tmp_path, 4, "batch=2", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2")) == 0
    assert len(runs(tmp_path)) == 4
    assert capsys.readouterr().out.count("│ failed") == 1


@pytest.mark.parametrize(("failing", "code"), [({0}, 0), ({0, 1}, 1)])
def test_a_failed_run_is_worse_than_a_negative_reward(failing, code, tmp_path, monkeypatch, capsys):
    def end_at_once(run_cell, pending, folder, hydra):
        ledger = open_ledger(folder)
        for index in pending:
            cell = ledger.cells[index]
            rewards = {"mean_reward": -0.5 - index, "pass@1": {"value": 0.0, "low": 0.0, "high": 0.1}}
            row = {"step": 1, "per_problem": [{"problem_id": "a", "correct": 0, "total": 1, "reward": -0.5}]} | rewards
            (ledger.path(cell) / "evaluations.jsonl").write_text(json.dumps(row) + "\n")
            ledger.record(cell, State(FAILED if index in failing else DONE))

    monkeypatch.setattr("grpo.sweep.search.launch_all", end_at_once)
    assert main(words(tmp_path, 2)) == code
    printed = capsys.readouterr().out
    assert printed.count("│ failed") == len(failing)
    assert ("(score -1.500, trial001" in printed) == (code == 0)
    assert ("no trial has a score, since each has a failed run" in printed) == (code == 1)


def test_a_search_without_a_range_is_one_line(tmp_path, capsys):
    without = [word for word in words(tmp_path, 3) if word != RATE]
    assert main(without) == 2
    assert "a search needs a range: give key=interval(1e-6,1e-4)" in capsys.readouterr().err


def test_a_search_without_a_score_is_one_line(tmp_path, capsys):
    assert main(words(tmp_path, 3, "evaluation.num_problems=0")) == 2
    assert "a search needs the score of each trial: set evaluation.num_problems" in capsys.readouterr().err


def test_a_trial_that_another_search_is_at_is_left_to_it(tmp_path, capsys):
    assert main(words(tmp_path, 1)) == 0
    ledger = open_ledger(tmp_path)
    ledger.record(ledger.cells[0], State(RUNNING))
    with ledger.lock(ledger.cells[0]):
        assert main(words(tmp_path, 1)) == 2
    assert "another search is at trial000-learning_rate-0.001187-seed0 in" in capsys.readouterr().err
    assert [times for _, times in runs(tmp_path).values()] == [1]


def test_a_search_that_ctrl_c_stops_says_how_it_goes_on(tmp_path, capsys, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("grpo.sweep.search.launch_all", interrupted)
    assert main(words(tmp_path, 2)) == 1
    assert "the search was stopped; the same command continues it" in capsys.readouterr().out


def test_a_word_that_hydra_cannot_read_is_named():
    with pytest.raises(UserError, match="a=interval"):
        ranges(["a=interval(1"])
