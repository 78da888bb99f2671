"""These tests check `grpo report` of one run, finished or interrupted."""

import json
import sys
from contextlib import redirect_stderr
from pathlib import Path

import pytest

from grpo.cli import main
from grpo.config import UserError
from grpo.host import alive, environment
from grpo.telemetry.ending import FAILED, FINISHED, Ending, write_ending
from grpo.trainer import Result
from tests.insight.runs import write_run


def test_an_interrupted_run_is_reported_on_in_its_own_folder(tmp_path, capsys):
    write_run(tmp_path / "x", rounds=3)
    assert main(["report", str(tmp_path / "x")]) == 0
    assert not (tmp_path / "x" / "dynamics.html").exists() and not (tmp_path / "x" / "report.png").exists()
    assert "report.html  (opens in a browser)" in capsys.readouterr().out


def test_findings_of_a_run_are_printed_without_markup(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    folder = tmp_path / "x"
    write_run(folder, rounds=1)
    row = json.loads((folder / "metrics.jsonl").read_text()) | {"reward/mean": 0.0, "reward/std": 0.0}
    (folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    assert main(["report", str(folder)]) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if "no reward" in line]
    assert line.replace("│", " ").split()[:3] == ["critical", "no", "reward"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{}/nowhere"], "there is no folder {}/nowhere"),
        (["{}"], "is the folder of no sweep, and of no run that has finished a round: it has no metrics.jsonl"),
        (["{}", "output=elsewhere"], "a run's report is written into its own folder: leave out output="),
    ],
)
def test_a_folder_that_is_no_run_is_one_line(words, message, tmp_path, capsys):
    assert main(["report", *(word.format(tmp_path) for word in words)]) == 2
    assert message.format(tmp_path) in capsys.readouterr().err


def test_readers_of_a_run_name_the_runs_inside_a_folder_of_runs(tmp_path, capsys):
    write_run(tmp_path / "2026-11-23_19-02-11-4711", rounds=3)
    commands = [["samples"], ["dynamics", "diagnose"], ["dynamics", "whatif"], ["dynamics", "replay"], ["report"]]
    for words in (*([*command, str(tmp_path)] for command in commands), ["export", str(tmp_path), "x"]):
        assert main(words) == 2
        expected = (
            f"{tmp_path} is no run, but holds 1: give one of them, the newest first {tmp_path}/2026-11-23_19-02-11"
        )
        assert expected in capsys.readouterr().err
    with pytest.raises(UserError, match="is no run, but holds 1"):
        _ = Result(tmp_path).metrics


def test_a_run_that_failed_before_its_first_round_is_reported_with_the_reason(tmp_path, capsys):
    write_ending(tmp_path, Ending(FAILED, 0, "the server did not answer"))
    assert main(["report", str(tmp_path)]) == 2
    assert "failed before its first round: the server did not answer" in capsys.readouterr().err
    write_ending(tmp_path, Ending(FINISHED, 2))
    assert main(["report", str(tmp_path)]) == 2
    assert "finished before its first round: it has no metrics.jsonl" in capsys.readouterr().err
    write_ending(tmp_path, Ending(FAILED, 0, "the server did not answer"))
    (tmp_path / "metrics.jsonl").write_text("")
    assert main(["report", str(tmp_path)]) == 2
    assert "the server did not answer; it has finished no round" in capsys.readouterr().err


@pytest.mark.parametrize("lost", ["gone", "empty"])
def test_metrics_that_were_lost_are_named_where_checkpoints_show_rounds(lost, tmp_path, capsys):
    (tmp_path / "checkpoints" / "step-00000004").mkdir(parents=True)
    (tmp_path / "checkpoints" / "step-00000004" / "state.json").write_text("{}")
    if lost == "empty":
        (tmp_path / "metrics.jsonl").write_text("")
    assert main(["report", str(tmp_path)]) == 2
    assert f"has checkpoints, and its metrics.jsonl is {lost}: restore that file from a copy" in capsys.readouterr().err


def test_a_log_is_not_compared_with_runs(tmp_path, capsys):
    (tmp_path / "log.json").write_text("[]")
    assert main(["report", str(tmp_path), str(tmp_path / "log.json")]) == 2
    assert "log.json is a file, and runs are compared by their folders: give a log alone" in capsys.readouterr().err


def test_signs_of_life_come_before_the_report_and_not_within_it(tmp_path, capsys, monkeypatch):
    write_run(tmp_path / "x", rounds=3)
    monkeypatch.setattr(alive, "FIRST_MOMENTS", (0.0, 0.01, 0.02, 0.03))
    # Where the shell does not find grpo, one more line says how to call it.
    monkeypatch.setattr(environment, "GIVEN_PATH", str(Path(sys.executable).parent))
    with redirect_stderr(sys.stdout):
        assert main(["report", str(tmp_path / "x")]) == 0
    lines = capsys.readouterr().out.splitlines()
    signs = [line.startswith("grpo: ") for line in lines]
    assert signs.index(False) == signs.count(True) >= 4
    assert lines[signs.count(True)].startswith("x: ") and lines[-1].startswith("report ")


@pytest.mark.parametrize("pause", ["0", "-1", "nan", "inf"])
def test_a_pause_that_cannot_be_waited_for_is_refused(pause, tmp_path, capsys):
    assert main(["report", str(tmp_path), str(tmp_path), f"watch={pause}"]) == 2
    assert f"watch='{pause}' is not valid: it must be a number of seconds above 0" in capsys.readouterr().err


def test_a_run_that_is_given_twice_is_reported(tmp_path, capsys):
    assert main(["report", str(tmp_path), f"{tmp_path}/."]) == 2
    assert f"{tmp_path} is given twice: name each run once" in capsys.readouterr().err
