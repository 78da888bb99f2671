"""Heavy packages are imported without garbage collection, and modules of the working folder are found last."""

import gc
import os
import subprocess
import sys

import pytest

from grpo.host.imports import ROOT, importing, look_here_last, safe_path


@pytest.fixture(autouse=True)
def as_it_was():
    enabled = gc.isenabled()
    yield
    (gc.enable if enabled else gc.disable)()


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_is_looked_for_again_afterwards_if_it_was_before_also_where_an_import_fails(enabled):
    (gc.enable if enabled else gc.disable)()
    with pytest.raises(ImportError), importing():
        assert not gc.isenabled()
        raise ImportError
    assert gc.isenabled() == enabled


def test_the_garbage_collector_does_not_scan_imported_objects_again():
    gc.unfreeze()
    with importing():
        imported = [[] for _ in range(100)]
    later = ["made afterwards"]
    there = {id(one) for one in gc.get_objects()}
    assert id(later) in there and not there & {id(one) for one in imported}


def test_modules_of_the_working_folder_come_after_all_others(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["/first", "/second"])
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    look_here_last()
    look_here_last()
    assert sys.path == ["/first", "/second", str(tmp_path)]
    assert os.environ["PYTHONSAFEPATH"] == "1"


def test_a_checkout_of_grpo_stays_where_grpo_is_found(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert (ROOT / "grpo" / "cli.py").is_file() and safe_path() == {}


@pytest.mark.slow
def test_files_of_the_user_take_the_place_of_no_module_of_python(tmp_path):
    for module in ("json", "random", "types", "logging", "queue"):
        (tmp_path / f"{module}.py").write_text("raise RuntimeError('this file is the user's')")
    (tmp_path / "sums.csv").write_text("problem,answer\n1 + 1?,2\n2 + 1?,3\n")
    (tmp_path / "rewards.py").write_text(
        "import subprocess, sys\n"
        "def f(completion, answer, metadata):\n"
        "    return float(subprocess.run([sys.executable, '-c', 'import beside; print(beside.HALF)'],"
        " capture_output=True, check=True).stdout) * (answer in completion)\n"
    )
    (tmp_path / "beside.py").write_text("HALF = 0.5\n")
    reward = "task.reward.parts=[{name: rewards:f}]"
    command = ["check-reward", "task=file", "task.data.path=sums.csv", reward, "task.reward.timeout_seconds=60"]
    program = f"import sys; from grpo.cli import main; sys.exit(main({command}))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONSAFEPATH": ""}
    ended = subprocess.run(
        [sys.executable, "-P", "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert "f 0.5" in ended.stdout, ended.stderr
    assert ended.returncode == 0
