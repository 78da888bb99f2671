"""These tests check what a launched run's exit code is, and what `launch/stop.sh` says of a launcher."""

import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from grpo.launch import supervise


class Part:
    """This stands for a held seat whose process gives `codes` one after another when asked. It repeats the last one."""

    def __init__(self, role, *codes):
        self.seat = SimpleNamespace(role=role, name=f"{role}-0", machine=SimpleNamespace(name="here"))
        self.log, self.begin, self.num_asked, self.orders, self._codes = None, 0, 0, [], list(codes)

    def poll(self):
        return self._codes.pop(0) if len(self._codes) > 1 else self._codes[0]

    def ask_to_stop(self):
        self.orders.append("stop")

    def hurry(self):
        self.orders.append("hurry")

    def kill(self):
        self.orders.append("kill")

    def wait(self):
        return self._codes[-1]


@pytest.fixture
def waited(monkeypatch):
    """Returns the exit code of a run of these parts, which nobody asks to stop."""
    monkeypatch.setattr(supervise, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(supervise, "unread", lambda: False)
    monkeypatch.setattr(supervise, "last_word", lambda log, begin: "no room")
    return lambda *parts: supervise.wait(parts, SimpleNamespace(count=0))


def test_a_run_has_succeeded_when_its_learners_have_also_if_the_server_ends_in_the_same_moment(waited):
    assert waited(Part("learner", None, 0), Part("server", None, 1)) == 0
    assert waited(Part("learner", None, 0), Part("server", None)) == 0


def test_a_run_that_loses_its_last_server_stops_and_fails(waited, capsys):
    learner = Part("learner", None, None, None, 0)
    assert waited(learner, Part("server", None, 9), Part("server", None, None, 7)) == 7
    assert learner.orders == ["stop"]
    assert capsys.readouterr().err.count("grpo: server-0 on here ended with 7: no room") == 2


def test_a_request_that_comes_to_the_machine_of_a_server_stops_the_learners(waited):
    learner, server = Part("learner", None, None, supervise.EXIT_STOPPED), Part("server", None)
    server.num_asked = 1
    assert waited(learner, server) == supervise.EXIT_STOPPED
    assert (learner.orders, server.orders) == (["stop"], [])


def test_a_lost_machine_is_named_rather_than_the_last_line_of_its_log(waited, capsys):
    assert waited(Part("learner", None, None, None, 0), Part("server", None, supervise.LOST)) == supervise.LOST
    assert "server-0 on here ended with 255: its machine, or the connection to it, is gone" in capsys.readouterr().err


def test_a_learner_that_fails_ends_the_others(waited):
    other = Part("learner", None)
    assert waited(Part("learner", None, 3), other) == 3
    assert other.orders == ["kill"]


def test_a_first_request_stops_the_learners_a_second_hurries_them_and_a_third_ends_them(waited):
    class Asked:
        count = property(lambda self: min(len(learner.orders) + 1, 3))

    learner = Part("learner", None, None, None, None, 137)
    assert supervise.wait([learner], Asked()) == 143
    assert learner.orders == ["stop", "hurry", "kill"]


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


def test_a_file_that_names_no_launcher_is_named(tmp_path):
    done = stop(tmp_path, "")
    assert done.returncode == 2 and "launcher.pid names no launcher" in done.stderr


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
