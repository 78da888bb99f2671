"""Values in a stranger's or a later version's run folder are read by their types, or are one line."""

import json
import os

import pytest

from grpo.cli import main
from grpo.config import UserError
from grpo.insight.logs.logs import read_evaluations, read_plans, run_config
from grpo.insight.pages.course import before
from grpo.telemetry.completions import read_completions
from grpo.telemetry.ending import Ending, Resumption, read_ending, read_resumptions
from grpo.telemetry.json_lines import read_metrics

REMEDY = ": restore it; a resumed run writes it anew"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"num_steps": "x"}, "(num_steps takes a whole number, not x)"),
        ({"normalization": {"exponent": "x"}}, "(normalization.exponent takes a number, not x)"),
        (
            {"learner": {"betas": []}},
            "(learner.betas=[] must be two numbers of at least 0 and below 1, e.g. [0.9, 0.999])",
        ),
        ([], ": it holds no JSON object"),
    ],
)
def test_a_configuration_with_values_of_another_type_is_one_line(tmp_path, values, said):
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(UserError) as refusal:
        run_config(tmp_path)
    separator = " " if said.startswith("(") else ""
    assert str(refusal.value) == f"{tmp_path}/config.json is damaged{separator}{said}{REMEDY}"


def test_keys_that_an_older_version_lacked_have_their_defaults(tmp_path):
    (tmp_path / "config.json").write_text('{"num_steps": 7, "normalization": {"exponent": 0.5}, "gone": 1}')
    config = run_config(tmp_path)
    assert (config["num_steps"], config["learner"]["betas"]) == (7, [0.9, 0.999])
    assert (config["normalization"]["exponent"], config["normalization"]["mean_exponent"]) == (0.5, 0.0)


@pytest.mark.parametrize(
    "text", ['{"state": 5, "step": 1}', '{"state": "failed", "step": 1, "why": [1]}', "[" * 10**5, "[]"]
)
def test_an_odd_end_is_none(tmp_path, text):
    (tmp_path / "end.json").write_text(text)
    assert read_ending(tmp_path) is None
    (tmp_path / "end.json").write_text('{"state": "failed", "step": 1, "why": "x"}')
    assert read_ending(tmp_path) == Ending("failed", 1, "x")


def test_a_pipe_in_place_of_the_end_is_none(tmp_path):
    os.mkfifo(tmp_path / "end.json")
    assert read_ending(tmp_path) is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ended": 7}, "a line.ended must be a text, not 7"),
        ({"later": 7}, "a line has 'later', which this version does not know"),
        ({"changed": [["seed", 1]]}, r"a line.changed\[0\] must be a list of 3, not \['seed', 1\]"),
    ],
)
def test_an_odd_line_of_resumptions_is_named(tmp_path, changes, said):
    row = {"step": 4, "checkpoint": "step-00000004", "reached": 5, "ended": "killed", "changed": [["seed", 1, 2]]}
    file = tmp_path / "resumptions.jsonl"
    file.write_text(json.dumps(row) + "\n")
    assert read_resumptions(tmp_path) == [Resumption(4, "step-00000004", 5, "killed", changed=(("seed", 1, 2),))]
    file.write_text(json.dumps(row | changes) + "\n")
    with pytest.raises(UserError, match=rf"resumptions\.jsonl is damaged \({said}\): delete that line"):
        read_resumptions(tmp_path)


def test_how_a_run_ended_in_words_of_a_later_version_is_no_error():
    assert before(Resumption(4, "step-00000004", 1500, "paused")) == "it had ended at step 1,500"


ROUND = {
    "step": 5,
    "pass_rate": 0.5,
    "prompts/length_mean": 9.0,
    "completions/length_mean": 9.0,
    "groups/counts": [[1, 2, 3]],
    "plan/group_size": 2.0,
    "plan/refresh_interval": 1.0,
    "plan/prompts_per_step": 3.0,
    "plan/next_reason": "as configured",
}
SHARE = {"value": 0.5, "low": 0.4, "high": 0.6}
EVALUATION = {
    "step": 5,
    "pass@1": SHARE,
    "pass@k": {"1": SHARE},
    "samples_per_problem": 2,
    "mean_length": 4.0,
    "truncated_fraction": 0.0,
    "per_problem": [{"problem_id": "a", "correct": 1, "total": 2}],
}
SAMPLE = {
    **{"step": 5, "prompt_id": "a", "question": "1+1", "answer": "2", "completion": "3"},
    **{"reward": 0.0, "correct": False, "outcome": "graded", "tokens": 1},
}
ODD_ROWS = [
    ("metrics", ROUND, {"pass_rate": None}, "pass_rate must be a number, not None"),
    ("metrics", ROUND, {"reward/mean": "x"}, "reward/mean must be a number, not 'x'"),
    ("metrics", ROUND, {"reward/mean": float("nan")}, "reward/mean must be a number, not nan"),
    ("metrics", ROUND, {"plan/next_reason": 7}, "plan/next_reason must be a text, not 7"),
    ("metrics", ROUND, {"step": 10**9}, "step must be a whole number from 0 to 10,000,000, not 1000000000"),
    ("metrics", ROUND, {"step": 4.5}, "step must be a whole number from 0 to 10,000,000, not 4.5"),
    ("metrics", ROUND, {"groups/silent_fraction": 1.5}, "groups/silent_fraction must be a share from 0 to 1, not 1.5"),
    ("metrics", ROUND, {"pass_rate": 35.0}, "pass_rate must be a share from 0 to 1, not 35.0"),
    ("metrics", ROUND, {"plan/group_size": 0}, "plan/group_size must be at least 1, not 0"),
    (
        "metrics",
        ROUND,
        {"plan/refresh_interval": 1e9},
        "plan/refresh_interval must be at most its step, 5, not 1000000000.0",
    ),
    ("metrics", ROUND, {"plan/refresh_interval": ...}, "plan/refresh_interval is missing"),
    *(
        (
            "metrics",
            ROUND,
            {"groups/counts": counts},
            f"groups/counts must be a list of [right, group size, groups], not {counts}",
        )
        for counts in (None, 3, [["a", 2, 3]], [[1, 2]], [[3, 2, 1]], [[-1, 2, 1]], [[0, 0, 1]], [[1, 10**9, 1]])
    ),
    ("evaluations", EVALUATION, {"pass@1": ...}, "pass@1 is missing"),
    ("evaluations", EVALUATION, {"pass@1": 0.5}, "pass@1 must be a value, low and high between 0 and 1, not 0.5"),
    ("evaluations", EVALUATION, {"pass@k": {"x": SHARE}}, f"pass@k must be intervals by k, not {{'x': {SHARE}}}"),
    ("evaluations", EVALUATION, {"mean_length": "x"}, "mean_length must be a number, not 'x'"),
    ("evaluations", EVALUATION, {"per_problem": ["a"]}, "per_problem must be a list of rows, not ['a']"),
    ("evaluations", EVALUATION, {"per_problem": [{"problem_id": "a", "correct": 1}]}, "per_problem: total is missing"),
    (
        *("evaluations", EVALUATION, {"per_problem": [{"problem_id": "a", "correct": 3, "total": 2}]}),
        "per_problem: correct=3 of total=2 is no share",
    ),
    ("samples", SAMPLE, {"completion": None}, "completion must be a text, not None"),
    ("samples", SAMPLE, {"reward": "x"}, "reward must be a number, not 'x'"),
    ("samples", SAMPLE, {"correct": 1}, "correct must be true or false, not 1"),
]


def changed(row, changes):
    return {name: value for name, value in (row | changes).items() if value is not ...}


@pytest.mark.parametrize(("name", "row", "changes", "said"), ODD_ROWS)
def test_a_row_with_values_of_another_type_is_named(tmp_path, name, row, changes, said):
    file = tmp_path / f"{name}.jsonl"
    file.write_text(json.dumps(row) + "\n")
    assert read_metrics(file) == [row]
    file.write_text(json.dumps(row) + "\n" + json.dumps(changed(row, changes)) + "\n")
    with pytest.raises(UserError) as refusal:
        read_metrics(file)
    assert str(refusal.value) == f"line 2 of {file}: {said}: delete that line"


@pytest.mark.parametrize(("name", "row"), [("metrics", ROUND), ("evaluations", EVALUATION)])
def test_rows_that_another_run_has_added_are_refused(tmp_path, name, row):
    file = tmp_path / f"{name}.jsonl"
    file.write_text("".join(json.dumps(row | {"step": step}) + "\n" for step in (2, 4, 4)))
    with pytest.raises(UserError, match=f"^line 3 of {file} has step 4 behind step 4, and a run writes each step once"):
        read_metrics(file)


@pytest.mark.parametrize(
    ("name", "row", "lacks", "read"),
    [
        ("metrics", ROUND, "plan/group_size", read_plans),
        ("evaluations", EVALUATION, "per_problem", read_evaluations),
        ("evaluations", EVALUATION, "pass@k", read_evaluations),
    ],
)
def test_a_row_that_lacks_what_one_reader_needs_is_named_by_that_reader(tmp_path, name, row, lacks, read):
    file = tmp_path / f"{name}.jsonl"
    file.write_text(json.dumps(row) + "\n")
    assert read(tmp_path) == [row]
    file.write_text(json.dumps(changed(row, {lacks: ...})) + "\n")
    assert len(read_metrics(file)) == 1
    with pytest.raises(UserError) as refusal:
        read(tmp_path)
    assert str(refusal.value) == f"the row of step 5 in {file} has no {lacks}: delete that line"


def test_a_completion_that_lacks_what_is_shown_of_it_is_named(tmp_path, capsys):
    (tmp_path / "samples.jsonl").write_text(json.dumps(SAMPLE) + "\n")
    assert main(["samples", str(tmp_path)]) == 0
    (tmp_path / "samples.jsonl").write_text(json.dumps(changed(SAMPLE, {"completion": ...})) + "\n")
    capsys.readouterr()
    assert main(["samples", str(tmp_path)]) == 2
    said = f"grpo: a completion of step 5 in {tmp_path} has no completion: delete its row"
    assert said in capsys.readouterr().err.splitlines()


def test_a_file_of_completions_with_values_of_another_type_is_named(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = tmp_path / "completions" / "step-00000005-rank-0.parquet"
    file.parent.mkdir()
    pq.write_table(pa.Table.from_pylist([SAMPLE]), file)
    assert list(read_completions(tmp_path)) == [SAMPLE]
    pq.write_table(pa.Table.from_pylist([SAMPLE | {"completion": 7}]), file)
    with pytest.raises(
        UserError, match=r"rank-0\.parquet is damaged \(row 1: completion must be a text, not 7\): remove"
    ):
        list(read_completions(tmp_path))
