"""These tests hold that `launch/stop.sh` tells the truth about a launcher."""

import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

STOP = Path(__file__).resolve().parents[2] / "launch" / "stop.sh"
LAUNCHER = "import signal, sys; signal.signal(15, lambda *_: sys.exit(143)); print('here', flush=True); signal.pause()"


@pytest.fixture(params=["grpo.cli", "/venv/bin/grpo"])
def launcher(request):
    """Starts a process whose command line is that of `grpo launch`, however it was called."""
    with subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, request.param, "launch", "num_steps=1"], stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        yield process
        process.kill()


def stop(folder, words):
    (folder / "launcher.pid").write_text(words)
    return subprocess.run(["bash", str(STOP), str(folder)], capture_output=True, text=True)


def test_a_launcher_is_asked_to_end(launcher, tmp_path):
    done = stop(tmp_path, f"{launcher.pid} {socket.gethostname()}\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert launcher.wait(20) == 143


def test_one_that_was_stopped_is_continued_and_ends(launcher, tmp_path):
    psutil.Process(launcher.pid).suspend()
    done = stop(tmp_path, f"{launcher.pid} {socket.gethostname()}\n")
    assert done.returncode == 0 and "was stopped: it is continued" in done.stderr
    assert launcher.wait(20) == 143


def test_one_on_another_machine_is_named_and_nothing_here_is_touched(launcher, tmp_path):
    done = stop(tmp_path, f"{launcher.pid} elsewhere\n")
    assert (done.returncode, done.stderr) == (2, "stop: the run's launcher is on elsewhere: call this there\n")
    assert launcher.poll() is None


def test_another_process_of_that_number_is_not_touched(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", LAUNCHER], stdout=subprocess.PIPE)
    try:
        process.stdout.readline()
        done = stop(tmp_path, f"{process.pid} {socket.gethostname()}\n")
        assert done.returncode == 2 and "has been killed" in done.stderr
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
