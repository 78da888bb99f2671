"""These tests check what a process's environment holds before it imports torch."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from grpo.cli import main
from grpo.config import UserError
from grpo.host import environment
from grpo.host.environment import require_usual_python

# It takes 160 MiB twice, in pieces of 40 MiB, as a learner's steps do, and prints the pages that the second time costs.
TWICE = """
import resource
from grpo.host import environment
from grpo.host.environment import require_usual_python
environment.GPU_DEVICES = ()
environment.prepare()
def touch():
    pieces = [bytearray(b"x") * (40 * 2**20) for _ in range(4)]
touch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
touch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def pages(**variables):
    environment = {**os.environ, **variables}
    ran = subprocess.run([sys.executable, "-c", TWICE], env=environment, capture_output=True, text=True, check=True)
    return int(ran.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's own functions")
def test_freed_memory_is_kept_for_the_next_step_unless_the_user_has_set_how_much():
    assert pages() < 1_000
    assert pages(MALLOC_TRIM_THRESHOLD_="131072") > 10_000


@pytest.mark.parametrize("threads", ["abc", "0", "-1", "", "2.5"])
def test_a_number_of_threads_that_is_none_is_one_line(threads, monkeypatch, capsys):
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    assert main(["config", "clip_low"]) == 2
    assert capsys.readouterr().err == (
        f"grpo: the environment variable OMP_NUM_THREADS={threads!r} is no number of threads: unset or correct it\n"
    )


FLAGS = SimpleNamespace(optimize=2, warn_default_encoding=0, utf8_mode=1)


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        ("locale.getpreferredencoding", lambda _: "ANSI_X3.4-1968", "reads files as ASCII here, and torch's own are"),
        ("sys.flags", FLAGS, "drops docstrings here, which transformers reads: unset PYTHONO"),
        ("sys.warnoptions", ["error"], "makes an error of every warning here, and torch warns as it is loaded: unset"),
    ],
)
def test_options_of_python_with_which_no_model_loads_are_one_line(place, value, said, monkeypatch):
    require_usual_python()
    monkeypatch.setattr(place, value)
    with pytest.raises(UserError, match=said):
        require_usual_python()


def test_a_package_that_refuses_a_variables_value_is_one_line(tmp_path):
    environment = {**os.environ, "DS_ACCELERATOR": "banana"}
    words = ["-m", "grpo.cli", "train", "experiment=tiny", "dry_run=true", f"output_dir={tmp_path}/run"]
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("grpo: a package cannot be loaded (DS_ACCELERATOR must be one of ")


def test_a_network_card_that_is_none_is_one_line(monkeypatch, capsys):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo,nope0")
    assert main(["config", "clip_low"]) == 2
    assert "GLOO_SOCKET_IFNAME='lo,nope0' names no network card of this machine, which has " in capsys.readouterr().err
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert main(["config", "clip_low"]) == 0


def test_a_terminal_that_does_not_know_its_width_shows_tables_all_the_same(monkeypatch, capsys):
    monkeypatch.setenv("OMP_NUM_THREADS", "4, 2")
    monkeypatch.setenv("COLUMNS", "0")
    assert main(["config", "clip_low"]) == 0
    assert "objective.clip_low" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("device", "accelerator"), [("/dev/nvidiactl", None), ("/dev/dxg", None), ("/dev/null", "cpu")]
)
def test_deepspeed_is_kept_from_gpus_only_where_there_is_none(device, accelerator, monkeypatch):
    """Within Windows, GPUs are seen as /dev/dxg."""
    monkeypatch.setattr(Path, "exists", lambda path: str(path) == device)
    monkeypatch.setattr(environment, "_keep_memory", lambda: None)
    with patch.dict(os.environ):
        os.environ.pop("DS_ACCELERATOR", None)
        environment.prepare()
        assert os.environ.get("DS_ACCELERATOR") == accelerator


@pytest.mark.parametrize(
    ("device", "compiler", "disabled"),
    [("/dev/null", None, "1"), ("/dev/null", "/usr/bin/g++", None), ("/dev/nvidiactl", None, None)],
)
def test_nothing_is_compiled_on_a_cpu_without_a_compiler(device, compiler, disabled, monkeypatch):
    monkeypatch.setattr(Path, "exists", lambda path: str(path) == device)
    monkeypatch.setattr(environment, "_keep_memory", lambda: None)
    monkeypatch.setattr("shutil.which", lambda name: compiler)
    with patch.dict(os.environ):
        for name in ("CXX", "TORCHDYNAMO_DISABLE"):
            os.environ.pop(name, None)
        environment.prepare()
        assert os.environ.get("TORCHDYNAMO_DISABLE") == disabled


@pytest.mark.parametrize(
    ("device", "given", "expected"),
    [
        ("/dev/nvidiactl", {}, {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}),
        (
            "/dev/nvidiactl",
            {"PYTORCH_CUDA_ALLOC_CONF": "backend:native"},
            {"PYTORCH_CUDA_ALLOC_CONF": "backend:native"},
        ),
        ("/dev/nvidiactl", {"PYTORCH_ALLOC_CONF": ""}, {"PYTORCH_ALLOC_CONF": ""}),
        ("/dev/null", {}, {}),
    ],
)
def test_memory_of_gpus_is_kept_in_segments_that_grow_unless_the_user_has_set_how(device, given, expected, monkeypatch):
    monkeypatch.setattr(Path, "exists", lambda path: str(path) == device)
    monkeypatch.setattr(environment, "_keep_memory", lambda: None)
    with patch.dict(os.environ):
        for name in environment.ALLOCATOR:
            os.environ.pop(name, None)
        os.environ.update(given)
        environment.prepare()
        assert {name: os.environ[name] for name in environment.ALLOCATOR if name in os.environ} == expected


def test_hidden_command_says_how_to_call_grpo_where_the_path_does_not_lead_to_it(monkeypatch, tmp_path):
    folder = tmp_path / ".venv" / "bin"
    folder.mkdir(parents=True)
    for name in ("python", "grpo", "activate"):
        (folder / name).touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.setattr(environment, "GIVEN_PATH", "/nowhere")
    assert environment.hidden_command() == f"{folder}/grpo  (source {folder}/activate makes it grpo)"
    monkeypatch.chdir(tmp_path)
    assert environment.hidden_command() == ".venv/bin/grpo  (source .venv/bin/activate makes it grpo)"
    monkeypatch.setattr(environment, "GIVEN_PATH", str(folder))
    assert environment.hidden_command() == ""
    monkeypatch.setattr(environment, "GIVEN_PATH", "/nowhere")
    (folder / "activate").unlink()
    assert environment.hidden_command() == ".venv/bin/grpo"
    (folder / "grpo").unlink()
    assert environment.hidden_command() == ""
