"""These tests check what a request to stop does to the process that gets it."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from grpo.host.signals import SIGNALS, StopRequest, handled_as_before

COUNTING = """
import os, signal, time
from grpo.host import signals
signals.TOGETHER_SECONDS = {together}
if {frozen}:
    signals.StopRequest._end_after_the_last = lambda self: None
stop = signals.StopRequest({messages!r})
for seconds in {pauses}:
    time.sleep(abs(seconds))
    os.kill(os.getpid(), signal.SIGTERM if seconds >= 0 else signal.SIGURG)
    print(stop(), stop.count, stop.urgent, flush=True)
"""


def stopped(messages, pauses, together=0.3, frozen=False):
    """Returns how a process ended that was signalled after each of these `pauses`, what it printed, and its errors.

    A pause below 0 ends with the signal of a launcher that has no time. `frozen` keeps the thread that prepares for the
    request after the last from running, as in a process that is ending.
    """
    code = COUNTING.format(messages=messages, pauses=pauses, together=together, frozen=frozen)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout.split("\n")[:-1], done.stderr


def test_requests_are_counted_and_end_nothing():
    assert stopped((), [0, 0.5, -0.1]) == (0, ["True 1 False", "True 2 False", "True 2 False"], "")


@pytest.mark.parametrize("frozen", [False, True])
def test_each_message_answers_a_request_the_last_is_urgent_and_the_next_ends_the_process(frozen):
    code, printed, said = stopped(["after this round", "before its end"], [0, *[0.2] * 100], frozen=frozen)
    assert (code, printed[0]) == (-signal.SIGTERM, "True 1 False")
    assert [*dict.fromkeys(printed)] == ["True 1 False", "True 2 True"]
    assert said == "after this round\nbefore its end\n"


def test_a_launcher_without_time_makes_the_first_request_urgent_and_ends_nothing():
    assert stopped(["after this round", "before its end"], [-0.1, -0.5, -0.5]) == (
        0,
        ["True 2 True"] * 3,
        "before its end\n",
    )


HANGING = """
import ctypes, os, signal, threading, time
from grpo.host import signals
signals.TOGETHER_SECONDS = 0.1
stop = signals.StopRequest(["first", "second"])

def ask():
    while True:
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=ask, daemon=True).start()
lock = ctypes.create_string_buffer(64)
ctypes.CDLL(None).pthread_mutex_lock(lock)
ctypes.CDLL(None).pthread_mutex_lock(lock)
"""


def test_requests_end_a_process_whose_main_thread_hangs_in_native_code():
    done = subprocess.run([sys.executable, "-c", HANGING], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (-signal.SIGTERM, ""), "no handler of Python's has run"


def test_signals_that_come_together_are_one_request():
    """Slurm and systemd signal every process of a run, and then the launcher and torchrun pass their signals on."""
    assert stopped((), [0, 0, 0], together=60) == (0, ["True 1 False"] * 3, "")
    assert stopped(["stopping", "now"], [0, 0, 0], together=60) == (0, ["True 1 False"] * 3, "stopping\n")


HUNG_UP = """
import os, signal
signal.signal(signal.SIGHUP, signal.SIG_IGN if {ignored} else signal.SIG_DFL)
from grpo.host.signals import StopRequest
stop = StopRequest(["stopping"])
own, terminal = os.openpty()
kept = os.dup(1)
os.dup2(terminal, 1)
os.kill(os.getpid(), signal.SIGHUP)
os.close(own)
os.write(1, b"to a terminal that is closed")
os.write(kept, str(stop.count).encode())
"""


@pytest.mark.parametrize(("ignored", "count"), [(False, "1"), (True, "0")])
def test_a_closed_terminal_asks_to_stop_unless_that_is_ignored(ignored, count):
    """Writing to the closed terminal is no error, since a run has still to save."""
    code = HUNG_UP.format(ignored=ignored)
    if ignored:
        # Under nohup nothing has been redirected, so a closed terminal is one that nothing is written to.
        code = code.replace('os.write(1, b"to a terminal that is closed")', "")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, count), done.stderr


OF_A_SCHEDULER = """
import os, signal
from grpo.host.signals import StopRequest
signal.signal(signal.SIGUSR2, lambda *_: print("own"))
stop = StopRequest()
os.kill(os.getpid(), signal.SIGUSR2)
print(stop())
os.kill(os.getpid(), signal.SIGUSR1)
print(stop())
"""


def test_a_schedulers_signal_asks_to_stop_unless_the_users_code_handles_it():
    done = subprocess.run([sys.executable, "-c", OF_A_SCHEDULER], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.split()) == (0, ["own", "False", "True"])


def test_signals_are_handled_as_before_once_a_run_from_python_is_over():
    before, threads = [signal.getsignal(number) for number in SIGNALS], set(threading.enumerate())
    files = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ValueError, match="the run failed"), handled_as_before():
        StopRequest(["stopping"])
        (waiting,) = set(threading.enumerate()) - threads
        assert [signal.getsignal(number) for number in SIGNALS] != before
        raise ValueError("the run failed")
    assert [signal.getsignal(number) for number in SIGNALS] == before
    waiting.join(60)
    assert not waiting.is_alive()
    assert len(os.listdir("/proc/self/fd")) == files


ANSWERED_TO_NOBODY = """
import os, signal
from grpo.host.signals import StopRequest
stop = StopRequest(["stopping"])
reader, writer = os.pipe()
os.close(reader)
os.dup2(writer, 2)
os.kill(os.getpid(), signal.SIGINT)
print(stop.count)
"""


def test_a_request_counts_where_whoever_read_the_output_has_ended_too():
    """Ctrl-C in `grpo train 2>&1 | tee log` ends `tee` at once."""
    done = subprocess.run([sys.executable, "-c", ANSWERED_TO_NOBODY], stdout=subprocess.PIPE, text=True, timeout=60)
    assert done.stdout == "1\n"
