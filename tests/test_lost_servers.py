"""These tests run over two machines whose servers hang, die and come back, and check that none outlives its run."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest

from benchmarks.runs import QUIET, SMALL, free_ports, rows, stream, wait_for_step
from grpo.launch.seats import SERVER_PORTS
from tests.forked_servers import launcher

pytestmark = pytest.mark.slow

# A learner on a thread of its own for each rank.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def processes_of(output):
    """Returns every living process of the run: those whose output goes to a log in its folder."""
    return [process for process in psutil.process_iter() if str(output) in log_of(process)]


def log_of(process):
    try:
        return os.readlink(f"/proc/{process.pid}/fd/1")
    except OSError:
        return ""


def gone(processes):
    return not psutil.wait_procs(processes, timeout=30)[1]


class Launched:
    """This is a run over two machines, both of which are this one: two ranks learn on the first, and two servers run on
    the second."""

    def __init__(self, output, *overrides, **variables):
        self.output = output
        machines = ["hardware=two_nodes", "hardware.shell=here", "hardware.ranks_per_node=2"]
        ports = [f"hardware.first_port={free_ports(SERVER_PORTS + 2)}", "rollout.servers.replicas=2"]
        grpo = [sys.executable, launcher(output.parent)]
        words = [*grpo, "launch", *SMALL, *QUIET, *machines, *ports, *overrides, f"output_dir={output}"]
        self.process = subprocess.Popen(
            words, env=os.environ | ONE_THREAD | variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def wait_for(self, text, times=1, seconds=240):
        """Waits until the first learner has written `text` at least `times` times."""
        deadline = time.monotonic() + seconds
        log = self.output / "logs" / "learner-0.log"
        while log.read_text().count(text) < times:
            assert self.process.poll() is None, self.process.stdout.read()[-3000:]
            assert time.monotonic() < deadline, f"{text!r} is not in the log: {log.read_text()[-3000:]}"
            time.sleep(0.1)

    @property
    def step(self):
        return rows(self.output / "metrics.jsonl")[-1]["step"]

    def engine(self, number):
        """Returns the vLLM engine process of server `number`, whose process id is in the server's log."""
        log = sorted((self.output / "logs").glob("server-*.log"))[number]
        return psutil.Process(int(re.findall(r"EngineCore pid=(\d+)", log.read_text(errors="replace"))[-1]))


SLOWLY = """
import pathlib, time

def reward(completion, answer, metadata):
    time.sleep(0.6 * pathlib.Path(__file__).with_name("rest").exists())
    return 0.0
"""


def slow_down(process, enough):
    """Suspends a process for five sixths of the time, until `enough()` is true."""
    while not enough():
        process.suspend()
        time.sleep(0.1)
        process.resume()
        time.sleep(0.02)


@pytest.fixture(scope="module")
def troubled(tmp_path_factory):
    """Makes a run of episodes with continuous sampling over refreshes. One server is slowed down for that, then hangs
    and wakes again. The other server is killed and started again. Once both are back, the run is asked to stop."""
    folder = tmp_path_factory.mktemp("servers")
    (folder / "slowly.py").write_text(SLOWLY)
    resting = folder / "rest"
    ahead = ["pipeline=continuous", "rollout.max_staleness=3", "num_steps=4000", "rollout.servers.request_seconds=30"]
    parts = "task.reward.parts=[{name: number}, {name: 'slowly:reward', weight: 0}]"
    episodes = ["task.episode=tests.episodes.acts:three_turns", "task.limits.turns=2", "model.max_length=128"]
    words = [*ahead, *episodes, parts, "rollout.sampling.max_tokens=16", "learner.learning_rate=1e-6"]
    run = Launched(folder / "run", *words, PYTHONPATH=f"{folder}:{os.environ.get('PYTHONPATH', '')}")
    try:
        wait_for_step(run.output, 3, run.process, seconds=400)
        servers = processes_of(run.output)
        hung = run.engine(0)
        slow_down(hung, lambda: run.step >= 16)
        hung.suspend()
        # The run only waits now, for half a minute or for a server that starts, so other tests may have the processor.
        resting.touch()
        run.wait_for("was lost")
        # On a slow machine `grpo serve` may have noticed first, and started it again.
        with contextlib.suppress(psutil.NoSuchProcess):
            hung.resume()
        run.wait_for("is back")
        # Once it has its weights.
        wait_for_step(run.output, run.step + 2, run.process)
        run.engine(1).kill()
        run.wait_for("is back", times=2, seconds=400)
        resting.unlink()
        wait_for_step(run.output, run.step + 3, run.process)
        servers += processes_of(run.output)
        run.process.terminate()
        printed, _ = run.process.communicate(timeout=120)
    finally:
        run.process.kill()
    return run.output, run.process.returncode, printed, servers


def test_a_run_goes_on_without_servers_that_hang_or_die_and_takes_them_back(troubled):
    output, code, printed, _ = troubled
    assert code == 143 and "stopped at step" in printed, printed[-3000:]
    measured = rows(output / "metrics.jsonl")
    assert [row["step"] for row in measured] == list(range(1, len(measured) + 1))


def test_no_sample_is_lost_or_doubled_by_it(troubled):
    output = troubled[0]
    measured = rows(output / "metrics.jsonl")
    assert all(sum(groups for _, size, groups in row["groups/counts"] if size == 4) == 4 for row in measured)
    ids = [prompt for _, round_ids in stream(output) for prompt in round_ids]
    assert len(ids) == len(set(ids)) == 4 * len(measured)


def test_no_token_is_older_than_the_bound_and_weights_changed_while_some_were_sampled(troubled):
    output = troubled[0]
    measured, prompts = rows(output / "metrics.jsonl"), rows(output / "prompts.jsonl")
    assert max(row["staleness/max"] for row in measured) in (1, 2, 3)
    for row in prompts:
        assert all(row["step"] - 1 - 3 <= oldest <= newest < row["step"] for oldest, newest in row["versions"])
    assert any(oldest < newest for row in prompts for oldest, newest in row["versions"])
    for row in rows(output / "samples.jsonl"):
        written, tokens = zip(*row["versions"], strict=True)
        assert list(written) == sorted(set(written)) and sum(tokens) == row["tokens"]
    assert min(row.get("mismatch/ess_fraction", 1.0) for row in measured) > 0.5


def test_episodes_go_on_at_another_server_with_the_tokens_that_they_had(troubled):
    measured = rows(troubled[0] / "metrics.jsonl")
    assert max(row["episodes/failed_fraction"] for row in measured) == 0
    assert sum(row["episodes/turns_mean"] for row in measured) > 1.5 * len(measured)
    # The learner reads whole episodes. Few of their log-probabilities are alike if one token is another.
    assert max(row.get("mismatch/mean_abs", 0.0) for row in measured) < 1e-3


def test_no_server_outlives_its_run(troubled):
    *_, servers = troubled
    assert len(servers) >= 12
    assert gone(servers)


HOLDER = """
import sys, time
from pathlib import Path
from grpo.rollout.replica import ServerProcess
server = ServerProcess([], {}, Path(sys.argv[1]))
server._command[server._command.index("-W"):] = ["-m", "http.server", "--bind", "127.0.0.1", "0"]
server.start()
print(server._process.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("victim", ["run", "group of the run", "wrapper"])
def test_a_server_ends_when_its_run_or_its_wrapper_is_killed(victim, tmp_path):
    words = [sys.executable, "-c", HOLDER, tmp_path / "log"]
    run = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    wrapper = psutil.Process(int(run.stdout.readline()))
    deadline = time.monotonic() + 30
    while len(servers := wrapper.children(recursive=True)) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(servers) == 2
    if victim == "group of the run":
        os.killpg(run.pid, signal.SIGKILL)
    else:
        (wrapper if victim == "wrapper" else run).send_signal(signal.SIGKILL)
    assert gone(servers if victim == "wrapper" else [*servers, wrapper])
    run.kill()
    run.wait()
