"""Runs from the command line with vLLM servers beside the learner: the same samples, lost servers, no orphans."""

import os
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest

from grpo.launch.seats import SERVER_PORTS
from tests.runs import SMALL, command, facts, rows, stream, wait_for_step

pytestmark = pytest.mark.slow


def free_ports(count):
    """The first of `count` ports in a row that nothing listens on, below those that connections take for themselves."""
    for first in range(20_000 + os.getpid() % 10_000, 32_000, count):
        try:
            for port in range(first, first + count):
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return first
    raise AssertionError("no free ports")


SERVERS = [
    *("hardware=two_nodes", "hardware.shell=here", "hardware.ranks_per_node=2"),
    *(f"hardware.first_port={free_ports(SERVER_PORTS + 2)}", "rollout.servers.replicas=2", "evaluation.num_problems=0"),
]


def launch(*overrides):
    """Two machines, both of them this one: two ranks learn on the first, the second serves. One thread each."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    words = command("launch", *SMALL, *SERVERS, "checkpoint.every_rounds=0", *overrides)
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def servers_of(output):
    """Every process of the run's servers that lives: the wrappers, vLLM's own, and their children."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "grpo.tether" in words and any(str(output) in opened for opened in logs(process)):
            found += [process, *process.children(recursive=True)]
    return found


def logs(process):
    try:
        return [os.readlink(f"/proc/{process.pid}/fd/1")]
    except OSError:
        return []


def gone(processes, seconds=30):
    return not psutil.wait_procs(processes, timeout=seconds)[1]


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """Two ranks and two servers, sampling one round ahead; the engine of one server is killed on the way."""
    output = tmp_path_factory.mktemp("servers") / "run"
    process = launch("num_steps=16", f"output_dir={output}")
    wait_for_step(output, 3, process, seconds=400)
    before = servers_of(output)
    victim = next(each for each in before if "EngineCore" in each.name() or "EngineCore" in " ".join(each.cmdline()))
    victim.kill()
    printed, _ = process.communicate(timeout=400)
    return output, process.returncode, printed, before


def test_a_run_goes_on_without_the_server_that_died_and_loses_no_sample(interrupted):
    output, code, printed, _ = interrupted
    assert code == 0, printed[-3000:]
    assert "was lost" in printed
    measured = rows(output / "metrics.jsonl")
    assert [row["step"] for row in measured] == list(range(1, 17))
    assert all(sum(groups for _, size, groups in row["groups/counts"] if size == 4) == 4 for row in measured)
    ids = [each for _, round_ids in stream(output) for each in round_ids]
    assert len(ids) == len(set(ids)) == 64


def test_sampling_ahead_is_one_round_stale_and_corrected_for(interrupted):
    measured = rows(interrupted[0] / "metrics.jsonl")
    assert [row["staleness/mean"] for row in measured] == [0.0] + [1.0] * 15
    assert 0.5 < min(row["mismatch/ess_fraction"] for row in measured) <= 1.0
    assert measured[0]["mismatch/mean_abs"] < 1e-5 < measured[-1]["mismatch/mean_abs"]


def test_no_server_outlives_its_run(interrupted):
    *_, before = interrupted
    assert len(before) >= 6
    assert gone(before)


CORRUPT = """
import sys
from grpo import environment
environment.prepare()
import torch
from grpo.config.hydra import compose_config
from grpo.weight_sync.channel import Channel

sent, send = [], Channel.send

def flipped(self, bucket):
    sent.append(bucket)
    if len(sent) > 5:
        name, tensor = bucket[3]
        changed = tensor.clone()
        changed.view(torch.int32).view(-1)[0] ^= 1
        bucket = [*bucket[:3], (name, changed), *bucket[4:]]
    send(self, bucket)

Channel.send = flipped
if __name__ == "__main__":
    import grpo.train
    sys.exit(grpo.train.train(compose_config(sys.argv[1:])))
"""


def test_servers_draw_what_an_engine_in_process_draws_and_a_flipped_bit_ends_the_run(tmp_path):
    plain, output = tmp_path / "plain", tmp_path / "servers"
    overrides = [*SMALL, "num_steps=3", "evaluation.num_problems=0", "checkpoint.every_rounds=0"]
    command = [sys.executable, "-m", "grpo.cli", "train", *overrides, f"output_dir={plain}"]
    subprocess.run(command, check=True, timeout=300, capture_output=True)
    script = tmp_path / "corrupt.py"
    script.write_text(CORRUPT)
    servers = [*SMALL, "num_steps=9", "evaluation.num_problems=0", "rollout=vllm_server", f"output_dir={output}"]
    done = subprocess.run([sys.executable, script, *servers], capture_output=True, text=True, timeout=500)
    # The first transfer comes before the first round.
    assert done.returncode == 1 and "after the refresh at step 5 learner and sampler hold different" in done.stderr
    assert stream(output)[:3] == stream(plain)
    for ours, theirs in zip(facts(output)[:3], facts(plain), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4)
    assert gone(servers_of(output))


HOLDER = """
import subprocess, sys, time
server = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "0"]
child = subprocess.Popen([sys.executable, "-m", "grpo.tether", "5", *server], stdin=subprocess.PIPE)
child.stdin.write(b"{}\\n")
child.stdin.flush()
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("victim", ["run", "wrapper"])
def test_a_server_ends_when_its_run_or_its_wrapper_is_killed(victim):
    run = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True)
    wrapper = psutil.Process(int(run.stdout.readline()))
    deadline = time.monotonic() + 30
    while not (servers := wrapper.children()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(servers) == 1
    (run if victim == "run" else wrapper).send_signal(signal.SIGKILL)
    assert gone([*servers, wrapper] if victim == "run" else servers)
    run.kill()
    run.wait()
