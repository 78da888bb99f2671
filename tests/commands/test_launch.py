"""These tests check how a launched run ends, whatever ends it. The seats' commands are stand-ins under real tethers."""

import os
import signal
import subprocess
import time

import psutil
import pytest

from benchmarks.runs import free_ports
from grpo.host.signals import TOGETHER_SECONDS
from tests import warm

LAUNCHER = ("grpo.commands.launch",)
LAUNCH = """
import sys
import grpo.commands.launch as command
from grpo.launch.machines import Machine
from grpo.launch.seats import LEARNER, SERVER, Seat

def stand_ins(config, words, machines):
    programs = {SERVER: [%(server)r], LEARNER: [%(learner)r, %(other)r]}
    return [
        Seat(role, index, Machine("127.0.0.1", "127.0.0.1"), (sys.executable, "-c", program), 5.0)
        for role, each in programs.items() for index, program in enumerate(each)
    ]

command.seats_of = stand_ins
sys.exit(command.run(["experiment=tiny", "output_dir=" + sys.argv[1], *sys.argv[2:]]))
"""
SERVE = "import time; time.sleep(600)"
SAVE = (
    "import signal, sys, time\nsignal.signal(15, lambda *_: (print('saved', flush=True), sys.exit(143)))\n"
    "print('round 1', flush=True); time.sleep(600)"
)
FULL = SAVE.replace("'saved'", "'grpo: step 7 could not be written'").replace("143", "2")
DEAF = "import signal, time; signal.signal(15, signal.SIG_IGN); print('round 1', flush=True); time.sleep(600)"
DONE = "print('round 1')"
FAIL = "import time; time.sleep(1); print('grpo: the disk is full'); print('noise'); raise SystemExit(3)"


def launch(folder, learner, other=None, server=SERVE):
    script = folder / "launch.py"
    script.write_text(LAUNCH % {"server": server, "learner": learner, "other": other or learner})
    # Learners meet at the first of these ports, and servers listen from 100 ports higher on.
    words = [script, folder / "run", f"hardware.first_port={free_ports(110)}"]
    return warm.Process(words, LAUNCHER, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def started(process, seats=3):
    """Returns all processes of the launched run, once they have started and the first learner has printed "round 1"."""
    while "round 1" not in process.stdout.readline():
        assert process.poll() is None, process.stderr.read()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        processes = psutil.Process(process.pid).children(recursive=True)
        if len(processes) == 3 * seats:  # the two processes of a tether and its command each
            return processes
        time.sleep(0.05)
    raise AssertionError(f"{len(processes)} processes instead of {3 * seats}")


def gone(processes):
    return not psutil.wait_procs(processes, timeout=20)[1]


def test_when_the_learners_are_done_the_servers_end(tmp_path):
    process = launch(tmp_path, DONE)
    printed, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert "learner ranks" in printed and "round 1" in printed
    assert "round 1" in (tmp_path / "run" / "logs" / "learner-1.log").read_text()
    assert not (tmp_path / "run" / "launcher.pid").exists()


def test_all_processes_name_one_folder_by_the_launchers_start(tmp_path):
    tell = "import os; print('round 1 of', os.environ['GRPO_START'], flush=True)"
    script = tmp_path / "launch.py"
    script.write_text(LAUNCH % {"server": SERVE, "learner": tell, "other": tell})
    process = warm.Process([script, f"{tmp_path}/runs/${{start:}}"], LAUNCHER, stdout=subprocess.PIPE)
    printed, _ = process.communicate(timeout=60)
    [run] = (tmp_path / "runs").iterdir()
    assert f"{run} will hold what the run writes\n" in printed
    assert run.name.endswith(f"-{process.pid}")
    for index in (0, 1):
        assert (run / "logs" / f"learner-{index}.log").read_text() == f"round 1 of {run.name}\n"


@pytest.mark.slow
def test_a_failed_part_is_named_last_and_ends_the_others_at_once(tmp_path):
    process = launch(tmp_path, DEAF, FAIL)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 3
    assert said.splitlines()[-1] == "grpo: learner-1 on 127.0.0.1 ended with 3: the disk is full"


def test_a_launch_does_not_repeat_the_words_of_an_earlier_start(tmp_path):
    """Both starts write into one log."""
    launch(tmp_path, FAIL, SERVE).communicate(timeout=60)
    _, said = launch(tmp_path, "raise ValueError('no such port')", DEAF).communicate(timeout=60)
    assert said.splitlines()[-1] == "grpo: learner-0 on 127.0.0.1 ended with 1: ValueError: no such port"
    assert "grpo: the disk is full" in (tmp_path / "run" / "logs" / "learner-0.log").read_text()


@pytest.mark.slow
def test_without_a_server_left_the_learners_are_asked_to_stop(tmp_path):
    process = launch(tmp_path, SAVE, server="import time; time.sleep(3); " + FAIL)
    printed, said = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "saved" in printed
    # At once, and after whatever else was said.
    assert said.splitlines() == ["grpo: servers-0 on 127.0.0.1 ended with 3: the disk is full"] * 2


def test_asked_to_stop_it_lets_the_learners_save(tmp_path):
    process = launch(tmp_path, SAVE)
    processes = started(process)
    process.send_signal(signal.SIGTERM)
    printed, said = process.communicate(timeout=60)
    assert process.returncode == 143, said
    assert "saved" in printed
    assert gone(processes)


def test_it_lets_the_learners_save_when_nobody_reads_its_output_any_more(tmp_path):
    process = launch(tmp_path, SAVE)
    processes = started(process)
    process.stdout.close()
    with (tmp_path / "run" / "logs" / "learner-0.log").open("a") as log:
        log.write("another round\n")
    assert (process.wait(timeout=60), process.stderr.read()) == (143, "")
    assert gone(processes)


@pytest.mark.slow
def test_when_someone_stops_one_learner_the_others_save_too(tmp_path):
    process = launch(tmp_path, SAVE, SAVE.replace("print('saved'", "time.sleep(1), print('saved'"))
    processes = started(process)
    log, deadline = tmp_path / "run" / "logs" / "learner-1.log", time.monotonic() + 30
    while "round 1" not in log.read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    [learner] = [process for process in processes if process.cmdline()[1:] == ["-c", SAVE]]
    learner.terminate()
    printed, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (143, "")
    assert "saved" in printed and "saved" in log.read_text()
    assert gone(processes)


def test_asked_to_stop_it_tells_of_a_learner_that_could_not_save(tmp_path):
    process = launch(tmp_path, SAVE, FULL)
    started(process)
    # Its own line comes by its log.
    log, deadline = tmp_path / "run" / "logs" / "learner-1.log", time.monotonic() + 30
    while "round 1" not in log.read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    printed, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "saved" in printed
    assert said.splitlines()[-1] == "grpo: step 7 could not be written (learner-1 on 127.0.0.1 ended with 2)"


EACH = """
import sys
import grpo.commands.launch as command
from grpo.launch.seats import LEARNER, SERVER, Seat

def stand_ins(config, words, machines):
    programs = [(LEARNER, 0), (LEARNER, 1), (SERVER, 0), (SERVER, 1)]
    programs = {seat: %(learner)r if seat[0] == LEARNER else %(server)r for seat in programs}
    return [
        Seat(role, index, machine, (sys.executable, "-c", program), 5.0)
        for ((role, index), program), machine in reversed([*zip(programs.items(), machines)])
    ]

command.seats_of = stand_ins
sys.exit(command.run(sys.argv[1:]))
"""


def test_four_machines_that_start_the_same_command_stop_together_when_one_of_them_is_asked(tmp_path):
    script = tmp_path / "launch.py"
    script.write_text(EACH % {"learner": SAVE, "server": SERVE})
    nodes = ["hardware.learner_nodes=2", "hardware.server_nodes=2", "rollout=vllm_server"]
    words = [script, "experiment=tiny", *nodes, "hardware.shell=each", f"output_dir={tmp_path}/${{start:}}"]
    job = os.environ | {"WORLD_SIZE": "4", "MASTER_ADDR": "localhost", "MASTER_PORT": str(free_ports(1))}
    job |= {"GRPO_SERVER_KEY": "secret"}
    machines = [
        warm.Process(words, LAUNCHER, job | {"RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for rank in (3, 2, 1, 0)
    ][::-1]
    processes = [process for machine in machines[:2] for process in started(machine, 1)]
    machines[1].send_signal(signal.SIGTERM)
    ended = [machine.communicate(timeout=60) for machine in machines]
    # SIGTERM ends the stand-in of a server by 143; `grpo serve` ends by 0.
    assert [machine.returncode for machine in machines] == [143] * 4, ended
    assert gone(processes)
    [run] = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert run.name.endswith(f"-{machines[0].pid}"), "all name the folder by the first machine's start"
    logs = {file.name: file.read_text() for file in (run / "logs").iterdir()}
    saved = "round 1\nsaved\n"
    assert logs == {"learner-0.log": saved, "learner-1.log": saved, "servers-0.log": "", "servers-1.log": ""}


def code_of_ranks(folder, program, number=signal.SIGTERM):
    """Asks torchrun to stop once both of its ranks are under way. Returns how many ranks have saved, and torchrun's
    exit code."""
    (folder / "rank.py").write_text("import os, time\n" + program)
    torchrun = ["grpo.launch.torchrun", "--nproc-per-node=2", "--shutdown-timeout=30"]
    process = warm.Process(["-m", *torchrun, folder / "rank.py"], warm.TORCHRUN, stdout=subprocess.PIPE)
    # Both write into one pipe, and a line's end may come after the other's line.
    under_way = 0
    while under_way < 2:
        under_way += process.stdout.readline().count("round 1")
    process.send_signal(number)
    return process.communicate(timeout=60)[0].count("saved"), process.returncode


@pytest.mark.slow
@pytest.mark.parametrize("code", [143, 2])
def test_ranks_that_are_asked_to_stop_end_with_the_code_of_one_that_could_not_save(code, tmp_path):
    program = SAVE.replace("143", f"{code} if os.environ['RANK'] == '1' else 143")
    assert code_of_ranks(tmp_path, program) == (2, code)


@pytest.mark.slow
def test_several_ranks_have_one_thread_each_and_torchrun_says_nothing_of_them(tmp_path):
    program = "import os, sys\nos.write(1, os.environ['OMP_NUM_THREADS'].encode())\nsys.exit(2)\n"
    (tmp_path / "rank.py").write_text(program)
    own = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    words = ["-m", "grpo.launch.torchrun", "--nproc-per-node=2", tmp_path / "rank.py"]
    done = warm.run(words, warm.TORCHRUN, 60, own)
    assert (done.returncode, set(done.stdout), done.stderr) == (2, {"1"}, "")


@pytest.mark.slow
def test_ranks_that_saved_after_ctrl_c_end_as_after_any_other_request(tmp_path):
    assert code_of_ranks(tmp_path, SAVE.replace("(15,", "(2,"), signal.SIGINT) == (2, 143)


@pytest.mark.slow
def test_ranks_that_are_asked_to_stop_while_they_start_have_nothing_to_save(tmp_path):
    starting = "if os.environ['RANK'] == '1': print('round 1', flush=True); time.sleep(600)\n"
    assert code_of_ranks(tmp_path, starting + SAVE.replace("143", "1")) == (1, 143)


@pytest.mark.slow
def test_asked_three_times_it_does_not_wait_for_them(tmp_path):
    process = launch(tmp_path, DEAF)
    processes = started(process)
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        # Signals that come closer together count as one request.
        time.sleep(TOGETHER_SECONDS + 0.5)
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 143
    assert gone(processes)


@pytest.mark.slow
@pytest.mark.parametrize("learner", [SAVE, DEAF])
def test_killed_it_leaves_nothing_and_learners_save(tmp_path, learner):
    process = launch(tmp_path, learner)
    processes = started(process)
    process.kill()
    assert gone(processes)
    log = (tmp_path / "run" / "logs" / "learner-0.log").read_text()
    assert log == ("round 1\nsaved\n" if learner == SAVE else "round 1\n")
