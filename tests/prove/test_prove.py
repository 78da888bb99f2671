"""The proof of an installation on two CPU cores: every part is fine here, and fails when it is sabotaged."""

import json
import os

import pytest
import torch

from grpo.commands import prove
from grpo.config import UserError
from grpo.learner import attention as tree_attention
from grpo.prove import computation
from grpo.prove.bench import Bench
from grpo.prove.record import read_constants
from tests import warm


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    environment = dict(os.environ)
    yield Bench("tiny", tmp_path_factory.mktemp("prove"), [], device="cpu")
    # The rendezvous is announced in the environment, and later tests start processes of their own.
    os.environ.clear()
    os.environ.update(environment)


def verdicts(report):
    return {fact.what.partition(":")[0]: fact.verdict for fact in report.facts}


def test_attention_is_right_here_and_a_wrong_mask_is_found(bench, monkeypatch):
    assert set(verdicts(computation.attention(bench)).values()) == {"fine"}
    mask = tree_attention.attention_mask

    def wrong(tree, *arguments):
        # Siblings see each other.
        return mask(tree, *arguments) | torch.ones(tree.end - tree.start, tree.end - tree.start).bool().tril()

    monkeypatch.setattr(tree_attention, "attention_mask", wrong)
    found = verdicts(computation.attention(bench))
    assert found["plain, float32"] == found["plain, bfloat16"] == "wrong"


def test_gradients_are_right_here_and_positions_that_do_not_restart_are_found(bench, monkeypatch):
    assert set(verdicts(computation.gradients(bench)).values()) == {"fine"}
    packed = computation.packed_results

    def shifted(policy, micro, coefficients):
        micro.position_ids.copy_(torch.arange(len(micro.position_ids)))
        return packed(policy, micro, coefficients)

    monkeypatch.setattr(computation, "packed_results", shifted)
    assert verdicts(computation.gradients(bench))["gradients, float32"] == "wrong"


@pytest.mark.slow
def test_a_refresh_is_right_here_and_what_goes_wrong_on_the_way_is_found(tmp_path):
    done = warm.run(["-m", "tests.prove.sync_worker", str(tmp_path)])
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    fine = dict.fromkeys(("refresh of 1 MiB, checked", "flipped bit noticed", "mismatch of log-probabilities"), "fine")
    assert found[""] == fine
    assert found["slow link"] == fine | {"refresh of 1 MiB, checked": "slow"}
    assert found["blind comparison"] == fine | {"flipped bit noticed": "wrong"}


@pytest.mark.slow
def test_the_command_measures_all_parts_and_writes_them_down(tmp_path):
    done = warm.run(["-m", "grpo.cli", "prove", "size=tiny", f"output_dir={tmp_path}", "device=cpu"], timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads((tmp_path / "prove.json").read_text())
    assert (found["device"], found["size"]) == ("CPU", "tiny")
    assert {fact["part"] for fact in found["facts"]} == {"attention", "learner", "sampler", "sync", "round"}
    assert {fact["verdict"] for fact in found["facts"]} == {"fine", "–"}
    measured = {fact["what"]: fact["measured"] for fact in found["facts"]}
    assert measured["rounds finished"] == 6 and 0 < measured["neither sampling nor learning"] < 1
    constants = read_constants(tmp_path / "prove.json")
    assert [at_once for at_once, _ in constants.sampling_tokens_per_second] == [4, 16]
    assert constants.sampling_speed(16) == measured["tokens, 16 completions at once"] > 0
    assert constants.learning_tokens_per_second == measured["packed tokens"]
    assert constants.refresh_seconds == measured["refresh of 1 MiB, checked"]
    assert constants.round_overhead_seconds == measured["neither sampling nor learning nor refresh"]
    assert json.loads((tmp_path / "code.json").read_text())["versions"]["torch"]
    assert "verdict" in done.stdout


def test_what_there_is_not_is_refused(tmp_path):
    with pytest.raises(UserError, match="part=nets is unknown: choose among attention, round, learner, sync, sampler"):
        prove.run(["part=nets", f"output_dir={tmp_path}"])
    with pytest.raises(UserError, match="size=70b is unknown: choose one of tiny, 1.5b, 7b"):
        prove.run(["size=70b", f"output_dir={tmp_path}"])


def test_what_an_interrupted_proof_has_written_is_no_model(tmp_path):
    half = tmp_path / ".writing-model-tiny"
    half.mkdir()
    (half / "config.json").write_text("half")
    bench = Bench("tiny", tmp_path, [], device="cpu")
    bench.build()
    assert [path.name for path in tmp_path.iterdir()] == ["model-tiny"]
    assert (bench.path / "model.safetensors").stat().st_size > 0


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file cannot be written to"):
        prove.run(["part=attention", f"output_dir={tmp_path}/file"])
