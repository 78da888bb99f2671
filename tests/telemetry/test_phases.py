import subprocess
import sys
import threading

import pytest

from grpo.telemetry.phases import Phases


class Clock:
    """This clock passes only when told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def work(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def phases(clock):
    return Phases(clock=clock)


def run(script: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)


def test_calls_of_one_phase_add_up_and_taking_begins_anew(phases, clock):
    sample = phases.timed("sample", clock.work, 60.0, "rollout.deadline_seconds")
    sample(2.0)
    sample(3.0)
    assert phases.take() == {"sample": 5.0}
    assert phases.take() == {}


def test_a_round_has_a_clock_of_its_own_and_pays_for_nothing_before_it(phases, clock):
    def timed(name):
        return phases.timed(name, clock.work, 60.0, "key")

    for name, seconds in (("sample", 7.0), ("evaluation", 20.0), ("save", 30.0), ("sync", 1.0)):
        timed(name)(seconds)
    phases.begin_round()
    timed("sample")(2.0)
    clock.work(0.5)
    assert phases.end_round() == {"round": 2.5, "sample": 2.0, "evaluation": 20.0, "save": 30.0}
    phases.begin_round()
    assert phases.end_round() == {"round": 0.0}


def test_work_that_a_checkpoint_needs_counts_as_the_checkpoint(phases, clock):
    def timed(name, function):
        return phases.timed(name, function, 60.0, "key")

    def refresh():
        clock.work(3.0)
        timed("offload", clock.work)(5.0)

    def save():
        clock.work(1.0)
        timed("sync", refresh)()

    timed("sync", refresh)()
    timed("save", save)()
    timed("load", timed("sync", refresh))()
    phases.begin_round()
    timed("sync", refresh)()
    assert phases.end_round() == {"round": 8.0, "sync": 3.0, "offload": 5.0, "save": 9.0, "load": 8.0}


def test_every_thread_takes_its_own_seconds(phases, clock):
    sample, taken = phases.timed("sample", clock.work, 60.0, "key"), []

    def beside():
        sample(3.0)
        taken.append(phases.take())

    sample(1.0)
    thread = threading.Thread(target=beside)
    thread.start()
    thread.join()
    assert taken == [{"sample": 3.0}]
    assert phases.take() == {"sample": 1.0}


def test_two_levels_of_nesting_add_up_to_the_wall_clock(phases, clock):
    inner = phases.timed("inner", clock.work, 60.0, "key")

    def middle():
        clock.work(2.0)
        inner(4.0)

    timed_middle = phases.timed("middle", middle, 60.0, "key")

    def outer():
        clock.work(1.0)
        timed_middle()
        inner(8.0)

    phases.timed("outer", outer, 60.0, "key")()
    assert phases.take() == {"inner": 12.0, "middle": 2.0, "outer": 1.0}


def test_a_phase_that_raises_is_counted_and_its_error_passes(phases, clock):
    def fail():
        clock.work(3.0)
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        phases.timed("learn", fail, 60.0, "key")()
    phases.timed("learn", clock.work, 60.0, "key")(1.0)
    assert phases.take() == {"learn": 4.0}


def test_a_timed_function_returns_what_the_function_returns(phases):
    assert phases.timed("add", lambda a, b: a + b, 60.0, "key")(1, b=2) == 3


def test_a_wait_past_its_deadline_exits_with_one_line_and_all_stacks():
    done = run(
        "import time; from grpo.telemetry.phases import Phases\n"
        "def refresh(): time.sleep(50)\n"
        "Phases(rank=3).timed('refresh', refresh, 0.3, 'weight_sync.deadline_seconds')()"
    )
    assert done.returncode == 75
    assert done.stderr.splitlines()[0] == (
        "grpo: rank 3: phase 'refresh' (refresh) gave no result for 0.3 s and was ended as hung; "
        "if it is only slow, raise weight_sync.deadline_seconds"
    )
    assert "in refresh" in done.stderr
    assert "most recent call first" in done.stderr


def test_a_hung_phase_ends_though_nobody_reads_what_it_prints():
    done = run(
        "import os, time; from grpo.telemetry.phases import Phases\n"
        "reader, writer = os.pipe(); os.close(reader); os.dup2(writer, 2)\n"
        "Phases().timed('refresh', time.sleep, 0.3, 'key')(5)"
    )
    assert done.returncode == 75


def test_a_native_call_that_keeps_the_interpreter_lock_is_ended_too():
    done = run(
        "import ctypes; from grpo.telemetry import phases\n"
        "phases.GRACE_SECONDS = 0.3\n"
        "sleep = ctypes.PyDLL(None).sleep\n"
        "phases.Phases().timed('learn', sleep, 0.2, 'learner.deadline_seconds')(50)"
    )
    assert done.returncode == 1
    assert "Timeout" in done.stderr


def test_a_finished_phase_leaves_no_deadline_behind():
    done = run(
        "import time; from grpo.telemetry import phases\n"
        "phases.GRACE_SECONDS = 0.1\n"
        "p = phases.Phases()\n"
        "inner = p.timed('inner', int, 0.3, 'key')\n"
        "p.timed('outer', inner, 0.3, 'key')()\n"
        "time.sleep(0.8); print('alive')"
    )
    assert (done.returncode, done.stdout) == (0, "alive\n")
