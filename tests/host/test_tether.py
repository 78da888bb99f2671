"""These tests check a tethered command: its environment, and its end when it is asked to stop or its starter is
gone."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from grpo.host.tether import PRIVATE

SHOW = "import os; print(os.environ['SECRET'], flush=True)"
WAIT = "import time; print('here', flush=True); time.sleep(600)"
SAVE = "import signal, sys, time\nsignal.signal(15, lambda *_: (print('saved', flush=True), sys.exit(143)))\n" + WAIT
DEAF = "import signal; signal.signal(15, signal.SIG_IGN)\n" + WAIT


def tethered(program, grace=20, silent=0):
    command = [sys.executable, "-m", "grpo.host.tether", str(grace), str(silent), sys.executable, "-c", program]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    process.stdin.write(json.dumps({"SECRET": "s3cret"}).encode() + b"\n")
    process.stdin.flush()
    return process


def test_the_command_gets_the_environment_and_its_exit_code_is_the_tethers():
    process = tethered(SHOW + "; raise SystemExit(7)")
    assert process.stdout.read() == b"s3cret\n"
    assert process.wait(20) == 7
    assert "s3cret" not in " ".join(process.args)


def test_asked_to_stop_the_command_may_take_its_time():
    process = tethered(SAVE)
    assert process.stdout.readline() == b"here\n"
    process.stdin.write(b"stop\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"saved\n"
    assert process.wait(20) == 143


@pytest.mark.parametrize("order", [b"kill\n", None])
def test_with_the_command_goes_what_it_started_elsewhere(order):
    """The command's child has a session of its own and ignores signals. The command is killed together with its child,
    or ends by itself."""
    # The command waits until its child is deaf: a child that still starts after the grace is killed before it says so.
    deaf = DEAF.replace("time.sleep", "os.write(2, b'.'); time.sleep").replace("import", "import os,", 1)
    beside = "start_new_session=True, stderr=subprocess.PIPE"
    start = (
        f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {deaf!r}], {beside}); p.stderr.read(1)\n"
    )
    process = tethered(start + WAIT if order else start, grace=1 if order is None else 600)
    assert process.stdout.readline() == b"here\n"
    if order:
        process.stdin.write(order)
        process.stdin.flush()
    assert process.wait(20) == (128 + signal.SIGKILL if order else 0)
    # Nobody holds the pipe that they all wrote to.
    assert process.stdout.read() in (b"", b"here\n")


def test_an_order_to_hurry_reaches_what_knows_it_and_disturbs_nothing_else():
    know = "import signal; signal.signal(signal.SIGURG, lambda *_: print('hurried', flush=True))\n" + WAIT
    start = f"import subprocess, sys; subprocess.Popen([sys.executable, '-uc', {know!r}], start_new_session=True)\n"
    process = tethered(start + WAIT)
    assert [process.stdout.readline() for _ in range(2)] == [b"here\n"] * 2
    process.stdin.write(b"hurry\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"hurried\n"
    process.stdin.write(b"kill\n")
    process.stdin.flush()
    assert process.wait(20) == 128 + signal.SIGKILL


def test_an_order_to_kill_does_not_wait():
    process = tethered(DEAF, grace=600)
    assert process.stdout.readline() == b"here\n"
    process.stdin.write(b"kill\n")
    process.stdin.flush()
    assert process.wait(20) == 128 + signal.SIGKILL


@pytest.mark.parametrize("program", [SAVE, DEAF])
def test_with_the_pipe_goes_the_command_by_force_if_need_be(program):
    process = tethered(program, grace=1)
    assert process.stdout.readline() == b"here\n"
    process.stdin.close()
    assert process.wait(20) == (143 if program == SAVE else 128 + signal.SIGKILL)


@pytest.mark.slow
def test_a_starter_that_says_nothing_any_more_is_gone():
    process = tethered(SAVE, silent=2)
    assert process.stdout.readline() == b"here\n"
    for _ in range(4):
        time.sleep(1)
        process.stdin.write(b"\n")
        process.stdin.flush()
    assert process.poll() is None
    assert process.wait(20) == 143


QUICK = "import sys; from grpo.host import tether; tether.LOOK_SECONDS = 0.2; sys.exit(tether.main(sys.argv[1:]))"


@pytest.mark.slow
def test_a_stopped_process_gets_one_signal_and_another_when_it_is_stopped_again():
    start = f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {WAIT!r}]); print(p.pid); " + WAIT
    command = [sys.executable, "-c", QUICK, "1", "0", sys.executable, "-u", "-c", start]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        process.stdin.write("{}\n")
        process.stdin.flush()
        said = [process.stdout.readline() for _ in range(3)]
        child = psutil.Process(int(next(line for line in said if line != "here\n")))
        for _ in range(2):
            child.suspend()
            assert process.stdout.readline() == (
                f"grpo: process {child.pid} is suspended, and the processes that wait for it hang: "
                f"resume it by kill -CONT {child.pid}\n"
            )
            time.sleep(1)
            child.resume()
            time.sleep(1)
        process.stdin.close()
        assert process.stdout.read() == ""


@pytest.mark.parametrize("killed", ["", "outer", "inner", "command"])
def test_a_private_folder_is_nobody_elses_and_is_removed(killed):
    program = "import os; print(os.environ['FOLDER'], oct(os.stat(os.environ['FOLDER']).st_mode), flush=True)\n"
    command = [sys.executable, "-m", "grpo.host.tether", "1", "0", sys.executable, "-c"]
    command.append(program + ("open(os.environ['FOLDER'] + '/socket', 'w')\n" + WAIT if killed else ""))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        process.stdin.write(json.dumps({"FOLDER": PRIVATE}) + "\n")
        process.stdin.flush()
        folder, mode = process.stdout.readline().split()
        assert mode == "0o40700"
        if killed:
            assert process.stdout.readline() == "here\n" and Path(folder).exists()
            outer = psutil.Process(process.pid)
            inner, command = below(process, 2)
            {"outer": outer, "inner": inner, "command": command}[killed].kill()
            assert not psutil.wait_procs([inner, command], timeout=20)[1]
        process.wait(20)
    assert process.returncode == {"": 0, "outer": -signal.SIGKILL}.get(killed, 128 + signal.SIGKILL)
    assert not Path(folder).exists()


def test_sockets_fit_into_a_private_folder_wherever_temporary_files_are_kept(tmp_path):
    """vLLM names a socket by 36 characters, and the path of a socket may have 107."""
    far = tmp_path / ("far" * 30)
    far.mkdir()
    program = "import os, socket; socket.socket(socket.AF_UNIX).bind(os.environ['FOLDER'] + '/' + 36 * 'x')"
    command = [sys.executable, "-m", "grpo.host.tether", "1", "0", sys.executable, "-c", program]
    environment = os.environ | {"TMPDIR": str(far)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True, env=environment) as process:
        process.stdin.write(json.dumps({"FOLDER": PRIVATE}) + "\n")
        process.stdin.flush()
        assert process.wait(20) == 0


def below(process, count):
    """Returns the processes below this one, once there are `count` of them."""
    deadline = time.monotonic() + 20
    while len(children := psutil.Process(process.pid).children(recursive=True)) < count:
        assert time.monotonic() < deadline, children
        time.sleep(0.05)
    assert len(children) == count
    return children


@pytest.mark.parametrize("killed", ["outer", "inner", "group of the outer"])
def test_killed_itself_it_leaves_nothing(killed):
    """As vLLM's engine does, a child of the command has a session of its own and no eye on its parent."""
    engine = f"subprocess.Popen([sys.executable, '-c', {DEAF!r}], start_new_session=True)"
    process = tethered(f"import subprocess, sys; {engine}\n" + DEAF, grace=1)
    assert {process.stdout.readline() for _ in range(2)} == {b"here\n"}
    inner, *children = below(process, 3)
    if killed == "group of the outer":
        os.killpg(process.pid, signal.SIGKILL)
    else:
        (process if killed == "outer" else inner).send_signal(signal.SIGKILL)
    assert not psutil.wait_procs([inner, *children], timeout=20)[1]
    assert process.wait(20) == (128 + signal.SIGKILL if killed == "inner" else -signal.SIGKILL)


@pytest.mark.slow
def test_children_of_a_command_end_though_both_its_tethers_are_killed():
    engine = "from grpo.host.tether import end_with_tether; end_with_tether()\n" + DEAF
    process = tethered(f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {engine!r}])\n" + DEAF)
    assert [process.stdout.readline() for _ in range(2)] == [b"here\n"] * 2
    below = psutil.Process(process.pid).children(recursive=True)
    assert len(below) == 3
    for tether in (below[0], process):
        tether.kill()
    _, alive = psutil.wait_procs(below, timeout=20)
    for left in alive:
        left.kill()
    assert alive == []


def test_a_starter_that_is_killed_takes_the_command_along():
    starter = subprocess.Popen(
        [sys.executable, "-c", f"from tests.host.test_tether import *; import os; p = tethered({WAIT!r}, 1); "
         "print(p.pid, flush=True); p.stdout.readline(); time.sleep(600)"],
        stdout=subprocess.PIPE,
    )  # fmt: skip
    tether = psutil.Process(int(starter.stdout.readline()))
    children = below(tether, 2)
    starter.kill()
    assert not psutil.wait_procs([tether, *children], timeout=20)[1]
