"""Commands tell what is wrong with their words before torch is imported."""

import errno
import json
import os
import re
import socket
import subprocess
import sys
from dataclasses import asdict

import pytest

from grpo.cli import main
from grpo.config import ModelConfig, UserError
from grpo.config.hydra import compose_config
from grpo.host.disk import require_writable
from grpo.host.ports import require_ports
from grpo.models.resolve import check_early
from grpo.run.early_checks import finished
from grpo.telemetry.ending import Ending, write_ending

FIRST_OF_TWO = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
SERVE = ["serve", "experiment=tiny", "model.max_length=64"]


def test_importing_all_that_is_checked_early_imports_nothing_heavy():
    code = "import sys, grpo.run.early_checks; print({'torch', 'transformers', 'vllm', 'deepspeed'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (SERVE, "grpo serve needs rollout.servers.port"),
        (["serve", "rollout.servers.port=8000"], "so they need model.max_length"),
        ([*SERVE, "rollout.servers.port=65535", "rollout.servers.replicas=3"], "need ports up to 65537"),
        ([*SERVE, "rollout.servers.port=8000", "rollout.servers.urls=['http://a:1']"], "names running ones"),
        ([*SERVE, "rollout.servers.port=8000", "rollout.servers.host=no.such"], "host=no.such is no address of"),
        (["serve", "rollout.servers.port=1", "model.path=a/b", "model.max_length=900"], "model.path=a/b is not read"),
        (["eval", "model=huggingface"], "model.path is empty"),
        (["eval", "model.path=no/such/folder"], "model.path=no/such/folder: there is no such directory"),
        (["solve-rates", "model=huggingface"], "model.path is empty"),
        (["train", "model=huggingface"], "model.path is empty"),
        (["train", "task.name=../x"], "task.name=../x is no plain name, by which a folder may be called: leave out"),
        (["train", "task.reward.memory_gib=0.001"], "task.reward.memory_gib=0.001 must be at least 0.25"),
        (["train", "task.episode=a.py:f", "task.limits.memory_gib=0.01"], "memory_gib=0.01 must be at least 0.25"),
        (
            ["train", "experiment=tiny", "rollout=vllm_server", "rollout.servers.urls=['http://127.0.0.1:1']"],
            "servers answer only those who have their key: set GRPO_SERVER_KEY to what it was where `grpo serve`",
        ),
        (["eval", "dry_run=true"], "dry_run=True has no effect here: only grpo train reads it"),
        (["eval", "checkpoint.resume=true"], "checkpoint.resume=True has no effect here: only grpo train reads it"),
        (
            ["solve-rates", "evaluation.num_problems=9"],
            "evaluation.num_problems=9 has no effect here: grpo solve-rates",
        ),
    ],
)
def test_words_that_are_missing_or_wrong_are_reported_without_torch(words, message, capsys, monkeypatch):
    # `tests/commands/test_quick_words.py` starts a process for such words. Here what would import torch is refused.
    monkeypatch.setattr("grpo.cli.working", None)
    monkeypatch.delenv("GRPO_SERVER_KEY", raising=False)
    assert main(words) == 2
    assert message in capsys.readouterr().err


def test_pass_rates_are_not_written_into_a_run(tmp_path, capsys):
    for name in ("metrics.jsonl", "config.json"):
        (tmp_path / name).write_text("{}")
    assert main(["solve-rates", "experiment=tiny", f"output_dir={tmp_path}"]) == 2
    assert f"output_dir={tmp_path} holds a run: name another folder for the pass rates" in capsys.readouterr().err


def test_a_run_that_is_finished_ends_a_restart_at_once_unless_more_is_asked_of_it(tmp_path, capsys):
    words = ["train", "experiment=tiny", "num_steps=60", f"output_dir={tmp_path}", "checkpoint.resume=auto"]

    def said(state, step, why, *more):
        write_ending(tmp_path, Ending(state, step, why))
        return finished(compose_config([*words[1:], *more]))

    (tmp_path / "config.json").write_text(json.dumps(asdict(compose_config(words[1:]))))
    done = f"the run in {tmp_path} is finished at step 60 of 60: nothing is left to do"
    assert said("finished", 60, "") == done
    assert main(words) == 0 and capsys.readouterr().out == f"{done}\n"
    assert said("finished", 60, "", "num_steps=61") == "" == said("interrupted", 60, "")
    assert said("finished", 9, "limits.samples") == done.replace("60 of 60", "9 of 60 (limits.samples)")
    assert said("finished", 9, "limits.samples", "limits.samples=9999") == ""
    gate = "gates=[{metric: reward/mean, below: 0.1}]"
    assert said("finished", 9, "a gate is broken", gate) == ""
    assert said("finished", 60, "", "dry_run=true") == said("finished", 60, "", "checkpoint.resume=true") == ""


def test_a_hub_model_is_looked_for_early_only_without_a_network(monkeypatch, capsys):
    resolving = sys.modules["grpo.models.resolve"]
    monkeypatch.setattr(resolving, "is_offline_mode", lambda: True)
    assert main(["eval", "model.path=me/mine", "task=tiny_arithmetic"]) == 2
    assert "nor in the hub's cache, and the hub is not reachable (or HF_HUB_OFFLINE is set)" in capsys.readouterr().err
    # With a network the look-up may take long, so it comes later.
    monkeypatch.setattr(resolving, "is_offline_mode", lambda: False)
    monkeypatch.setattr(resolving, "_download", None)
    check_early(ModelConfig(path="me/mine"))


@pytest.mark.parametrize("words", [["eval", "model.path=me/mine"], ["train", "experiment=tiny", "task=gsm8k"]])
def test_a_cache_of_the_hub_that_cannot_be_made_is_reported_early(words, monkeypatch, capsys, tmp_path):
    (tmp_path / "file").write_text("")
    resolving = sys.modules["grpo.models.resolve"]
    monkeypatch.setattr(resolving, "is_offline_mode", lambda: False)
    monkeypatch.setattr(resolving.constants, "HF_HUB_CACHE", f"{tmp_path}/file/hub")
    words = [*words, "task.prompt.max_tokens=8", "model.max_length=64", "rollout.sampling.max_tokens=8"]
    monkeypatch.setattr("grpo.cli.working", None)
    assert main(words) == 2
    assert "/file/hub, which keeps what the hub sends, cannot be made (Not a directory)" in capsys.readouterr().err


def test_a_missing_gpu_is_reported_before_torch_is_imported(monkeypatch, capsys):
    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr("grpo.host.ranks.ctypes.CDLL", missing)
    monkeypatch.setattr("grpo.cli.working", None)
    assert main(["train", "experiment=tiny", "device=cuda"]) == 2
    assert "device=cuda, but torch sees no GPU here: run `grpo doctor`" in capsys.readouterr().err


def test_a_port_that_is_taken_is_named_before_a_server_starts():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"servers.port={port} cannot be used at 127.0.0.1 .*choose another"):
            require_ports("127.0.0.1", [port], "rollout.servers")
    require_ports("127.0.0.1", [port], "rollout.servers")


@pytest.mark.parametrize(
    "words",
    [
        ["experiment=tiny", "rollout=vllm", "+rollout.engine_args.max_model_length=8"],
        ["experiment=tiny", "task=file", "task.data.path=none.jsonl"],
        ["experiment=tiny", "model=huggingface", "model.path=/none"],
        ["experiment=tiny", "evaluation.suite=[none]"],
        ["experiment=tiny", "rollout=vllm_server", "rollout.servers.host=192.0.2.1"],
    ],
)
def test_the_launcher_refuses_at_once_what_ranks_on_this_machine_would_refuse(words, tmp_path, capsys):
    words.append(f"output_dir={tmp_path}/run")
    assert (main(["train", *words]), main(["launch", *words])) == (2, 2)
    by_rank, by_launcher = capsys.readouterr().err.splitlines()
    assert by_launcher == by_rank
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_made_is_one_line(capsys):
    assert main(["sweep", "sweep=seeds", "experiment=tiny", "seeds=1", "output_dir=/proc/none"]) == 2
    assert capsys.readouterr().err == f"grpo: cannot use /proc/none: {os.strerror(errno.ENOENT)}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["output_dir=/dev/null/x"], "output_dir=/dev/null/x cannot be written to, since /dev/null is no folder"),
        (["dry_run=true", "output_dir=/dev/null"], "output_dir=/dev/null cannot be written to, since /dev/null is no"),
        (["tracking.mlflow=nonsense"], "tracking.mlflow=nonsense is no address and no folder: give http://HOST:PORT"),
        (["tracking.mlflow=localhost:5000"], "mlflow=localhost:5000 lacks its protocol: give http://localhost:5000"),
        (["output_dir=None"], "output_dir=None would be a folder of that name: name one, or leave the word out"),
        (["output_dir=/"], "output_dir=/ would mix the run's files with others"),
        ([f"num_steps={'9' * 400}"], "num_steps=99999999999999999999… is too large: give at most 18 digits"),
        (["task.reward.workers=100000"], "task.reward.workers=100000 asks for as many processes, and this machine has"),
    ],
)
def test_settings_that_a_run_cannot_have_are_refused_before_anything_is_made(words, message, monkeypatch, capsys):
    monkeypatch.setattr("grpo.cli.working", None)
    assert main(["train", "experiment=tiny", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("folder", ["/proc/none", "/proc/none/deeper", "/dev/null/run"])
def test_a_folder_that_nobody_can_make_is_reported_before_anything_heavy_is_imported(folder, monkeypatch, capsys):
    monkeypatch.setattr("grpo.cli.working", None)
    assert main(["train", "experiment=tiny", f"output_dir={folder}"]) == 2
    assert re.match(
        rf"grpo: output_dir={folder} cannot be written to, since /\w+(/null)? is no", capsys.readouterr().err
    )


def test_a_folder_on_a_read_only_disk_is_reported_before_anything_is_made(tmp_path, monkeypatch):
    require_writable(tmp_path / "new" / "run")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(UserError, match=f"since {tmp_path} is read-only here: choose another"):
        require_writable(tmp_path / "new" / "run")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"WORLD_SIZE": "0"}, "the environment variable WORLD_SIZE=0 is set, but not RANK: start ranks by"),
        ({"RANK": "3", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, "the environment variable RANK is"),
        ({"WORLD_SIZE": "two"}, "the environment variable WORLD_SIZE='two' is no whole number"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "RANK is set, but not MASTER_ADDR and MASTER_PORT: start"),
        (FIRST_OF_TWO | {"LOCAL_RANK": "0"}, "each of the 2 ranks would write"),
        (FIRST_OF_TWO, "RANK=0 and WORLD_SIZE=2 are set without LOCAL_RANK, as PyTorchJob and PAI do"),
    ],
)
def test_wrong_variables_of_a_launcher_are_reported(variables, message, monkeypatch, capsys):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main(["train", "experiment=tiny"]) == 2
    assert message in capsys.readouterr().err


def test_an_evaluation_overwrites_no_other(tmp_path, capsys):
    (tmp_path / "math500.json").write_text("{}")
    assert main(["eval", "model.path=me/mine", "evaluation.suite=[math500]", f"output_dir={tmp_path}"]) == 2
    assert f"{tmp_path}/math500.json holds an evaluation already: choose another output_dir" in capsys.readouterr().err


def test_a_dotted_key_of_a_file_is_refused_with_its_nested_form(tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text("defaults: [train, _self_]\nlearner.learning_rate: 1e-5\n")
    assert main(["train", f"{tmp_path}/mine.yaml"]) == 2
    expected = "unknown config key learner.learning_rate: a file nests keys, so write learner: {learning_rate: …}"
    assert expected in capsys.readouterr().err
