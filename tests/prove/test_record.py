"""These tests hold that `prove.json` keeps parts measured on the same machine, and gives a plan the machine's
constants."""

import json
from pathlib import Path

import pytest

from grpo.config import UserError
from grpo.prove.facts import Fact, Report
from grpo.prove.record import read_constants, write_record
from grpo.types import MachineConstants

ABOUT = {"device": "CPU", "size": "tiny", "words": [], "parameters": 7}
LEARNER = Report([Fact("learner", "packed tokens", 500.0)], {"learning_tokens_per_second": 500.0})
REST = {
    "sampling_tokens_per_second": [[16, 220.0], [4, 100.0]],
    "refresh_seconds": 0.1,
    "round_overhead_seconds": 0.2,
}


BASIS = {
    "gpus": 0,
    "device_gib": 8.0,
    "at_rest_gib": 1.0,
    "rows": [[512, 500.0, 2.0]],
    "packed_tokens": 480,
    "checkpointing": False,
    "logit_chunk": 4096,
    "vocabulary": 512,
    "sampler_weights_gib": 0.1,
    "cache_gib": 0.2,
    "completions": 16,
    "completion_tokens": 384,
}


def test_a_proof_that_is_ended_while_it_writes_keeps_what_was_measured_before(tmp_path, monkeypatch):
    write_record(tmp_path, ABOUT, [LEARNER])
    write_text = Path.write_text

    def half(path, text, *arguments, **options):
        write_text(path, text[: len(text) // 2])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "write_text", half)
        write_record(tmp_path, ABOUT, [Report([], REST)])
    record = write_record(tmp_path, ABOUT, [Report([], REST)])
    assert [fact["part"] for fact in record["facts"]] == ["learner"]


def test_parts_that_are_measured_one_by_one_stand_in_one_file(tmp_path):
    write_record(tmp_path, ABOUT, [LEARNER])
    write_record(tmp_path, ABOUT, [Report([Fact("round", "rounds finished", 6)], REST)])
    faster = Report([Fact("learner", "packed tokens", 600.0)], {"learning_tokens_per_second": 600.0})
    assert write_record(tmp_path, ABOUT, [faster])["settings"] == []
    with_basis = write_record(tmp_path, ABOUT, [Report([], basis=BASIS)])
    words = ["learner.micro_batch_tokens=512", "rollout=vllm", "rollout.kv_cache_gib=0.25"]
    assert [setting["word"] for setting in with_basis["settings"]] == words
    assert write_record(tmp_path, ABOUT, [faster])["settings"] == with_basis["settings"]
    record = json.loads((tmp_path / "prove.json").read_text())
    assert [(fact["part"], fact["measured"]) for fact in record["facts"]] == [("round", 6), ("learner", 600.0)]
    assert read_constants(tmp_path / "prove.json") == MachineConstants(
        "CPU", 7, ((4, 100.0), (16, 220.0)), 600.0, 0.1, 0.2
    )


def test_a_device_without_room_for_a_row_gets_no_settings(tmp_path):
    measured = Report([], REST | {"learning_tokens_per_second": 500.0}, BASIS | {"rows": []})
    assert write_record(tmp_path, ABOUT, [measured])["settings"] == []


@pytest.mark.parametrize("other", [{"device": "NVIDIA H100"}, {"size": "7b"}, {"words": ["learner.zero_stage=3"]}])
def test_numbers_measured_on_another_machine_are_not_mixed_in(tmp_path, other):
    write_record(tmp_path, ABOUT, [LEARNER])
    record = write_record(tmp_path, ABOUT | other, [Report([], {"refresh_seconds": 0.1})])
    assert record["facts"] == [] and record["constants"] == {"refresh_seconds": 0.1}


def test_constants_that_were_not_measured_are_named_with_the_parts_that_measure_them(tmp_path):
    write_record(tmp_path, ABOUT, [LEARNER])
    with pytest.raises(UserError, match=r"lacks sampling_tokens.*: measure it by `grpo prove part=sampler,sync,round`"):
        read_constants(tmp_path / "prove.json")


@pytest.mark.parametrize("text", ["", "[]", '{"facts": []}', '{"constants": 3}'])
def test_a_file_of_something_else_is_one_line(tmp_path, text):
    path = tmp_path / "prove.json"
    path.write_text(text)
    with pytest.raises(UserError, match="is no file that `grpo prove` has written: it holds no constants"):
        read_constants(path)
    with pytest.raises(UserError, match="is no file that `grpo prove` has written: No such file or directory"):
        read_constants(tmp_path / "nowhere.json")
    constants = REST | {"learning_tokens_per_second": 1.0, "sampling_tokens_per_second": ["fast"]}
    path.write_text(json.dumps(ABOUT | {"constants": constants}))
    with pytest.raises(UserError, match="has constants that cannot be read"):
        read_constants(path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"refresh_seconds": "1"}, "constants.refresh_seconds must be a number, not '1'"),
        ({"refresh_seconds": -3}, "refresh_seconds must be at least 0, not -3"),
        ({"refresh_seconds": float("inf")}, "refresh_seconds must be at least 0, not inf"),
        ({"learning_tokens_per_second": 0}, "learning_tokens_per_second must be above 0, not 0"),
        ({"learning_tokens_per_second": float("nan")}, "learning_tokens_per_second must be above 0, not nan"),
        ({"sampling_tokens_per_second": 100}, "constants.sampling_tokens_per_second must be a list, not 100"),
        ({"sampling_tokens_per_second": [[0, 5.0]]}, "sampling_tokens_per_second must be above 0, not 0"),
        (
            {"sampling_tokens_per_second": [[8, 10.0], [8, 20.0]]},
            "sampling_tokens_per_second must hold one speed for each number of completions",
        ),
        (
            {"sampling_tokens_per_second": []},
            "sampling_tokens_per_second must hold one speed for each number of completions",
        ),
    ],
)
def test_constants_that_no_machine_has_are_named(tmp_path, changes, said):
    path = tmp_path / "prove.json"
    constants = REST | {"learning_tokens_per_second": 1.0}
    path.write_text(json.dumps(ABOUT | {"constants": constants}))
    assert read_constants(path) == MachineConstants("CPU", 7, ((4, 100.0), (16, 220.0)), 1.0, 0.1, 0.2)
    path.write_text(json.dumps(ABOUT | {"constants": constants | changes}))
    with pytest.raises(UserError) as refusal:
        read_constants(path)
    assert str(refusal.value) == f"{path} has constants that cannot be read: {said}"
