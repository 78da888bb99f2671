"""A run's folder has one run at a time."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from grpo.commands import launch
from grpo.config.errors import EndedElsewhere, UserError
from grpo.config.folder import LAUNCHER_FILE
from grpo.host.folder_lock import is_locked, launching, locked, refuse_locked
from tests.fakes import SingleRank, on_ranks

# Holds a folder, and starts a child that outlives it.
HOLDER = """
import os, sys, time
from pathlib import Path
from grpo.host.folder_lock import locked
from tests.fakes import SingleRank
with locked(Path(sys.argv[1]), SingleRank()):
    child = os.fork()
    if child:
        print(child, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    child = int(process.stdout.readline())
    yield process
    process.kill()
    os.kill(child, signal.SIGKILL)


def test_a_second_run_is_refused_with_the_name_of_the_first_and_its_other_ranks_end_in_silence(holder, tmp_path):
    def begin(collective):
        with locked(tmp_path, collective):
            return "begun"

    expected = (
        f"{tmp_path} is in use by a run that still goes on (process {holder.pid} on {socket.gethostname()}): "
        "wait until it ends, stop it, or choose another output_dir"
    )
    first, second = on_ranks(2, begin)
    assert (type(first), str(first)) == (UserError, expected)
    assert isinstance(second, EndedElsewhere)
    with pytest.raises(UserError, match="still goes on"):
        refuse_locked(tmp_path)
    # The lock lets readers in.
    assert (tmp_path / "run.lock").read_text() == f"process {holder.pid} on {socket.gethostname()}\n"


def test_a_second_launcher_is_refused_and_leaves_the_name_of_the_first_until_that_ends(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from grpo.host.folder_lock import launching\n"
        "with launching(Path(sys.argv[1])): print('launched', flush=True); time.sleep(600)"
    )
    first = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert first.stdout.readline()
        with pytest.raises(UserError, match=f"still goes on .{first.pid} {socket.gethostname()}."), launching(tmp_path):
            pass
        assert (tmp_path / LAUNCHER_FILE).read_text() == f"{first.pid} {socket.gethostname()}\n"
    finally:
        first.kill()
        first.wait()
    with launching(tmp_path):
        assert (tmp_path / LAUNCHER_FILE).read_text() == f"{os.getpid()} {socket.gethostname()}\n"
    assert not (tmp_path / LAUNCHER_FILE).exists()


def test_a_reader_without_the_right_to_write_sees_whether_a_run_goes_on(holder, tmp_path, monkeypatch):
    lock = tmp_path / "run.lock"
    content, opened = lock.read_text(), Path.open

    def reading_only(path, mode="r", **options):
        if set(mode) & set("wa+"):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, mode, **options)

    monkeypatch.setattr(Path, "open", reading_only)
    assert is_locked(tmp_path)
    holder.kill()
    holder.wait()
    assert not is_locked(tmp_path) and not is_locked(tmp_path / "nowhere")
    assert lock.read_text() == content


def test_a_launcher_starts_nothing_there_and_leaves_the_pid_of_the_other(holder, tmp_path):
    (tmp_path / LAUNCHER_FILE).write_text("7")
    with pytest.raises(UserError, match=f"process {holder.pid} on"):
        launch.run(["experiment=tiny", f"output_dir={tmp_path}"])
    assert {path.name: path.read_text() for path in tmp_path.glob("*.pid")} == {LAUNCHER_FILE: "7"}
    assert not (tmp_path / "logs").exists()


def test_the_lock_ends_with_its_process_however_that_ends(holder, tmp_path):
    holder.kill()
    holder.wait()
    refuse_locked(tmp_path)
    with locked(tmp_path, SingleRank()):
        assert str(os.getpid()) in (tmp_path / "run.lock").read_text()


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written to"):
        refuse_locked(tmp_path / "file" / "run")


@pytest.mark.parametrize("name", ["run.lock", "metrics.jsonl", "prompts.jsonl", "samples.jsonl", "resumptions.jsonl"])
def test_a_folder_in_which_a_log_is_a_link_is_refused_and_one_behind_a_link_is_not(tmp_path, name):
    victim, run = tmp_path / "victim", tmp_path / "run"
    victim.write_text("mine")
    run.mkdir()
    (run / name).symlink_to(victim)
    with pytest.raises(UserError, match=f"run/{name} is a link, and nothing is written through links"):
        refuse_locked(run)
    assert victim.read_text() == "mine"
    (run / name).unlink()
    (tmp_path / "through").symlink_to(run, target_is_directory=True)
    refuse_locked(tmp_path / "through")


@pytest.mark.parametrize("name", ["checkpoints", "completions", "model", "models", "logs", "profile", "wandb"])
def test_a_folder_in_which_a_folder_of_the_runs_is_a_link_is_refused(tmp_path, name):
    victim, run = tmp_path / "victim", tmp_path / "run"
    victim.mkdir()
    run.mkdir()
    (run / name).symlink_to(victim, target_is_directory=True)
    with pytest.raises(
        UserError, match=f"run/{name} is a link, and nothing is written through links: put the folder"
    ) as e:
        refuse_locked(run)
    assert f"to write to another disk, name a folder there as output_dir, or make {run} as a whole" in str(e.value)
    assert [*victim.iterdir()] == []
    (run / name).unlink()
    (run / name).mkdir()
    refuse_locked(run)


@pytest.mark.parametrize("name", ["checkpoints", "model", "tensorboard"])
def test_a_file_in_place_of_a_folder_of_the_runs_is_refused(tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(UserError, match=f"{name} is a file, where a run has a folder: move it away, or choose another"):
        refuse_locked(tmp_path)
    assert (tmp_path / name).read_text() == "mine"


def test_a_pipe_in_place_of_a_log_is_refused(tmp_path):
    os.mkfifo(tmp_path / "metrics.jsonl")
    with pytest.raises(UserError, match="metrics.jsonl is no plain file"):
        refuse_locked(tmp_path)
