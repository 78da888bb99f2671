"""These tests read logs of other frameworks, in the files that they write."""

import ast
import json
import math
import os
import re
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from grpo.cli import main
from grpo.config import TrainConfig, UserError
from grpo.insight.diagnosis import progress
from grpo.insight.diagnosis.diagnostics import diagnose
from grpo.insight.logs.foreign_names import in_words_of
from grpo.insight.logs.foreign_rows import read_rows
from grpo.insight.logs.logs import read_log
from grpo.insight.pages.dynamics import advised, analysed
from grpo.insight.pages.verdict import verdict_lines
from tests.insight.structure import complaints

RISING = [0.2 + 0.01 * step for step in range(40)]


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_another_programs_metrics_file_is_no_run_of_grpo(tmp_path):
    write_lines(tmp_path / "metrics.jsonl", [{"step": step, "reward": rate} for step, rate in enumerate(RISING)])
    for path in (tmp_path, tmp_path / "metrics.jsonl"):
        np.testing.assert_allclose(read_log(path, "reward").history.values, RISING)


@pytest.mark.slow
def test_event_files_are_read_as_one_run(tmp_path):
    summary = pytest.importorskip("torch.utils.tensorboard")
    first = summary.SummaryWriter(str(tmp_path / "runs" / "a"))
    for step, rate in enumerate(RISING[:30]):
        first.add_scalar("train/reward", rate, step)
    first.close()
    # The run was resumed at step 20, and measured something else from there on.
    resumed = summary.SummaryWriter(str(tmp_path / "runs" / "a"), purge_step=20, filename_suffix=".resumed")
    for step in range(20, 40):
        resumed.add_scalar("train/reward", 0.9, step)
    resumed.add_scalar("eval/rewards/accuracy/mean", 0.25, 20)
    resumed.close()
    # Hyperparameters stand beside it, as one point in a folder of their own.
    beside = summary.SummaryWriter(str(tmp_path / "runs" / "a" / "hparams"))
    beside.add_scalar("hp_metric", 1.0, 0)
    beside.close()
    log = read_log(tmp_path)
    assert log["pass_rate"].steps.tolist() == list(range(40))
    assert log["pass_rate"].values[[0, 19, 20]] == pytest.approx([0.2, 0.39, 0.9])
    assert log.held_out.values.tolist() == [0.25]
    other = summary.SummaryWriter(str(tmp_path / "runs" / "b"))
    for step in range(3):
        other.add_scalar("train/reward", 0.1, step)
    other.close()
    with pytest.raises(UserError, match="holds the event files of 2 runs: give one of .*runs/a"):
        read_log(tmp_path)
    assert len(read_log(tmp_path / "runs" / "b")["pass_rate"]) == 3


@pytest.mark.slow
def test_the_last_of_several_runs_in_one_folder_of_event_files_is_read(tmp_path):
    summary = pytest.importorskip("torch.utils.tensorboard")
    for number, (length, rate) in enumerate([(60, 0.9), (20, 0.1), (40, 0.3)]):
        # The time in a file's name has whole seconds.
        run = summary.SummaryWriter(str(tmp_path), filename_suffix=f".{number}")
        for step in range(length):
            run.add_scalar("train/reward", rate + 0.001 * step, step)
        run.close()
        for file in tmp_path.glob(f"*.{number}"):
            file.rename(tmp_path / f"events.out.tfevents.{1700000000 + number}.host")
    log = read_log(tmp_path)
    np.testing.assert_allclose(log["pass_rate"].values, 0.3 + 0.001 * np.arange(40), atol=1e-6)
    assert log.notes[0].startswith("the log holds 3 runs one after another")


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (("rewards/chosen", "rewards/rejected", "rewards/accuracies"), "preference training"),
        (("accuracy", "margin", "mean_reward"), "a reward model's training"),
    ],
)
def test_the_log_of_a_training_without_completions_is_refused(tmp_path, names, kind):
    path = write_lines(tmp_path / "log.jsonl", [{"step": step, **dict.fromkeys(names, 0.5)} for step in range(40)])
    with pytest.raises(UserError, match=f"is the log of {kind} .*, which samples and rewards no completions"):
        read_log(path)


@pytest.mark.parametrize("text", ["35,2 %", "0.352", "31/64", "≈0.35", "0.35±0.03", "0·35", "'0.37", [0.35]])
def test_a_column_whose_numbers_are_written_as_texts_is_named(tmp_path, text):
    path = write_lines(tmp_path / "log.jsonl", [{"step": step, "loss": 0.1, "reward": text} for step in range(40)])
    assert f"reward holds {text!r}, which is no plain number, so it is left out: write its" in read_log(path).notes[0]
    for words in ("2026-11-27", "v0.3", "10:05:31", "a1"):
        write_lines(path, [{"step": step, "loss": 0.1, "at": words} for step in range(40)])
        assert not any("is no plain number" in note for note in read_log(path).notes)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("frac_reward_zero_std", 45.0, "goes up to 45, and a share is at most 1: divide percentages by 100"),
        ("frac_reward_zero_std", -0.5, "goes down to -0.5, and is never negative"),
        ("entropy", -1.0, "goes down to -1, and is never negative"),
        ("reward_std", -0.25, "goes down to -0.25, and is never negative"),
    ],
)
def test_a_metric_with_impossible_values_is_left_out_and_named(tmp_path, name, value, said):
    rows = [{"step": step, "reward": rate, name: value} for step, rate in enumerate(RISING)]
    log = read_log(write_lines(tmp_path / "log.jsonl", rows))
    assert f"{name} {said}, so it is left out" in log.notes
    assert sorted(log.series) == ["pass_rate", "reward/mean"]


def test_a_column_that_is_known_as_something_else_is_not_taken_for_the_pass_rate(tmp_path):
    rows = [{"step": step, "reward": rate, "learning_rate": 1e-6} for step, rate in enumerate(RISING)]
    path = write_lines(tmp_path / "log.jsonl", rows)
    with pytest.raises(UserError, match="column=learning_rate is no pass rate by its name, but: how far a step goes"):
        read_log(path, "learning_rate")
    rows = [{"step": step, "reward": rate, "train/loss": 0.1} for step, rate in enumerate(RISING)]
    with pytest.raises(UserError, match="column=train/loss is a loss by its name: choose another one"):
        read_log(write_lines(tmp_path / "log.jsonl", rows), "train/loss")


@pytest.mark.parametrize(("name", "column"), [("pass_rate", "pass_rate"), ("reward", "reward"), ("reward", None)])
def test_pass_rates_that_end_in_nan_end_the_curve_and_are_named(tmp_path, name, column):
    rows = [{"step": step, "kl": 0.1, name: rate if step < 30 else math.nan} for step, rate in enumerate(RISING)]
    log = read_log(write_lines(tmp_path / "log.jsonl", rows), column)
    assert log["pass_rate"].steps[-1] == 29
    assert "the last 10 values of the pass rate are no numbers: its curve ends at step 29" in log.notes


def test_the_largest_checkpoint_of_a_copied_folder_is_read(tmp_path):
    for step in (3, 12, 6):
        rows = [{"step": number, "reward": 0.5} for number in range(step)]
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(json.dumps({"log_history": rows}))
    assert len(read_log(tmp_path)["pass_rate"]) == 12


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x1f\x8b\x08\x00", "is packed: unpack it first"),
        (b"PK\x03\x04", "is packed: unpack it first"),
        ('{"step": 1}'.encode("utf-16"), "is text in UTF-16: save it as UTF-8"),
        (b"", "is empty: give a log that a run has written"),
    ],
)
def test_a_file_of_other_bytes_than_its_name_says_is_named(tmp_path, content, said):
    for name in ("log.json", "log.jsonl", "log.csv", "log.txt"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=f"{name} {said}"):
            read_log(tmp_path / name)


def test_mlflows_folder_gets_its_own_remedy(tmp_path):
    (tmp_path / "meta.yaml").write_text("run_id: a\n")
    with pytest.raises(UserError, match="of MLflow's folder, export the run's metrics as CSV with a column for each"):
        read_log(tmp_path)


def test_a_folder_of_much_more_than_a_run_is_refused_before_all_of_it_is_searched(tmp_path, monkeypatch):
    monkeypatch.setattr("grpo.insight.logs.foreign_rows.MOST_FOLDERS", 3)
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    with pytest.raises(UserError, match=f"{tmp_path} has more than 3 folders below it: give the folder of one run"):
        read_log(tmp_path)
    with pytest.raises(UserError, match="has neither metrics.jsonl, trainer_state.json"):
        read_log(tmp_path / "a")


def test_a_chart_exported_from_weights_and_biases_is_one_run(tmp_path):
    path = tmp_path / "chart.csv"
    head = '"train/global_step","good - v2 - train/reward","good - v2 - train/reward__MIN","good - v2 - train/kl"'
    path.write_text(head + "\n" + "".join(f'"{i}","{rate}","0","0.1"\n' for i, rate in enumerate(RISING)))
    log = read_log(path)
    assert log["pass_rate"].values[-1] == pytest.approx(0.59) and log["policy/reference_kl"].values[0] == 0.1
    assert log.notes[0].startswith("train/reward is taken for the pass rate")
    path.write_text("Step,a - reward,b - reward\n" + "".join(f"{i},{rate},\n" for i, rate in enumerate(RISING)))
    with pytest.raises(UserError, match=r"holds 2 runs \(a, b\): choose one by column='RUN - METRIC'"):
        read_log(path)
    assert len(read_log(path, "a - reward")["pass_rate"]) == 40


@pytest.mark.parametrize("form", ["rows", "columns", "lines"])
def test_a_history_of_weights_and_biases_is_read(tmp_path, form):
    rows = [{"_step": 3 * i, "train/global_step": i, "train/reward": rate, "train/grad_norm": "NaN"}
            for i, rate in enumerate(RISING)]  # fmt: skip
    path = tmp_path / "history.json"
    if form == "rows":
        path.write_text(json.dumps(rows))
    elif form == "columns":
        path.write_text(json.dumps({name: {str(i): row[name] for i, row in enumerate(rows)} for name in rows[0]}))
    else:
        path = write_lines(tmp_path / "history.jsonl", rows)
    # The optimizer's step counts, not the number of calls of the logger.
    assert read_log(path)["pass_rate"].steps.tolist() == list(range(40))


def test_rows_that_only_number_the_calls_of_the_logger_are_left_out_beside_steps_of_training(tmp_path):
    rows = []
    for i, rate in enumerate(RISING, 1):
        rows += [{"_step": 3 * i + j, "profiling/Time taken: rewards": 0.5} for j in (0, 1)]
        rows.append({"_step": 3 * i + 2, "train/global_step": i, "train/reward": rate})
    log = read_log(write_lines(tmp_path / "history.jsonl", rows))
    assert log["pass_rate"].steps.tolist() == list(range(1, 41)) and log.num_steps == 40
    assert log.notes[0] == "80 rows without a step of training are left out" and len(log.notes) == 2
    calls = [{"_step": step, "train/reward": rate} for step, rate in enumerate(RISING)]
    assert read_log(write_lines(tmp_path / "history.jsonl", calls)).num_steps == 39


def test_rows_with_a_negative_step_are_left_out_and_a_line_says_so(tmp_path):
    path = write_lines(tmp_path / "log.jsonl", [{"step": i - 2, "reward": rate} for i, rate in enumerate(RISING)])
    log = read_log(path)
    assert log["pass_rate"].steps.tolist() == list(range(38))
    assert log.notes[0] == "2 rows with a negative step are left out"
    write_lines(path, [{"step": -1 - i, "reward": rate} for i, rate in enumerate(RISING)])
    with pytest.raises(
        UserError, match='no rows with a step: give a log whose rows have a "step" of 0 or more .*"iteration"'
    ):
        read_log(path)


def test_a_device_without_an_end_is_not_read():
    with pytest.raises(UserError, match="/dev/zero is a device"):
        read_log(Path("/dev/zero"))


def test_a_file_that_is_no_log_is_refused_in_one_line(tmp_path, capsys):
    for name, text, message in (
        ("a.json", "[", "is not JSON (Expecting value: line 1 column 2 (char 1)): give JSON Lines a name that ends"),
        ("b.json", '{"x": 1}', "holds no log"),
        ("c.jsonl", '{"reward": 1}\n', "has no rows with a step"),
        ("nan.jsonl", '{"step": 1, "reward": NaN}\n' * 3, "has no finite numbers beside its steps: all are NaN"),
        ("words.jsonl", '{"step": 1, "reward": "0.5"}\n' * 3, "in a column of its own, not as text, in a list"),
        ("deep.jsonl", '{"step": 1, "metrics": {"reward": 0.5}}\n' * 3, "in a list or within another column"),
        ("d.jsonl", '{"step": 1, "text": "a"}\n', "has no finite numbers beside its steps"),
        (
            "e.log",
            "epoch 1\nepoch 2\n",
            "e.log is not JSON, and a log is .jsonl with one JSON object per line, .json, .csv",
        ),
        ("mine.yaml", "num_steps: 3\nseed: 1\n", "mine.yaml is a configuration by its name, and a log is needed: give"),
        ("f.jsonl", '{"log_history": []}', "f.jsonl is one JSON document: give it a name that ends in .json"),
        ("g.csv", "step,reward,reward\n1,2,3\n", "g.csv has two columns reward: give each another name"),
        ("h.csv", 'step,"reward\n1,2\n', "h.csv is no CSV file in UTF-8 (unexpected end of data): save it as one"),
    ):
        (tmp_path / name).write_text(text)
        assert main(["dynamics", "diagnose", str(tmp_path / name)]) == 2
        error = capsys.readouterr().err
        assert message in error and len(complaints(error)) == 1
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"has neither metrics.jsonl, trainer_state.json, steps.parquet nor"):
        read_log(tmp_path / "empty")


def test_texts_among_the_numbers_of_a_column_are_counted(tmp_path):
    rows = [{"step": step, "reward": "high" if step % 4 == 0 else 0.01 * step} for step in range(40)]
    log = read_log(write_lines(tmp_path / "log.jsonl", rows))
    assert "10 values of reward are text, such as 'high', and left out" in log.notes


def test_a_log_without_a_rate_to_fit_says_what_of_it_is_left_out(tmp_path):
    for reward, said in (
        ("0.5", "reward holds '0.5', which is no plain number"),
        (math.nan, "reward of the log hold no"),
    ):
        path = write_lines(tmp_path / "log.jsonl", [{"step": i, "reward": reward, "loss": 1.0} for i in range(9)])
        with pytest.raises(UserError, match="has no pass rate to fit; ") as refusal:
            analysed(read_log(path), path)
        assert said in str(refusal.value) and "names one of" not in str(refusal.value)


def test_openrlhfs_names_are_known(tmp_path):
    rows = [{"train/global_step": i, "train/rollout/reward_mean": rate, "train/rollout/truncated_rate": 0.1,
             "train/rollout/response_length_mean": 300.0, "train/ppo_clip_ratio": 0.02, "train/actor_grad_norm": 0.4,
             "train/entropy_loss": 0.6, "train/kl": 0.01, "train/timing/step_total": 30.0}
            for i, rate in enumerate(RISING, 1)]  # fmt: skip
    rows += [{"eval/global_step": i, "eval/eval_math500_pass1": 0.3, "eval/eval_response_length_mean": 0.5}
             for i in (10, 20, 30)]  # fmt: skip
    log = read_log(write_lines(tmp_path / "log.jsonl", rows))
    assert {
        name: log[name].values[0] for name in log.series if name.startswith(("pol", "comp", "learner", "time"))
    } == {
        "policy/clip_high_fraction": 0.02,
        "policy/entropy": 0.6,
        "policy/reference_kl": 0.01,
        "completions/length_mean": 300.0,
        "completions/truncated_fraction": 0.1,
        "learner/gradient_norm": 0.4,
        "learner/skipped_steps": 0.0,
        "time/round_seconds": 30.0,
    }
    assert log["pass_rate"].values[-1] == pytest.approx(0.59) and log.held_out.values.tolist() == [0.3, 0.3, 0.3]


def test_prime_rls_names_are_known_whatever_its_agent_is_called(tmp_path):
    rows = [{"step": i, "train/agg/all/solver/reward/mean": rate, "train/agg/effective/solver/reward/mean": 0.5,
             "train/agg/all/solver/solved_all": 0.25, "train/agg/all/solver/solved_none": 0.5,
             "train/agg/all/solver/is_truncated/mean": 0.1, "train/agg/all/solver/rewards/boxed/mean": 0.75}
            for i, rate in enumerate(RISING)]  # fmt: skip
    # The trainer and the evaluations write rows of their own for the same steps.
    rows += [{"step": i, "optim/grad_norm": 0.3, "entropy/all/mean": 0.4} for i in range(40)]
    rows += [{"step": i, "eval/aime24/all/solver/avg@16": 0.125} for i in (0, 20)]
    log = read_log(write_lines(tmp_path / "metrics_of_prime.jsonl", rows))
    assert log["groups/silent_fraction"].values[0] == 0.75 and log["reward/part/boxed"].values[0] == 0.75
    assert log["pass_rate"].values[-1] == pytest.approx(0.59) and log["learner/gradient_norm"].values[0] == 0.3
    assert log.held_out.values.tolist() == [0.125, 0.125]


def test_slimes_names_are_known_each_with_the_step_of_its_kind(tmp_path):
    rows = [{"rollout/step": i, "_step": 7 * i, "rollout/raw_reward": rate, "rollout/truncated_ratio": 0.1,
             "rollout/repetition_frac": 0.01} for i, rate in enumerate(RISING)]  # fmt: skip
    trained = {"train/grad_norm": 0.3, "train/entropy_loss": 0.5, "train/train_rollout_logprob_abs_diff": 0.02}
    rows += [{"train/step": i, **trained} for i in range(40)]
    rows += [{"eval/step": i, "eval/aime": 0.25, "eval/aime-truncated_ratio": 0.5} for i in (0, 20)]
    log = read_log(write_lines(tmp_path / "history.jsonl", rows))
    assert log["pass_rate"].steps.tolist() == log["policy/entropy"].steps.tolist() == list(range(40))
    assert log["mismatch/mean_abs"].values[0] == 0.02 and log["completions/repetition_fraction"].values[0] == 0.01
    assert log.held_out.values.tolist() == [0.25, 0.25]


def of_slime(rate: float, rollout: int) -> Iterator[dict]:
    """Yields the rows of a rollout with four optimizer steps, as slime logs them."""
    yield {"rollout/step": rollout, "rollout/raw_reward": rate}
    yield from ({"train/step": 4 * rollout + i, "train/grad_norm": 0.5 + 0.1 * i} for i in range(4))


def test_several_optimizer_steps_of_a_rollout_of_slime_belong_to_that_rollout(tmp_path):
    rows = [row for rollout, rate in enumerate(RISING) for row in of_slime(rate, rollout)]
    # It was resumed from rollout 20.
    rows += [row for rollout in range(20, 30) for row in of_slime(0.5, rollout)]
    log = read_log(write_lines(tmp_path / "history.jsonl", rows))
    assert log["pass_rate"].steps.tolist() == log["learner/gradient_norm"].steps.tolist() == list(range(30))
    assert log["pass_rate"].values[20:].tolist() == [0.5] * 10 and log.num_steps == 29
    assert log["learner/gradient_norm"].values == pytest.approx([0.65] * 30)
    assert "the log counts rollouts and optimizer steps apart" in log.notes[0]
    assert "most rollouts have several optimizer steps: the means of train/grad_norm are read" in log.notes


@pytest.mark.slow
def test_several_optimizer_steps_of_a_rollout_in_event_files_belong_to_that_rollout(tmp_path):
    writer = pytest.importorskip("torch.utils.tensorboard").SummaryWriter(str(tmp_path))
    for rollout, rate in enumerate(RISING):
        for row in of_slime(rate, rollout):
            step = row.get("rollout/step", row.get("train/step"))
            for name, value in row.items():
                writer.add_scalar(name, value, step)
    writer.close()
    log = read_log(tmp_path)
    assert log["pass_rate"].steps.tolist() == log["learner/gradient_norm"].steps.tolist() == list(range(40))


def test_rows_of_a_slower_rank_are_no_restart(tmp_path):
    # Each rank logs steps 1 to 30, and the last two are up to two steps behind.
    logged_at = [(step + 0.7 * rank, rank, step) for rank in range(4) for step in range(1, 31)]
    rows = [{"step": step, "reward": 0.2 + 0.1 * rank, "kl": 0.1} for _, rank, step in sorted(logged_at)]
    log = read_log(write_lines(tmp_path / "log.jsonl", rows))
    assert log["pass_rate"].values == pytest.approx([0.35] * 30)
    assert not [note for note in log.notes if "resumed" in note or "runs" in note]


@pytest.mark.parametrize("name", ["step", "global_step"])
def test_steps_that_are_written_as_texts_are_steps(tmp_path, name):
    rows = [{name: str(step), "reward": str(rate)} for step, rate in enumerate(RISING)]
    log = read_log(write_lines(tmp_path / "log.jsonl", rows))
    assert log["pass_rate"].steps.tolist() == list(range(40))
    assert log.notes == ["reward is taken for the pass rate: column=NAME scale=NUMBER names another"]


def test_a_table_with_a_line_for_each_value_is_read(tmp_path):
    lines = [
        f"a,{key},{value},{step}" for step, rate in enumerate(RISING) for key, value in (("reward", rate), ("kl", 0.1))
    ]
    (tmp_path / "m.csv").write_text("\n".join(["run_id,key,value,step", *lines, ""]))
    log = read_log(tmp_path / "m.csv")
    assert log["pass_rate"].values.tolist() == pytest.approx(RISING) and set(log["policy/reference_kl"].values) == {0.1}


def test_lines_of_another_program_with_steps_of_their_own_are_not_the_trainers(tmp_path):
    lines = [f"{{'loss': 0.01, 'reward': {rate:.2f}}}" for rate in RISING]
    lines[10:10] = ["saved step 10: {'size_gb': 1.5}", "saved step 20: {'size_gb': 1.5}"]
    (tmp_path / "trl.log").write_text("\n".join(lines))
    assert read_log(tmp_path / "trl.log")["pass_rate"].values == pytest.approx(RISING, abs=0.01)


def test_a_recording_of_rlprobe_is_read(tmp_path):
    rows = [{"step": i, "reward_mean": 0.6, "reward_component.correctness": rate, "zero_variance_group_frac": 0.3,
             "adv_std": 1.0, "kl_mean": None} for i, rate in enumerate(RISING)]  # fmt: skip
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "steps.parquet")
    log = read_log(tmp_path)
    assert log["groups/silent_fraction"].values[0] == 0.3 and log["advantages/std"].values[0] == 1.0
    assert not len(log["policy/reference_kl"])


def test_a_step_that_was_logged_twice_keeps_its_last_value(tmp_path):
    rows = [{"step": i, "reward": 0.1} for i in range(30)] + [{"step": i, "reward": 0.2} for i in range(20, 40)]
    log = read_log(write_lines(tmp_path / "log.jsonl", rows))
    assert log["pass_rate"].steps.tolist() == list(range(40))
    assert log["pass_rate"].values.tolist() == [0.1] * 20 + [0.2] * 20


def test_rows_of_a_resumed_run_beyond_its_checkpoint_are_left_out(tmp_path):
    rows = [{"step": i, "reward": 0.1, "kl": 0.1} for i in range(30)]
    rows += [{"step": i, "reward": 0.2, "kl": 0.2} for i in range(20, 25)]
    log = read_log(write_lines(tmp_path / "log.jsonl", rows))
    assert log["pass_rate"].steps.tolist() == list(range(25)) and log["pass_rate"].values[-5:].tolist() == [0.2] * 5
    assert log.notes[0] == "the run was resumed at step 20: what it had logged from there on before is left out"


def test_the_last_of_two_runs_in_one_log_is_read_and_a_line_says_so(tmp_path, capsys):
    rows = [{"step": i, "reward": 0.1} for i in range(40)] + [{"step": i, "reward": 0.2} for i in range(25)]
    path = write_lines(tmp_path / "log.jsonl", rows)
    log = read_log(path)
    assert log["pass_rate"].values.tolist() == [0.2] * 25
    main(["dynamics", "diagnose", str(path)])
    assert capsys.readouterr().out.startswith("the log holds 2 runs one after another, since its steps begin again: ")


def test_rows_out_of_order_and_late_evaluations_are_no_second_run(tmp_path):
    rows = [{"step": i, "reward": i / 40} for i in reversed(range(30))]
    rows += [{"step": 3, "eval_reward": 0.3, "eval_loss": 1.0}, {"step": 9, "eval_reward": 0.4, "eval_loss": 1.0}]
    log = read_log(write_lines(tmp_path / "log.jsonl", rows))
    assert log["pass_rate"].values.tolist() == [i / 40 for i in range(30)]
    assert log.held_out.steps.tolist() == [3, 9] and len(log.notes) == 1


@pytest.mark.filterwarnings("error")
def test_numbers_without_a_computable_error_are_left_out_and_reported(tmp_path, capsys):
    rows = [{"step": i, "reward": rate, "rewards/judge": 1e300 * (-1) ** i} for i, rate in enumerate(RISING)]
    path = write_lines(tmp_path / "log.jsonl", rows)
    assert main(["dynamics", "diagnose", str(path)]) == 0
    output = capsys.readouterr().out
    assert output.startswith(f"{len(RISING)} values beyond ±1e+60 are left out, of rewards/judge")
    assert "nan" not in output and "gamed" not in output


def test_a_log_of_evaluations_only_is_diagnosed_and_forecast(tmp_path, capsys):
    rows = [{"step": 10 * i, "eval/accuracy": 0.2 + 0.5 * i / 30} for i in range(31)]
    path = write_lines(tmp_path / "log.jsonl", rows)
    log = read_log(path)
    assert log.history.steps[-1] == 300 and log.history.values[-1] == 0.7 and not len(log.held_out)
    assert main(["dynamics", "diagnose", str(path)]) == 0
    output = capsys.readouterr().out
    assert output.startswith("the log has held-out scores only: eval/accuracy is taken for the pass rate")
    assert "learning; the pass rate went from 27.5% in the first 10 rounds to 62.5% in the last 10 of 31 (" in output
    assert main(["dynamics", "forecast", str(path)]) == 0
    assert "forecast for step 450: pass rate " in capsys.readouterr().out


def test_a_few_odd_values_that_keep_a_column_from_being_the_pass_rate_are_named(tmp_path, capsys):
    rows = [{"step": i + 1, "reward": 1e6 if i == 20 else 0.2 + 0.005 * i, "grad_norm": 0.4} for i in range(60)]
    said = (
        "reward would be taken for the pass rate, and 1 of its 60 values lie outside 0 to 1, such as 1e+06 at step 21"
    )
    assert said in read_log(write_lines(tmp_path / "log.jsonl", rows)).notes[-1]
    assert main(["dynamics", "forecast", str(tmp_path / "log.jsonl")]) == 2
    assert said in capsys.readouterr().err
    often = [row | {"reward": 3 * row["reward"]} for row in rows]
    assert "no column is a pass rate" in read_log(write_lines(tmp_path / "often.jsonl", often)).notes[-1]


def test_held_out_scores_are_those_of_the_part_that_grades_answers(tmp_path):
    rows = [{"step": i + 1, "rewards/accuracy_reward/mean": 0.1 + 0.01 * i, "rewards/format_reward/mean": 0.9,
             "reward": 0.55 + 0.01 * i} for i in range(40)]  # fmt: skip
    rows[19] |= {"eval_reward": 0.62, "eval_rewards/accuracy_reward/mean": 0.17, "eval_rewards/format_reward/mean": 0.9}
    rows[39] |= {"eval_reward": 0.8, "eval_rewards/accuracy_reward/mean": 0.35, "eval_rewards/format_reward/mean": 0.9}
    log = read_log(write_lines(tmp_path / "log.jsonl", rows))
    assert log.held_out.values.tolist() == [0.17, 0.35]
    assert "the held-out scores are those of eval_rewards/accuracy_reward/mean, the first of" in log.notes[-2]
    assert all(isinstance(note, str) for note in log.notes)


@pytest.mark.parametrize(
    ("column", "score", "earned", "read"),
    [
        (None, "eval_rewards/accuracy/mean", 0.8, [0.4, 0.4]),
        ("rewards/accuracy/mean", "eval_rewards/accuracy/mean", 1.6, [0.8, 0.8]),
        ("rewards/accuracy/mean", "eval_rewards/format/mean", 0.8, []),
        ("rewards/accuracy/mean", "eval/accurate", 0.8, [0.8, 0.8]),
        ("other", "eval_reward", 0.8, [0.4, 0.4]),
        ("other", "eval_accuracy", 0.8, [0.8, 0.8]),
    ],
)
def test_held_out_scores_are_divided_by_the_scale_of_the_reward_that_they_are_of(tmp_path, column, score, earned, read):
    rows = [{"step": step, "rewards/accuracy/mean": 2 * rate, "rewards/accuracy/std": 2 * (rate * (1 - rate)) ** 0.5,
             "rewards/format/mean": 1.0, "other": 2 * rate} for step, rate in enumerate(RISING)]  # fmt: skip
    rows += [{"step": step, score: earned} for step in (20, 39)]
    log = read_log(write_lines(tmp_path / "log.jsonl", rows), column, 2.0 if column else 1.0)
    assert log["pass_rate"].values == pytest.approx(RISING) and log.held_out.values.tolist() == read


@pytest.mark.parametrize("name", ["val-core/math_stepwise/acc/mean@4", "val-core/glossary/acc/mean@1", "eval_accuracy"])
def test_a_held_out_set_whose_name_holds_another_word_is_read(name, tmp_path):
    rows = [{"step": i + 1, "critic/score/mean": 0.1 + 0.01 * i, name: 0.2 + 0.01 * i} for i in range(20)]
    assert len(read_log(write_lines(tmp_path / "log.jsonl", rows)).held_out) == 20
    rows = [{"step": i + 1, "critic/score/mean": 0.1 + 0.01 * i, "eval/entropy_loss": 0.2} for i in range(20)]
    assert not len(read_log(write_lines(tmp_path / "log.jsonl", rows)).held_out)


@pytest.mark.parametrize(("other", "taken"), [("format_correctness", "accuracy"), ("correct_language", "accuracy")])
def test_a_part_that_grades_the_form_is_not_taken_for_the_pass_rate(other, taken, tmp_path):
    rows = [{"step": step, f"rewards/{other}/mean": 0.9, f"rewards/{taken}/mean": rate, "reward": 3.0}
            for step, rate in enumerate(RISING)]  # fmt: skip
    assert read_log(write_lines(tmp_path / "log.jsonl", rows))["pass_rate"].values == pytest.approx(RISING)
    rows = [{"step": step, "rewards/format_correctness/mean": 0.9, "reward": 3.0} for step in range(40)]
    assert not len(read_log(write_lines(tmp_path / "form.jsonl", rows))["pass_rate"])


def test_rewards_of_minus_one_and_one_are_no_pass_rates(tmp_path):
    rows = [{"step": i + 1, "critic/score/mean": 0.1 + 0.01 * i, "critic/score/min": -1.0} for i in range(20)]
    log = read_log(write_lines(tmp_path / "log.jsonl", rows))
    assert not len(log.history) and "no column is a pass rate" in log.notes[-1]
    # Nor are those of held-out problems, while their accuracies are.
    rows = [row | {"critic/rewards/mean": 0.5, "val-core/gsm8k/reward/mean@1": 0.5} for row in rows]
    assert not len(read_log(write_lines(tmp_path / "r.jsonl", rows)).held_out)
    rows = [row | {"val-core/gsm8k/acc/mean@1": 0.75} for row in rows]
    assert set(read_log(write_lines(tmp_path / "a.jsonl", rows)).held_out.values) == {0.75}


@pytest.mark.parametrize(("spread", "last"), [(True, 0.3), (False, 0.6)])
def test_two_points_for_a_right_answer_show_in_the_spread_of_grades(spread, last, tmp_path):
    name, rows = "rewards/correctness_reward_func", []
    for i in range(31):
        rate = 0.01 * i
        rows.append({"step": i + 1, f"{name}/mean": 2 * rate, "reward": 2 * rate, "rewards/format/mean": 0.0})
        rows[-1] |= {f"{name}/std": 2 * (rate * (1 - rate)) ** 0.5} if spread else {}
    log = read_log(write_lines(tmp_path / "log.jsonl", rows))
    assert log["pass_rate"].values[-1] == pytest.approx(last)


def test_the_spread_of_rewards_is_no_part_of_them(tmp_path):
    rows = [{"step": i + 1, "reward": 0.3, "rewards/std": 0.4, "rewards/max": 1.0} for i in range(20)]
    log = read_log(write_lines(tmp_path / "log.jsonl", rows))
    assert not [one for one in log.series if one.startswith("reward/part/")]


@pytest.mark.parametrize("step", ["step", "global_step"])
def test_another_programs_log_is_read_whatever_it_is_called(step, tmp_path):
    rows = [{step: i + 1, "reward": 0.3 + 0.01 * i, "kl": 0.1} for i in range(20)]
    rows = [*rows[:12], {step: 12, "eval_reward": 0.4}, *rows[10:]]
    logs = [read_log(write_lines(tmp_path / name, rows)) for name in ("log.jsonl", "metrics.jsonl")]
    assert len(logs[0].history) == len(logs[1].history) == 20


def test_a_forecast_of_rewards_that_end_before_the_log_says_so(tmp_path, capsys):
    rows = [{"step": i + 1, "grad_norm": 0.4} | ({"reward": 0.2 + 0.01 * i} if i < 30 else {}) for i in range(60)]
    path = write_lines(tmp_path / "log.jsonl", rows)
    said = "where the rewards end: the last pass rate is that of step 30, and the log goes on to step 60"
    assert main(["dynamics", "forecast", str(path)]) == 0
    assert said in capsys.readouterr().out
    assert main(["dynamics", "forecast", str(write_lines(path, rows[:30]))]) == 0
    assert "where the rewards end" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("columns", "advice"),
    [
        ({"rewards/accuracy/mean": 1.0, "completions/clipped_ratio": 0.95}, "max_completion_length"),
        ({"critic/score/mean": 0.3, "response_length/clip_ratio": 0.95}, "data.max_response_length"),
        ({"rollout/reward_mean": 0.3, "rollout/truncated_rate": 0.95}, "limit of tokens"),
    ],
)
def test_advice_is_in_the_words_of_the_framework_that_wrote_the_log(tmp_path, columns, advice):
    rows = [{"step": step, **columns} for step in range(30)]
    [cut] = [finding for finding in advised(read_log(write_lines(tmp_path / "log.jsonl", rows)))
             if finding.name == "truncated"]  # fmt: skip
    assert cut.remedy.startswith(f"a larger {advice}") and "rollout.sampling" not in cut.remedy


def test_lines_for_users_of_other_frameworks_hold_no_key_of_ours():
    key = re.compile(rf"(?<![\w./])(?:{'|'.join([*vars(TrainConfig()), 'samples', 'groups'])})[./=][a-z_]+")
    texts = [
        node.value
        for name in ("setbacks", "no_reward", "progress", "reward_parts", "symptoms")
        for node in ast.walk(ast.parse((Path(progress.__file__).parent / f"{name}.py").read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value
    ]
    ours = [text for text in texts if key.search(text)]
    left = {text: in_words_of(framework, text) for framework in ("trl", "verl", "") for text in ours}
    assert len(ours) > 25
    assert not [text for text, output in left.items() if key.search(output.replace("actor_rollout_ref.rollout.n", ""))]


def test_a_gradient_norm_that_is_not_a_number_is_a_skipped_step(tmp_path):
    rows = [{"step": i, "reward": rate, "grad_norm": float("nan") if i % 4 == 0 else 0.5}
            for i, rate in enumerate(RISING)]  # fmt: skip
    log = read_log(write_lines(tmp_path / "log.jsonl", rows))
    evidence = {finding.name: finding.evidence for finding in diagnose(log)}
    assert evidence["gradients not finite"] == "gradients were NaN or Inf in 20% of the last 10 rounds"


def evaluated(rates, norms):
    """Returns the rows of a run's history as pandas writes them: columns of an evaluation are NaN in rows of training,
    and columns of training are NaN in rows of an evaluation, one after every second step."""
    trained = {"train/loss": 0.1, "train/learning_rate": 1e-6, "train/completions/mean_length": 80.0}
    for step, (rate, norm) in enumerate(zip(rates, norms, strict=True)):
        row = {"step": step, "_runtime": 1.0 * step, **trained, "train/reward": rate, "train/grad_norm": norm}
        yield {**row, "eval/accuracy": float("nan")}
        if step % 2:
            training = dict.fromkeys([*trained, "train/reward", "train/grad_norm"], float("nan"))
            yield {"step": step, "_runtime": 1.0 * step, **training, "eval/accuracy": rate}


def printed_on_gradients(path):
    return {finding.name: finding.evidence for finding in diagnose(read_log(path))}.get("gradients not finite")


def test_a_cell_that_was_not_logged_is_no_skipped_step(tmp_path):
    nan, generator = float("nan"), np.random.default_rng(0)
    rows = list(evaluated(RISING, [0.5] * 40))
    assert printed_on_gradients(write_lines(tmp_path / "evaluated.jsonl", rows)) is None
    gaps = [{name: nan if name != "step" and generator.random() < 0.15 else value for name, value in row.items()}
            for row in evaluated(RISING, [0.5] * 40)]  # fmt: skip
    assert printed_on_gradients(write_lines(tmp_path / "gaps.jsonl", gaps)) is None


def test_a_gradient_that_is_not_a_number_is_reported_beside_cells_that_were_not_logged(tmp_path):
    rows = list(evaluated(RISING, [float("nan") if step % 4 == 0 else 0.5 for step in range(40)]))
    output = printed_on_gradients(write_lines(tmp_path / "log.jsonl", rows))
    assert output == "gradients were NaN or Inf in 20% of the last 10 rounds"


def test_a_long_log_takes_two_numbers_of_memory_for_each_number_in_it(tmp_path):
    rows = [{"step": step, **{f"column_{index}": step + index / 7 for index in range(40)}} for step in range(2_000)]
    path = write_lines(tmp_path / "log.jsonl", rows)
    read_rows(path)
    tracemalloc.start()
    columns = read_rows(path).columns.named()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(columns) == 40 and columns["column_39"].values[-1] == 1999 + 39 / 7
    # The arrays that grow leave some room, and are there twice at the end.
    assert peak < 2.5 * 16 * 2_000 * 40


def test_a_total_that_is_named_as_a_part_is_the_reward_where_there_is_no_other(tmp_path):
    rows = [
        {"step": step, "rewards/format/mean": 3.0, "rewards/reward/mean": 3 + rate} for step, rate in enumerate(RISING)
    ]
    log = read_log(write_lines(tmp_path / "total.jsonl", rows))
    assert log["reward/mean"].values[0] == pytest.approx(3.2) and not len(log["reward/part/reward"])
    assert "rewards/reward/mean" in log.notes[-1]
    both = [{**row, "reward": 9.0} for row in rows]
    log = read_log(write_lines(tmp_path / "both.jsonl", both))
    assert log["reward/mean"].values[0] == 9 and log["reward/part/reward"].values[0] == pytest.approx(3.2)
    alone = [{"step": step, "rewards/reward/mean": rate} for step, rate in enumerate(RISING)]
    log = read_log(write_lines(tmp_path / "alone.jsonl", alone))
    assert log.notes == ["rewards/reward/mean is taken for the pass rate: column=NAME scale=NUMBER names another"]


def test_a_reward_that_is_always_0_beside_right_answers_is_left_out(tmp_path):
    rows = [{"step": step, "reward_mean": 0, "pass_rate": rate, "grad_norm": 1.0} for step, rate in enumerate(RISING)]
    log = read_log(write_lines(tmp_path / "zeros.jsonl", rows))
    assert log.notes == ["reward_mean is always 0, although pass_rate is not, so it is left out"]
    assert not {"no reward", "constant reward"} & {finding.name for finding in diagnose(log)}
    none = [{**row, "pass_rate": 0.0} for row in rows]
    assert [finding.name for finding in diagnose(read_log(write_lines(tmp_path / "none.jsonl", none)))] == ["no reward"]


def test_a_mean_score_of_parts_of_points_does_not_mean_that_problems_are_solved(tmp_path):
    generator = np.random.default_rng(0)

    def said(draw):
        rows = []
        for step in range(10, 510, 10):
            # Ten steps of two prompts, whose four completions each get the same.
            rewards = np.clip(draw((10, 2)), 0, 1).repeat(4, axis=1)
            reward = {"reward": rewards.mean(), "reward_std": 0.0, "frac_reward_zero_std": 1.0}
            spread = {"rewards/f/mean": rewards.mean(), "rewards/f/std": rewards.std(axis=1, ddof=1).mean()}
            rows.append({"step": step, **reward, **spread})
        log = read_log(write_lines(tmp_path / "log.jsonl", rows))
        verdict = verdict_lines(log)[0][0].startswith("the problems are solved")
        names = {finding.name for finding in diagnose(log)} - {"on the plateau"}
        return names, verdict, "parts of a point" in log.notes[-1]

    assert said(lambda size: 0.97 + 0.03 * generator.standard_normal(size)) == ({"no signal"}, False, True)
    assert said(lambda size: generator.binomial(1, 0.97, size)) == ({"problems solved"}, True, False)


@pytest.mark.parametrize(("least", "partial"), [(0.1, True), (0.0, False), (1.0, False)])
def test_rewards_for_the_form_alone_are_known_by_the_least_reward(tmp_path, least, partial):
    data = [{"critic/score/mean": 0.98, "critic/score/min": least, "critic/score/max": 1.0} for _ in RISING]
    log = read_log(write_lines(tmp_path / "log.jsonl", [{"step": i, "data": row} for i, row in enumerate(data)]))
    assert log.partial == partial == any("parts of a point" in note for note in log.notes)
    assert ("problems solved" in {finding.name for finding in diagnose(log)}) != partial


def test_values_that_are_logged_ten_times_each_count_once(tmp_path):
    rates = np.random.default_rng(0).binomial(64, np.linspace(0.3, 0.5, 40)) / 64
    once = [{"step": 10 * number + 9, "epoch": number // 2, "reward": rate} for number, rate in enumerate(rates)]
    rows = [{**row, "step": row["step"] - 9 + more} for row in once for more in range(10)]
    log = read_log(write_lines(tmp_path / "often.jsonl", rows))
    expected = read_log(write_lines(tmp_path / "once.jsonl", once))
    np.testing.assert_allclose(log.history.errors, expected.history.errors)
    assert log.history.steps.tolist() == expected.history.steps.tolist()
    assert log.notes == ["each value of reward stands there 10 times and is read once", *expected.notes]
    # The last value has been logged four times so far, and the first one was logged six times less.
    part = read_log(write_lines(tmp_path / "part.jsonl", rows[6:-6]))
    assert part["pass_rate"].values.tolist() == list(rates)
    assert part["pass_rate"].steps.tolist() == [*range(9, 399, 10), 393]
    # A rate of few completions stays the same by luck, and a constant one has no values to tell apart.
    seldom = [{"step": step, "reward": float(np.sin(0.7 * step * step) > 0.0)} for step in range(60)]
    assert len(read_log(write_lines(tmp_path / "seldom.jsonl", seldom))["pass_rate"]) == 60
    still = [{"step": step, "reward": 0.5} for step in range(60)]
    assert len(read_log(write_lines(tmp_path / "still.jsonl", still))["pass_rate"]) == 60


def test_a_log_whose_steps_repeat_again_and_again_keeps_the_last_row_of_each_metric(tmp_path):
    rows = [{"step": i, "reward": 0.1, "kl": 0.1} for i in range(20)]
    # A run that was resumed twice, and an evaluation that comes late.
    rows += [{"step": i, "reward": 0.2, "kl": 0.2} for i in range(10, 16)]
    rows += [{"step": 4, "eval/accuracy": 0.5}, {"step": 6, "eval/accuracy": 0.6}]
    rows += [{"step": i, "reward": 0.3, "kl": 0.3} for i in range(12, 20)]
    log = read_log(write_lines(tmp_path / "log.jsonl", rows))
    assert log["pass_rate"].values.tolist() == [0.1] * 10 + [0.2] * 2 + [0.3] * 8
    assert log.held_out.steps.tolist() == [4, 6]
    assert log.notes[0].startswith("the run was resumed at step 10, 12: ")


def test_a_smoothed_mean_may_leave_its_range_by_a_little(tmp_path):
    rows = [{"step": i, "reward": 3.0, "rewards/accuracy/mean": rate, "rewards/format/mean": 1.0}
            for i, rate in enumerate(np.linspace(-0.01, 1.01, 40))]  # fmt: skip
    log = read_log(write_lines(tmp_path / "log.jsonl", rows))
    assert log["pass_rate"].values[[0, -1]].tolist() == [0.0, 1.0]
    assert log.notes[0].startswith("rewards/accuracy/mean is taken for the pass rate")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["diagnose", "scale=2"], "scale= says which number in column=NAME means a right answer: give both"),
        (["diagnose", "column="], "column= names no column: write column=NAME, or leave it out"),
        (["diagnose", "column=reward", "scale=nan"], "scale='nan' is not valid: it must be a number above 0"),
        (["forecast", "last_step=-5"], "last_step='-5' is not valid: it must be a whole number of at least 0"),
    ],
)
def test_words_that_would_be_ignored_are_refused(tmp_path, capsys, words, message):
    log = write_lines(tmp_path / "log.jsonl", [{"step": step, "reward": rate} for step, rate in enumerate(RISING)])
    assert main(["dynamics", words[0], str(log), *words[1:]]) == 2
    assert message in capsys.readouterr().err


def test_a_run_of_ours_is_asked_for_no_column(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(UserError, match="is a run of grpo, whose pass rates are known: leave out column="):
        read_log(tmp_path, "reward")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("trainer_state.json", json.dumps({"max_steps": None, "log_history": [7, None, {"step": 1, "reward": 0.5}]})),
        ("rows.jsonl", '[1]\n7\nnull\n{"step": Infinity, "reward": 0.1}\n{"step": 1, "reward": 0.5}\n'),
        (
            "digits.jsonl",
            f'{{"step": 1{"0" * 400}, "reward": 0.1}}\n{{"iteration": 1, "reward": 0.5, "n": 1{"0" * 400}}}\n',
        ),
    ],
)
def test_rows_that_are_none_are_left_out(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    passed = read_log(tmp_path / name)["pass_rate"]
    assert (passed.steps.tolist(), passed.values.tolist()) == ([1.0], [0.5])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("log.csv", "step;reward\n1;0.5\n"),
        ("log.csv", "step|reward\n1|0.5\n"),
        ("log.csv", "step, reward\n1, 0.5\n"),
        ("log.tsv", "step\treward\n1\t0.5\n"),
        ("log.json", '\ufeff[{"step": 1, "reward": 0.5}]'),
    ],
)
def test_a_table_is_read_whatever_separates_its_values(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    passed = read_log(tmp_path / name)["pass_rate"]
    assert (passed.steps.tolist(), passed.values.tolist()) == ([1.0], [0.5])


@pytest.mark.parametrize("run", ["model=qwen;lr=1e-6;b=64", "a|b|c", "a\tb\tc"])
def test_a_separator_within_the_quoted_name_of_a_run_separates_nothing(run, tmp_path):
    (tmp_path / "log.csv").write_text(f'"Step","{run} - reward"\n"1","0.5"\n')
    assert read_log(tmp_path / "log.csv")["pass_rate"].values.tolist() == [0.5]


def test_a_pass_rate_in_percent_says_which_scale_takes_it(tmp_path):
    (tmp_path / "log.csv").write_text("step,pass_rate\n" + "".join(f"{step},{30 + step}\n" for step in range(9)))
    assert read_log(tmp_path / "log.csv").notes == [
        "pass_rate goes up to 38, so it is left out: column=pass_rate scale=100 takes 100 for 1"
    ]
    assert read_log(tmp_path / "log.csv", "pass_rate", 100.0)["pass_rate"].values[0] == 0.3


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("step,reward\n1,0,5\n2,0,6\n", "line 2 of .* has more cells than its header: write numbers with a point"),
        ("step;reward\n1;0.5\n2;0,6\n", "line 3 of .* has the number '0,6': write it with a point"),
        ("step,reward\n1,30.5%\n2,31%\n", "line 2 of .* has '30.5%': write the number without its sign"),
    ],
)
def test_a_table_with_decimal_commas_is_refused(tmp_path, text, complaint):
    (tmp_path / "log.csv").write_text(text)
    with pytest.raises(UserError, match=complaint):
        read_log(tmp_path / "log.csv")


@pytest.mark.parametrize(
    ("rows", "note"),
    [
        ([{"step": 1, "reward": 0.5}] * 3, "all 3 rows have the step 1, so the last one alone counts"),
        (
            [{"step": n, "reward": 0.5, "kl": float("inf") if n == 2 else 0.1} for n in range(3)],
            "1 infinite values of kl",
        ),
        ([{"step": n, "reward": float("nan"), "kl": 0.1} for n in range(3)], "reward of the log hold no finite number"),
    ],
)
def test_a_log_of_which_rows_or_numbers_are_left_out_has_a_note(tmp_path, rows, note):
    assert any(note in line for line in read_log(write_lines(tmp_path / "log.jsonl", rows)).notes)


def test_numbers_that_are_texts_are_numbers(tmp_path):
    passed = read_log(write_lines(tmp_path / "log.jsonl", [{"step": "1", "reward": "0.5"}]))["pass_rate"]
    assert (passed.steps.tolist(), passed.values.tolist()) == ([1.0], [0.5])


def test_a_damaged_event_file_is_named(tmp_path):
    (tmp_path / "events.out.tfevents.1").write_bytes(bytes(range(256)))
    with pytest.raises(UserError, match="holds no scalars of two steps or more: its event files are empty or damaged"):
        read_log(tmp_path)


@pytest.mark.parametrize("planned", [1e308, 10**15, float("nan")])
def test_a_number_of_steps_that_no_run_takes_is_none(tmp_path, planned):
    (tmp_path / "trainer_state.json").write_text(
        json.dumps({"max_steps": planned, "log_history": [{"step": 7, "reward": 0.5}]})
    )
    assert read_log(tmp_path).num_steps == 7


@pytest.mark.parametrize("name", ["log.csv", "log.parquet"])
def test_a_damaged_file_is_reported_in_one_line(tmp_path, name, capsys):
    (tmp_path / name).write_bytes(b"step,reward\n1,\x80\n")
    assert main(["dynamics", "diagnose", str(tmp_path / name)]) == 2
    assert f"{tmp_path / name}" in capsys.readouterr().err


def test_a_log_too_short_to_fit_and_one_without_a_column_to_check_say_so(tmp_path, capsys):
    path = write_lines(tmp_path / "log.jsonl", [{"step": step, "reward": 0.5} for step in (1, 2)])
    assert main(["dynamics", "forecast", str(path)]) == 2
    assert "has too few rounds to fit" in capsys.readouterr().err
    write_lines(path, [{"step": step, "unknown": 0.5} for step in range(30)])
    assert main(["dynamics", "diagnose", str(path)]) == 0
    assert "none of 33 checks could be made" in " ".join(capsys.readouterr().out.split())


def test_a_change_that_is_hardly_known_has_no_interval(tmp_path, capsys):
    # Waves of 13 rounds: of 30 rounds few are independent.
    waves = [0.5 + 0.4 * np.sin(step / 2) for step in range(30)]
    path = write_lines(tmp_path / "log.jsonl", [{"step": step, "reward": value} for step, value in enumerate(waves)])
    main(["dynamics", "diagnose", str(path)])
    output = " ".join(capsys.readouterr().out.split())
    assert "which may be luck: the rounds are too few, or differ too much, to say more" in output
    assert "certainty between -" not in output


@pytest.mark.parametrize(
    ("held_out", "output"),
    [
        (
            [0.3, 0.5],
            "verdict: the prompts get harder, and held-out problems are solved as well as before; the pass rate",
        ),
        ([0.5, 0.1], "verdict: much of what the model could do is lost: pass rate 0.3"),
    ],
)
def test_a_verdict_knows_prompts_that_get_harder_from_a_loss(tmp_path, capsys, held_out, output):
    rates, scores = np.linspace(0.8, 0.4, 100), np.linspace(*held_out, 10)
    rows = [{"step": step, "reward": rate} for step, rate in enumerate(rates)]
    rows += [{"step": 10 * index, "eval/accuracy": score} for index, score in enumerate(scores)]
    main(["dynamics", "diagnose", str(write_lines(tmp_path / "log.jsonl", rows))])
    printed = " ".join(capsys.readouterr().out.split())
    assert output in printed and ("unstable" in printed) == (held_out[1] < 0.4)
    assert "go back to the checkpoint" not in printed


CONSOLES = {
    "trl": "{{'loss': -0.1, 'reward': np.float64({rate:.2f}), 'grad_norm': nan, 'epoch': 0.1}}",
    "unsloth": "  3%|▎ | 5/40 [00:10<01:10]\r{{'loss': '0.1', 'reward': '{rate:.2f}', 'learning_rate': '1e-06'}}",
    "verl": "(TaskRunner pid=7) step:{step} - actor/pg_loss:-0.1 - critic/score/mean:{rate:.2f} - perf/mfu:0.2",
    "openrlhf": "\x1b[36m(Trainer pid=1)\x1b[0m INFO Global step {step}: {{'policy_loss': 0.1, 'reward': {rate:.2f}}}",
    "skyrl": "trainer:320 - {{'reward/avg_raw_reward': {rate:.2f}, 'lr': 1e-06, 'trainer/global_step': {step}}}",
    "slime": "(RolloutManager pid=1) rollout.py:100 - rollout {step}: {{'rollout/raw_reward': {rate:.2f}}}",
}


@pytest.mark.parametrize("opening", [["Loading checkpoint shards: 100%"], ["", "  "]])
@pytest.mark.parametrize("trainer", CONSOLES)
def test_the_console_of_other_trainers_is_read(trainer, opening, tmp_path):
    lines = [CONSOLES[trainer].format(step=step, rate=rate) for step, rate in enumerate(RISING, start=1)]
    (tmp_path / "train.log").write_text("\n".join([*opening, *lines, "{'train_runtime': 12.5}"]))
    log = read_log(tmp_path / "train.log")
    assert log["pass_rate"].steps.tolist() == list(range(1, 41))
    assert log["pass_rate"].values == pytest.approx(RISING)
    assert any("its rows are numbered from 1" in note for note in log.notes) == (trainer in ("trl", "unsloth"))


@pytest.mark.parametrize(("gain", "found"), [(0.0, True), (3.0, False)])
def test_completions_that_grow_are_found_beside_rewards_that_are_no_pass_rates(tmp_path, capsys, gain, found):
    noise = np.random.default_rng(0).normal(size=(2, 120))
    rows = [
        {
            **{"step": step, "reward": 5 + gain * step / 120 + 0.3 * noise[0, step], "reward_std": 2.0, "epoch": step},
            **{"completions/mean_length": 150 + 10 * step + 9 * noise[1, step], "rewards/f/std": 3.0},
        }
        for step in range(120)
    ]
    main(["dynamics", "diagnose", str(write_lines(tmp_path / "log.jsonl", rows))])
    printed = " ".join(capsys.readouterr().out.split())
    assert ("length without" in printed) == found
    assert "column=NAME scale=NUMBER names one of reward verdict:" in printed


OWN_LINES = {
    "minimind": "Epoch:[1/1]({step}/40), Reward: {rate}, KL_ref: -0.001, Actor Loss: 0.0, Learning Rate: 3e-07",
    "bars": "[train] Step {step}/40 | loss: 0.12 | mean reward: {rate} | kl: nan",
    "equal signs": "2025-06-01 12:00:01 INFO train.py:33] step {step} loss=0.1 reward={rate} kl=1e-3",
    "anew": "Epoch 2 (1/4), Loss: 0.5, Average Reward: {rate}, KL: 0.0",
}


@pytest.mark.parametrize("form", OWN_LINES)
def test_the_console_of_a_loop_of_ones_own_is_read(form, tmp_path):
    lines = [OWN_LINES[form].format(step=step, rate=rate) for step, rate in enumerate(RISING, start=1)]
    prose = ["Question: how many? A: 3", "x" * 200_000, "one two three " * 20_000, "reward: 0.5", "{'kl_coef': 0.1}"]
    (tmp_path / "train.log").write_text("\n".join(prose + lines + prose))
    log = read_log(tmp_path / "train.log")
    assert log["pass_rate"].steps.tolist() == list(range(1, 41))
    assert log["pass_rate"].values == pytest.approx(RISING)
    assert any("its rows are numbered from 1" in note for note in log.notes) == (form == "anew")


@pytest.mark.parametrize("width", [30, 77])
def test_rows_that_a_terminal_has_wrapped_are_whole(width, tmp_path):
    rows = [str({"loss": 0.1, "grad_norm": 0.123456, "kl": 1e-05, "reward": rate, "epoch": 0.5}) for rate in RISING]
    unfinished = "print({'a':\nTraceback"
    lines = [row[start : start + width] for row in rows for start in range(0, len(row), width)]
    (tmp_path / "train.log").write_text("\n".join([unfinished, *lines, unfinished]))
    log = read_log(tmp_path / "train.log")
    assert log["pass_rate"].values == pytest.approx(RISING)
    assert log["learner/gradient_norm"].values.tolist() == [0.123456] * 40


def test_a_console_that_holds_two_runs_without_steps_is_read_from_where_the_epoch_goes_back(tmp_path):
    runs = [(40, 0.1), (60, 0.5)]
    lines = [
        str({"loss": 0.1, "reward": reward + 0.001 * row, "epoch": round(0.02 * row, 2)})
        for length, reward in runs
        for row in range(length)
    ]
    (tmp_path / "train.log").write_text("\n".join(lines))
    log = read_log(tmp_path / "train.log")
    assert log["pass_rate"].steps.tolist() == list(range(1, 61))
    assert log["pass_rate"].values == pytest.approx(0.5 + 0.001 * np.arange(60))
    assert any(note.startswith("the log holds 2 runs one after another") for note in log.notes)


def test_the_bar_of_progress_names_the_steps_of_a_console(tmp_path):
    lines = ["Loading shards: 100%|██████████| 2/2 [00:01<00:00,  1.89it/s]"]
    for step, rate in zip(range(5, 205, 5), RISING, strict=True):
        lines += [f"  3%|▎         | {done}/400 [26:14<8:17:55, 3.4s/it]\r" for done in range(step - 4, step + 1)]
        lines += ["Processed prompts: 100%|█| 8/8 [00:03<00:00]\r \r", f"{{'loss': 0.1, 'reward': {rate}}}"]
        lines += [f"{{'eval_accuracy': {rate / 2}}}"] if step % 100 == 0 else []
    (tmp_path / "train.log").write_text("\n".join([*lines, "{'train_runtime': 12.5}"]))
    log = read_log(tmp_path / "train.log")
    assert log["pass_rate"].steps.tolist() == [*range(5, 205, 5)]
    assert log.held_out.steps.tolist() == [100, 200]
    assert not any("numbered" in note for note in log.notes)


def test_the_rows_of_several_ranks_are_averaged_and_a_step_that_came_twice_is_not(tmp_path):
    rows = [{"step": step, "reward": rate + rank / 10} for step, rate in enumerate(RISING) for rank in (-1, 1)]
    log = read_log(write_lines(tmp_path / "ranks.jsonl", rows))
    assert log["pass_rate"].values == pytest.approx(RISING)
    assert log.notes[0] == "most steps have several rows, as those of several ranks: the means of reward are read"
    once = [{"step": step, "reward": rate} for step, rate in enumerate(RISING)]
    log = read_log(write_lines(tmp_path / "twice.jsonl", [*once, {"step": 39, "reward": 0.9}]))
    assert log["pass_rate"].values == pytest.approx([*RISING[:39], 0.9])


@pytest.mark.parametrize("name", ["Iteration", "train_steps", "STEP", "trainer/update"])
def test_a_column_of_steps_may_be_spelled_in_its_own_way(name, tmp_path):
    rows = [{"step_time": 3.0, name: 10 * step, "mean_reward": rate} for step, rate in enumerate(RISING)]
    log = read_log(write_lines(tmp_path / "log.jsonl", rows))
    assert log["pass_rate"].steps.tolist() == [10 * step for step in range(40)]
    assert log.notes[0] == f"{name} is taken for the step"


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        *((name, "completions/length_mean") for name in ("avg_gen_tokens", "mean_response_length")),
        *((name, "completions/length_mean") for name in ("avg_response_len", "completion_length_mean")),
        *((name, "completions/truncated_fraction") for name in ("truncated_rate", "truncation_rate")),
        *((name, "policy/reference_kl") for name in ("kl_divergence", "mean_kl")),
    ],
)
def test_names_that_loops_of_ones_own_give_to_lengths_truncation_and_kl_are_known(name, ours, tmp_path):
    rows = [{"step": step, "accuracy": rate, name: 0.25 + step / 100} for step, rate in enumerate(RISING)]
    log = read_log(write_lines(tmp_path / "log.jsonl", rows))
    assert log[ours].values[:2].tolist() == [0.25, 0.26]


def test_counters_and_clocks_are_not_named_as_possible_pass_rates(tmp_path):
    rows = [{"step": step, "loss": 1.0, "epoch": 2.0 * step, "eval_runtime": 3.0} for step in range(40)]
    left_out = "no column is a pass rate, so what needs one is left out"
    assert read_log(write_lines(tmp_path / "log.jsonl", rows)).notes[-1] == left_out
    scored = [row | {"exact": 2.0 * row["step"]} for row in rows]
    note = read_log(write_lines(tmp_path / "scored.jsonl", scored)).notes[-1]
    assert note == f"{left_out}: column=NAME scale=NUMBER names one of exact"


def test_a_folder_of_several_runs_is_refused_and_one_with_checkpoints_is_not(tmp_path):
    state = json.dumps({"log_history": [{"step": step, "reward": rate} for step, rate in enumerate(RISING)]})
    for name in ("a", "a/checkpoint-20", "a/checkpoint-40", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "trainer_state.json").write_text(state)
    assert len(read_log(tmp_path / "a")["pass_rate"]) == 40
    with pytest.raises(UserError, match=f"holds 2 runs: give one of {tmp_path}/a, {tmp_path}/b"):
        read_log(tmp_path)


def test_a_folder_of_folders_with_runs_names_them(tmp_path):
    for name in ("swept/grpo/seed0", "swept/dapo/seed0"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "metrics.jsonl").write_text("{}\n")
    inner = f"{tmp_path}/swept/dapo/seed0, {tmp_path}/swept/grpo/seed0"
    with pytest.raises(UserError, match=f"{tmp_path}/swept holds runs in folders below it: give one of {inner}$"):
        read_log(tmp_path / "swept")


def test_one_document_may_come_through_a_pipe(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    history = [{"step": step, "reward": rate} for step, rate in enumerate(RISING)]
    writing = threading.Thread(target=path.write_text, args=(json.dumps({"log_history": history}),))
    writing.start()
    assert read_log(path)["pass_rate"].values == pytest.approx(RISING)
    writing.join()
    writing = threading.Thread(target=path.write_text, args=("7\n",))
    writing.start()
    with pytest.raises(UserError, match="has no rows with a step"):
        read_log(path)
    writing.join()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("log.json.gz", "", "is packed: unpack it first"),
        ("log.XLSX", "", "is no log that is read here: export its table as CSV"),
        ("run.wandb", "", "send its folder by `wandb sync`, then export the run's history as CSV"),
        ("trainer_state.json", "<!DOCTYPE html>", "is a web page: download the raw file instead"),
        (
            "trainer_state.json",
            "version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n",
            "is a pointer of Git",
        ),
        ("log.csv", 'step,reward\n"1,000",0.5\n', "has the number '1,000': write it without commas"),
        ("log.csv", 'step,reward\n1,"0,5"\n', "has the number '0,5': write it with a point"),
        ("log.jsonl", '[{"step": 1, "reward": 0.5}]', "is one JSON document: give it a name that ends in .json"),
    ],
)
def test_a_file_of_another_kind_is_refused_with_the_way_out(name, text, message, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=re.escape(message)):
        read_log(tmp_path / name)


def test_a_reward_beside_its_own_share_is_not_gamed(tmp_path):
    noise = np.random.default_rng(0).normal(0, 0.02, 120)
    rows = [{"step": step, "reward": 3 + 4 * step / 120 + 10 * noise[step]} for step in range(120)]
    path = write_lines(tmp_path / "log.jsonl", rows)
    assert [finding.name for finding in diagnose(read_log(path, "reward", 10.0))] == []


def test_rewards_that_become_nan_are_found_and_rare_rewards_are_not_missed(tmp_path):
    rows = [{"step": step, "reward": 0.2 + step / 400, "learning_rate": 1e-6} for step in range(200)]
    broken = [{**row, "reward": float("nan")} if row["step"] > 100 else row for row in rows]
    [finding] = [
        finding
        for finding in diagnose(read_log(write_lines(tmp_path / "nan.jsonl", broken)))
        if finding.name == "reward ended"
    ]
    assert finding.evidence == "the last pass rate is that of step 100, and the log goes on to step 199"
    rare = [row if row["step"] % 20 == 0 else {"step": row["step"], "learning_rate": 1e-6} for row in rows]
    found = {finding.name for finding in diagnose(read_log(write_lines(tmp_path / "rare.jsonl", rare)))}
    assert "reward ended" not in found


def test_a_log_with_rewards_alone_has_a_page_without_a_forecast(tmp_path, capsys):
    rows = [{"step": step, "reward": 3 - step / 20, "loss": 0.1, "kl": 0.01 * step} for step in range(60)]
    path = write_lines(tmp_path / "log.jsonl", rows)
    assert main(["report", str(path)]) == 0
    page = (tmp_path / "log_dynamics.html").read_text()
    assert (
        "much of what the model could do is lost" in page.lower()
        and "KL to the reference" in page
        and "forecast" not in page
    )


def test_the_folder_of_trls_trainer_has_a_page(tmp_path, capsys):
    history = [{"step": step, "reward": rate, "learning_rate": 1e-6} for step, rate in enumerate(RISING)]
    (tmp_path / "checkpoint-39").mkdir()
    (tmp_path / "checkpoint-39" / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    assert main(["report", str(tmp_path)]) == 0
    assert "Learning rate" in (tmp_path / "dynamics.html").read_text()


def test_a_log_of_one_row_is_not_called_free_of_problems(tmp_path, capsys):
    path = write_lines(tmp_path / "log.jsonl", [{"step": 1, "reward": 0.5, "kl": 0.1}])
    assert main(["dynamics", "diagnose", str(path)]) == 2
    assert "log.jsonl has one row, which shows nothing yet: ask again after more rounds\n" in capsys.readouterr().err
