"""These tests give `grpo dynamics plan` folders without pass rates, and what a proof has measured."""

import json

import pytest

from grpo.commands import dynamics
from grpo.config import UserError
from grpo.config.folder import CONFIG_FILE, METRICS_FILE


@pytest.fixture
def runs(tmp_path):
    """Makes a folder of two runs, and returns it."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / METRICS_FILE).write_text('{"step": 1}\n')
        (tmp_path / name / CONFIG_FILE).write_text("{}")
    return tmp_path


def test_a_plan_for_a_folder_of_runs_names_them(runs):
    with pytest.raises(
        UserError, match=rf"{runs} is no run, but holds 2: .*{runs}/a.* plan takes a file of pass rates"
    ):
        dynamics.run(["plan", str(runs)])


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        ([0.0] * 9, "no problem is ever solved, so no group of any size teaches anything"),
        ([1.0] * 9, "all problems are always solved, so no group"),
        ([], "rates.jsonl has no rows"),
        ([True, False] * 5, "the column solve_rate holds true and false, one answer each: a pass rate takes several"),
    ],
)
def test_a_plan_without_anything_to_learn_is_refused(rates, message, tmp_path):
    path = tmp_path / "rates.jsonl"
    path.write_text("".join(json.dumps({"solve_rate": rate}) + "\n" for rate in rates))
    with pytest.raises(UserError, match=message):
        dynamics.run(["plan", str(path)])


def test_a_plan_for_completions_of_less_than_a_token_is_refused(runs):
    with pytest.raises(UserError, match=r"^completion_tokens=0.5 is less than a token: give their mean number"):
        dynamics.run(["plan", str(runs / "rates.jsonl"), "completion_tokens=0.5"])


def test_a_plan_for_a_run_says_what_reads_it(runs):
    message = rf"{runs}/a is a run, and plan takes a file of pass rates.*`grpo dynamics whatif {runs}/a` predicts it"
    with pytest.raises(UserError, match=message):
        dynamics.run(["plan", str(runs / "a")])


def test_a_plan_reads_the_pass_rates_in_a_folder_that_also_holds_runs(runs, capsys):
    (runs / "rates.jsonl").write_text("".join(json.dumps({"solve_rate": rate / 10}) + "\n" for rate in range(11)))
    assert dynamics.run(["plan", str(runs)]) == 0
    assert "progress" in capsys.readouterr().out


def test_a_plan_counts_the_seconds_that_a_proof_has_measured(runs, capsys):
    (runs / "rates.jsonl").write_text("".join(json.dumps({"solve_rate": rate / 10}) + "\n" for rate in range(11)))
    constants = {
        "sampling_tokens_per_second": [[128, 100.0], [1024, 800.0]],
        "learning_tokens_per_second": 1000.0,
        "refresh_seconds": 9.0,
        "round_overhead_seconds": 1.0,
    }
    proof = runs / "prove.json"
    proof.write_text(json.dumps({"device": "H100 of this test", "parameters": 1_500_000, "constants": constants}))
    assert dynamics.run(["plan", str(runs / "rates.jsonl"), f"machine={proof}"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "seconds are those of one H100 of this test with a model of 1,500,000 parameters" in printed
    del constants["refresh_seconds"]
    proof.write_text(json.dumps({"device": "CPU", "parameters": 7, "constants": constants}))
    with pytest.raises(UserError, match="lacks refresh_seconds: measure it by `grpo prove part=sync`"):
        dynamics.run(["plan", str(runs / "rates.jsonl"), f"machine={proof}"])
