"""These tests prove the installation on two CPU cores: every part is fine here, and fails when it is sabotaged."""

import json
import os
import sys
from types import SimpleNamespace

import pytest
import torch

from grpo.commands import prove
from grpo.config import TrainConfig, UserError
from grpo.learner import attention as tree_attention
from grpo.prove import computation, learning, own_process, sampling
from grpo.prove.bench import Bench
from grpo.prove.facts import Fact, Report
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
        return torch.ones_like(mask(tree, *arguments)).tril(tree.shared)

    monkeypatch.setattr(tree_attention, "attention_mask", wrong)
    sabotaged = verdicts(computation.attention(bench))
    assert sabotaged["plain, float32"] == sabotaged["plain, bfloat16"] == "wrong"


def test_windows_that_are_forgotten_are_found(bench, monkeypatch):
    attend = computation.tree_attention

    def without(*arguments, sliding_window, **options):
        return attend(*arguments, **options)

    monkeypatch.setattr(computation, "tree_attention", without)
    monkeypatch.setattr(computation, "TREES", computation.TREES[:1])
    sabotaged = verdicts(computation.attention(bench))
    assert (sabotaged["plain, float32"], sabotaged["plain, bfloat16"]) == ("fine", "fine")
    assert (sabotaged["window, float32"], sabotaged["window, bfloat16"]) == ("wrong", "wrong")


def test_a_long_tree_whose_completions_lose_their_prompt_is_found(bench, monkeypatch):
    branches = tree_attention._branches

    def forgetful(query, key, value, parts, kind, row):
        attended = branches(query, key, value, parts, kind, row)
        return attended if len(parts) == 1 else attended.roll(1, 2)

    monkeypatch.setattr(tree_attention, "_branches", forgetful)
    assert computation.attention_error(bench.device, torch.float32, None) > 0.1


@pytest.mark.parametrize("spoilt", range(3))
def test_attention_with_a_gradient_that_is_nan_is_wrong(spoilt, bench, monkeypatch):
    attend, types = computation.tree_attention, set()

    def spoiling(module, *arguments, **options):
        types.add(arguments[spoilt].dtype)
        arguments[spoilt].register_hook(lambda gradient: gradient * float("nan"))
        return attend(module, *arguments, **options)

    monkeypatch.setattr(computation, "tree_attention", spoiling)
    monkeypatch.setattr(computation, "TREES", computation.TREES[:1])
    assert set(verdicts(computation.attention(bench)).values()) == {"wrong"}
    assert types == {torch.float32, torch.bfloat16}


def test_gradients_are_right_here_and_positions_that_do_not_restart_are_found(bench, monkeypatch):
    assert set(verdicts(computation.gradients(bench)).values()) == {"fine"}
    packed = computation.packed_results

    def shifted(policy, micro, coefficients):
        micro.position_ids.copy_(torch.arange(len(micro.position_ids)))
        return packed(policy, micro, coefficients)

    monkeypatch.setattr(computation, "packed_results", shifted)
    assert verdicts(computation.gradients(bench))["gradients, float32"] == "wrong"


@pytest.mark.parametrize("spoilt", ["log-probabilities", "gradients"])
def test_log_probabilities_and_gradients_are_each_compared(spoilt, bench, monkeypatch):
    packed = computation.packed_results

    def off(policy, micro, coefficients):
        logprobs, gradients = packed(policy, micro, coefficients)
        if spoilt == "gradients":
            return logprobs, {name: 1.01 * gradient for name, gradient in gradients.items()}
        return logprobs + 0.01, gradients

    monkeypatch.setattr(computation, "packed_results", off)
    assert verdicts(computation.gradients(bench))["gradients, float32"] == "wrong"


@pytest.mark.slow
def test_a_refresh_is_right_here_and_what_goes_wrong_on_the_way_is_found(tmp_path):
    done = warm.run(["-m", "tests.prove.sync_worker", str(tmp_path)])
    assert done.returncode == 0, done.stderr[-3000:]
    verdicts_of = json.loads(done.stdout.splitlines()[-1])
    agreeing = ("flipped bit noticed", "mismatch of log-probabilities", "… of their mean")
    # Weights take 1 MiB where the processor has instructions for bfloat16, and 2 elsewhere.
    [refresh] = {"refresh of 1 MiB, checked", "refresh of 2 MiB, checked"} & {*verdicts_of[""]}
    fine = dict.fromkeys((refresh, *agreeing), "fine")
    assert verdicts_of[""] == fine
    assert verdicts_of["slow link"] == fine | {refresh: "slow"}
    assert verdicts_of["blind comparison"] == fine | {"flipped bit noticed": "wrong"}
    assert verdicts_of["too low"] == fine | {"… of their mean": "wrong"}
    speed, content = "channel by gloo", "channel by gloo: buckets as sent"
    assert verdicts_of["channel"] == {"channel by NCCL": "skipped", speed: "fine", content: "fine"}
    assert verdicts_of["slow channel"] == verdicts_of["channel"] | {speed: "slow"}
    assert verdicts_of["flipped bit"] == verdicts_of["channel"] | {content: "wrong"}
    gradient = "gradient of a step on 1 ranks: off float64 by"
    assert (verdicts_of["step"], verdicts_of["large gradients"]) == ({gradient: "fine"}, {gradient: "wrong"})


@pytest.mark.parametrize(("freed", "verdict"), [(0.0, "wrong"), (50.0, "fine")])
def test_a_sleep_that_frees_nothing_is_found(freed, verdict, monkeypatch):
    order, free = [], iter([10.0, 10.0 + freed])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (next(free) * 2**30, 100 * 2**30))
    sync = SimpleNamespace(refresh=lambda *engines: order.append("refresh"))
    config = TrainConfig()
    config.rollout.gpu_memory_fraction = 0.6
    engine = SimpleNamespace(sleep=lambda: order.append("sleep"))
    [memory, _] = sampling._sleep(
        SimpleNamespace(config=config, device=None, learner=None, sampler=engine, sync=lambda: sync)
    )
    assert (memory.measured, memory.low, memory.verdict) == (freed, pytest.approx(42.0), verdict)
    assert order == ["refresh", "sleep"]


@pytest.mark.slow
def test_a_run_survives_a_server_that_is_killed_in_a_transfer_and_what_goes_wrong_then_is_found(tmp_path):
    done = warm.run(["-m", "tests.prove.servers_worker", str(tmp_path)], timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    verdicts_of = json.loads(done.stdout.splitlines()[-1])
    assert set(verdicts_of[""].values()) == {"fine", "–"}
    for what in ("seconds until it is back", "… with the right weights at last"):
        assert verdicts_of[""][what] == "fine" and verdicts_of["not started again"][what] in ("slow", "wrong")
    assert verdicts_of["not started again"]["completions lost"] == "fine"
    assert verdicts_of["flipped bit"] == 0


@pytest.mark.slow
def test_the_command_measures_parts_and_writes_them_down(tmp_path):
    words = ["size=tiny", f"output_dir={tmp_path}", "device=cpu", "part=attention,learner,round,sync,sampler"]
    done = warm.run(["-m", "tests.prove.command_worker", *words], timeout=500)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    record = json.loads((tmp_path / "prove.json").read_text())
    assert (record["device"], record["size"]) == ("CPU", "tiny")
    assert {fact["part"] for fact in record["facts"]} == {"attention", "learner", "sampler", "sync", "round"}
    assert {fact["verdict"] for fact in record["facts"]} == {"fine", "–", "skipped"}
    measured = {fact["what"]: fact["measured"] for fact in record["facts"]}
    assert measured["rounds finished"] == 6 and 0 < measured["neither sampling nor learning"] < 1
    for way in ("ZeRO-2", "ZeRO-3", "checkpointing", "offload"):
        assert measured[f"{way}: packed tokens"] > 0 and measured[f"{way}: norm off by"] < 0.02
    assert measured["gradient of a step on 2 ranks: off float64 by"] < 0.02
    memory = [fact for fact in record["facts"] if "peak memory" in fact["what"] and fact["high"]]
    # An estimate of half the memory would be found.
    assert len(memory) == 4 and all(fact["measured"] > fact["high"] / 2 for fact in memory)
    constants = read_constants(tmp_path / "prove.json")
    assert [at_once for at_once, _ in constants.sampling_tokens_per_second] == [4, 16]
    assert constants.sampling_speed(16) == pytest.approx(measured["16 completions at once"]) and constants.device
    assert constants.learning_tokens_per_second == measured["ZeRO-1: packed tokens"]
    [refresh_seconds] = [seconds for what, seconds in measured.items() if what.startswith("refresh of ")]
    assert constants.refresh_seconds == refresh_seconds
    assert constants.round_overhead_seconds == measured["… without sampling, learning, refresh"]
    words = [setting["word"] for setting in record["settings"]]
    assert words[0].startswith("learner.micro_batch_tokens=") and words[1:] == [
        "rollout=vllm",
        "rollout.kv_cache_gib=0.125",
    ]
    assert json.loads((tmp_path / "code.json").read_text())["versions"]["torch"]
    assert "grpo train … " + " ".join(words) in " ".join(done.stdout.split())


def test_a_process_that_fails_or_hangs_is_reported_with_its_output(bench, monkeypatch, capfd):
    assert own_process.exit_code([sys.executable, "-c", "print('the reason'); raise SystemExit(3)"]) == 3
    monkeypatch.setattr(own_process, "LONGEST_SECONDS", 1.0)
    assert own_process.exit_code(["sh", "-c", "echo the last word; exec sleep 60"]) == 124
    assert {"the reason", "the last word"} <= set(capfd.readouterr().err.splitlines())
    assert own_process.exit_code(["sleep", "60"], enough=lambda: True) == 0
    monkeypatch.setattr(own_process, "exit_code", lambda command: 1)
    [fact] = own_process.measured_apart(bench, "learning", "learner", "ZeRO-3").facts
    assert (fact.what, fact.verdict) == ("ZeRO-3: exit code of its process", "wrong")


def test_ways_that_do_not_fit_and_ways_that_learn_something_else_are_reported(bench, monkeypatch):
    norms = dict.fromkeys(learning.WAYS, 2.0) | {"ZeRO-3": 2.1}
    monkeypatch.setattr(learning, "_lacking", lambda bench, words, num_ranks: "needs more" * ("stage=2" in str(words)))
    tried = {}

    def measured(bench, measures, part, way, words, num_ranks):
        chosen = Bench("tiny", bench.folder, words, device="cpu").config.learner
        tried[way] = (chosen.zero_stage, chosen.gradient_checkpointing, chosen.offload_optimizer, measures)
        fact = Fact("learner", f"{way}: gradient norm", norms[way])
        return Report([fact], {"learning_tokens_per_second": float(len(way))})

    monkeypatch.setattr(learning, "measured_apart", measured)
    list(learning.learner(bench, ["offload"]))
    assert list(tried) == ["offload"]
    tried.clear()
    report = Report.joined(learning.learner(bench))
    assert [fact.verdict for fact in report.facts] == ["skipped", "–", "skipped", "wrong", "fine", "fine"]
    assert tried == {
        "ZeRO-1": (1, False, False, "learning,rows"),
        "ZeRO-3": (3, False, False, "learning"),
        "checkpointing": (1, True, False, "learning"),
        "offload": (1, False, True, "learning"),
    }
    # The constant is that of the learner as it is configured.
    assert report.constants == {"learning_tokens_per_second": 6.0}


def test_a_measurement_that_fails_is_a_fact_and_the_others_are_made(tmp_path, monkeypatch, capsys):
    def refused(bench):
        raise UserError("learner and sampler hold different weights")

    def crashed(bench):
        yield Report([Fact("learner", "packed tokens", 500.0, "tokens/s")])
        raise RuntimeError("CUDA error: no kernel image is available\nCompile with more")

    monkeypatch.setattr(computation, "attention", refused)
    monkeypatch.setattr(computation, "gradients", crashed)
    monkeypatch.setattr(computation, "whole_step", lambda bench: Report([]))
    chosen = []
    fine = Report([Fact("learner", "norm off by", 0.0, high=1.0)])
    monkeypatch.setattr(learning, "learner", lambda bench, ways: chosen.extend(ways) or fine)
    words = ["part=attention,learner", "ways=ZeRO-1,offload", "size=tiny", "device=cpu", f"output_dir={tmp_path}"]
    assert prove.run(words) == 1 and chosen == ["ZeRO-1", "offload"]
    printed = capsys.readouterr()
    assert "grpo:   refused  learner and sampler hold different weights  wrong\n" in printed.err
    assert "grpo:   crashed  RuntimeError: CUDA error: no kernel image is available  wrong\n" in printed.err
    # A traceback shows the place where the error is no answer to the user.
    assert printed.err.count("Traceback") == 1
    facts = json.loads((tmp_path / "prove.json").read_text())["facts"]
    assert [fact["verdict"] for fact in facts] == ["wrong", "–", "wrong", "fine"]


def test_a_proof_that_is_ended_before_its_time_leaves_what_it_has_measured(tmp_path, monkeypatch, capsys):
    def ended(bench):
        yield Report([Fact("learner", "packed tokens", 500.0, "tokens/s")])
        raise KeyboardInterrupt

    monkeypatch.setattr(computation, "gradients", ended)
    monkeypatch.setattr(computation, "attention", lambda bench: Report([Fact("attention", "error", 2.0, high=1.0)]))
    with pytest.raises(KeyboardInterrupt):
        prove.run(["part=attention,learner", "size=tiny", "device=cpu", f"output_dir={tmp_path}"])
    facts = json.loads((tmp_path / "prove.json").read_text())["facts"]
    assert [(fact["what"], fact["verdict"]) for fact in facts] == [("error", "wrong"), ("packed tokens", "–")]
    assert "grpo:   error  2  ≤ 1  wrong\n" in capsys.readouterr().err


def test_a_part_that_is_slow_ends_the_proof_with_1_unless_its_bound_is_a_guess(tmp_path, monkeypatch, capsys):
    slow = Report([Fact("attention", "seconds", 2.0, high=1.0, failing="slow")])
    monkeypatch.setattr(computation, "attention", lambda bench: slow)
    words = ["part=attention", "size=tiny", "device=cpu", f"output_dir={tmp_path}"]
    assert prove.run(words) == 1
    guessed = Report([Fact("attention", "seconds", 2.0, high=1.0, failing="look")])
    monkeypatch.setattr(computation, "attention", lambda bench: guessed)
    capsys.readouterr()
    assert prove.run(words) == 0
    assert "seconds  2  ≤ 1 (a guess)  look\n" in capsys.readouterr().err


@pytest.mark.parametrize(("word", "command"), [("hardware.ranks_per_node=8", "launch"), ("rollout=vllm", "train")])
def test_settings_are_given_to_the_command_that_starts_so_many_ranks(word, command, capsys):
    prove._print("H100, 1.5b", [], [{"word": word, "reason": "so it was measured"}])
    assert f"grpo {command} … {word}" in capsys.readouterr().out


def test_parts_that_need_vllm_say_so_where_there_is_none(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(prove, "find_spec", lambda name: None)
    assert prove.run(["part=sampler,servers", "size=tiny", "device=cpu", f"output_dir={tmp_path}"]) == 0
    assert capsys.readouterr().out.count("needs vLLM") == 2


@pytest.mark.parametrize(("device", "size"), [("cpu", "tiny"), ("auto", "1.5b")])
def test_a_proof_without_a_size_takes_that_of_its_device(device, size, tmp_path, monkeypatch):
    def chosen(size, *_):
        raise InterruptedError(size)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("grpo.prove.bench.Bench", chosen)
    with pytest.raises(InterruptedError, match=size):
        prove.run(["part=attention", f"device={device}", f"output_dir={tmp_path}"])


def test_a_proof_in_the_home_folder_lies_there(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert prove.run(["part=attention", "device=cpu", "size=tiny", "output_dir=~/proof"]) == 0
    assert (tmp_path / "proof" / "prove.json").exists() and not (tmp_path / "~").exists()


def test_unknown_parts_and_ways_are_refused(tmp_path):
    known = "ways=ZeRO-4 is unknown: choose among ZeRO-1, ZeRO-2, ZeRO-3, checkpointing, offload"
    with pytest.raises(UserError, match=known):
        prove.run(["ways=ZeRO-1,ZeRO-4", f"output_dir={tmp_path}"])
    with pytest.raises(
        UserError, match="part=nets is unknown: choose among attention, learner, round, servers, sync, sampler"
    ):
        prove.run(["part=nets", f"output_dir={tmp_path}"])
    with pytest.raises(UserError, match="size=70b is unknown: choose one of tiny, 1.5b, 7b"):
        prove.run(["size=70b", f"output_dir={tmp_path}"])


def test_keys_of_a_run_that_cannot_work_are_refused_before_anything_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(computation, "attention", None)
    with pytest.raises(UserError, match="learner.micro_batch_tokens"):
        prove.run(["part=attention", "learner.micro_batch_tokens=-1", f"output_dir={tmp_path}/new"])
    assert not (tmp_path / "new").exists()


def test_files_of_an_interrupted_proof_are_no_model(tmp_path):
    half = tmp_path / ".writing-model-tiny"
    half.mkdir()
    (half / "config.json").write_text("half")
    bench = Bench("tiny", tmp_path, [], device="cpu")
    bench.build()
    assert [path.name for path in tmp_path.iterdir()] == ["model-tiny"]
    assert (bench.path / "model.safetensors").stat().st_size > 0


def test_a_folder_that_cannot_be_made_is_one_line_whatever_runs_there_are(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    (tmp_path / "runs/default/checkpoints/step-00000001").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="file cannot be written to"):
        prove.run(["part=attention", f"output_dir={tmp_path}/file"])
