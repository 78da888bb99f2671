"""These tests give `grpo dynamics plan` folders that hold no pass rates."""

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


def test_a_plan_for_a_run_says_what_reads_it(runs):
    message = rf"{runs}/a is a run, and plan takes a file of pass rates.*`grpo dynamics whatif {runs}/a` predicts it"
    with pytest.raises(UserError, match=message):
        dynamics.run(["plan", str(runs / "a")])


def test_a_plan_reads_the_pass_rates_in_a_folder_that_also_holds_runs(runs, capsys):
    (runs / "rates.jsonl").write_text("".join(json.dumps({"solve_rate": rate / 10}) + "\n" for rate in range(11)))
    assert dynamics.run(["plan", str(runs)]) == 0
    assert "progress" in capsys.readouterr().out
