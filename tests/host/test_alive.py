"""Long waits print that they go on, and a process that is done ends."""

import subprocess
import sys
import threading

import pytest

from grpo.host import alive
from grpo.host.alive import slow, working


def test_slow_work_is_reported_again_and_again(monkeypatch):
    monkeypatch.setattr(alive, "FIRST_MOMENTS", (0.001, 0.002))
    lines, twice = [], threading.Event()

    def tell(text):
        lines.append(text)
        if len(lines) == 2:
            twice.set()

    with working("starting the sampler", tell):
        assert twice.wait(10)
    assert lines == ["grpo: starting the sampler …"] * 2


def test_repeated_work_of_a_run_is_reported_once_a_minute(monkeypatch):
    monkeypatch.setattr(alive, "A_MINUTE", 0.001)
    lines, once = [], threading.Event()
    with working("taking an optimizer step", lambda text: (lines.append(text), once.set()), seldom=True):
        assert once.wait(10)
    assert lines[0] == "grpo: taking an optimizer step …"


def test_a_function_that_may_be_slow_gives_what_it_gave():
    assert slow("taking an optimizer step", max)(3, 6) == 6


def test_quick_work_says_nothing(capsys):
    with working("reading the problems"):
        pass
    assert capsys.readouterr().err == ""


def test_only_the_first_rank_speaks(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(alive, "FIRST_MOMENTS", (0.0, 0.0, 0.0))
    lines = []
    with working("starting the sampler", lines.append):
        threading.Event().wait(0.05)
    assert lines == []


ENDING = """
import sys, threading, time
from grpo.host import alive
alive.THREADS_SECONDS = 0.3
if {thread}:
    threading.Thread(target=time.sleep, args=(600,), name="beat").start()
alive.end_in_time(3)
sys.exit(3)
"""


@pytest.mark.parametrize(
    ("thread", "said"),
    [
        (False, ""),
        (True, "grpo: all is done, but for threads of your own ('beat'), which end now: start them with daemon=True\n"),
    ],
)
def test_threads_of_the_users_code_do_not_keep_a_process(thread, said):
    command = [sys.executable, "-c", ENDING.format(thread=thread)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (3, said)
