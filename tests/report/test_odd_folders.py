"""What stands in a stranger's or a later version's run folder is read by its types, or is one line."""

import json
import os

import pytest

from grpo.config import UserError
from grpo.report.course import before
from grpo.report.logs import run_config
from grpo.telemetry import Ending, Resumption, read_ending, read_resumptions

MEND = ": restore it; a resumed run writes it anew"


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
    assert str(refusal.value) == f"{tmp_path}/config.json is damaged{separator}{said}{MEND}"


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
