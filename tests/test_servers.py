"""These tests run grpo with vLLM servers beside the learner: the same samples, lost servers, no orphans."""

import asyncio
import os
import subprocess
import urllib.error
import urllib.request

import psutil
import pytest

from benchmarks.runs import QUIET, SMALL, command, facts, free_ports, rows, stream, wait_for_step
from grpo.config import UserError
from grpo.config.placement import KEY_VARIABLE
from grpo.rollout.claims import claim
from grpo.rollout.replica import Replica
from tests import warm
from tests.runs import grpo

pytestmark = pytest.mark.slow


# A learner on a thread of its own for each rank.
ONE_THREAD = os.environ | {"OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Starts a server of two workers by `grpo serve`, with room for adapters. The server outlives the runs that use it.
    Yields the overrides that name the server."""
    output, port = tmp_path_factory.mktemp("served"), free_ports(1)
    server = ["rollout=vllm_server", "rollout.servers.tensor_parallel=2"]
    os.environ[KEY_VARIABLE] = ONE_THREAD[KEY_VARIABLE] = "a key of the tests"
    words = [*SMALL, *server, f"rollout.servers.port={port}", "model.lora.rank=4"]
    process = subprocess.Popen(
        command("serve", *words, f"output_dir={output}"), env=ONE_THREAD, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline().startswith("serving at")
        yield [*server, f"rollout.servers.urls=[http://127.0.0.1:{port}]"]
    finally:
        process.terminate()
        process.wait(60)
        del os.environ[KEY_VARIABLE], ONE_THREAD[KEY_VARIABLE]


ROUTES = [
    "collective_rpc",
    "start_weight_update",
    "update_weights",
    "weight_checker",
    "is_paused",
    "inference/v1/generate",
]


def test_a_server_answers_nobody_without_the_key(served):
    url = served[-1].partition("=[")[2].strip("]")
    for key in ({}, {"Authorization": "Bearer another"}):
        for route in ROUTES:
            method = "GET" if route == "is_paused" else "POST"
            headers = {"Content-Type": "application/json", **key}
            request = urllib.request.Request(f"{url}/{route}", b"{}", headers, method=method)
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request, timeout=60)
            assert refused.value.code == 401, route
    assert urllib.request.urlopen(f"{url}/health", timeout=60).status == 200


TROUBLED_CHANNEL = """
import sys
from grpo import cli
from grpo.host import environment
environment.prepare()

# Graders import this script too.
if __name__ == "__main__":
    from grpo.weight_sync.channel import Channel
    sent, send = [], Channel.send

    def troubled(self, buffer):
        sent.append(buffer)
        if len(sent) > 6:
            %s
        send(self, buffer)

    Channel.send = troubled
    sys.exit(cli.main())
"""
FLIPPED = "buffer = buffer.clone(); buffer[0] ^= 1"
CUT = "send(self, buffer); raise RuntimeError('the cable is cut')"


def train_over(channel, folder, *words):
    """Runs `grpo train` over a channel that fails from the seventh bucket on. Two buckets are sent before the first
    round."""
    script = folder / "troubled.py"
    script.write_text(TROUBLED_CHANNEL % channel)
    return warm.run([script, "train", *words], timeout=500, env=ONE_THREAD)


def test_servers_draw_what_an_engine_in_process_draws_and_a_flipped_bit_ends_the_run(tmp_path, served):
    """Both runs train a LoRA. Engine and server get the base once, then adapters."""
    plain, output = tmp_path / "plain", tmp_path / "servers"
    lora = ["model.lora.rank=4", "learner.learning_rate=3e-3"]
    alone = grpo("train", *SMALL, *QUIET, *lora, "num_steps=3", f"output_dir={plain}")
    assert alone.returncode == 0, alone.stderr[-3000:]
    done = train_over(FLIPPED, tmp_path, *SMALL, *QUIET, *lora, *served, "num_steps=9", f"output_dir={output}")
    # Two transfers come before the first round.
    assert done.returncode == 2 and "after the refresh at step 5 learner and sampler hold different" in done.stderr
    assert stream(output)[:3] == stream(plain)
    for ours, theirs in zip(facts(output)[:3], facts(plain), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4)


def test_sampling_ahead_is_one_round_stale_and_corrected_for(tmp_path, served):
    """Two learner ranks use a server that another learner has used before and left in the middle of a transfer."""
    output = tmp_path / "run"
    url = served[-1].partition("=[")[2].strip("]")
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {ONE_THREAD[KEY_VARIABLE]}"}
    urllib.request.urlopen(urllib.request.Request(f"{url}/start_weight_update", b"{}", headers), timeout=60)
    ranks = ["hardware.ranks_per_node=2", f"hardware.first_port={free_ports(1)}", "pipeline=one_round"]
    words = ["launch", *SMALL, *QUIET, *served, *ranks, "num_steps=8", f"output_dir={output}"]
    forked = ONE_THREAD | {"PYTHON_EXEC": warm.interpreter(tmp_path)}
    done = warm.run(["-m", "grpo.cli", *words], timeout=400, env=forked)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    measured = rows(output / "metrics.jsonl")
    assert [row["staleness/mean"] for row in measured] == [0.0] + [1.0] * 7
    assert all(0 < row["rollout/cache_peak_fraction"] < 1 for row in measured)
    assert 0.5 < min(row.get("mismatch/ess_fraction", 1.0) for row in measured) <= 1.0
    # A round of silent groups has none.
    first, *later = [row["mismatch/mean_abs"] for row in measured if "mismatch/mean_abs" in row]
    assert first < 1e-5 < min(later)
    ids = [prompt for _, round_ids in stream(output) for prompt in round_ids]
    assert len(ids) == len(set(ids)) == 32


def test_when_the_last_server_is_lost_in_a_refresh_the_round_is_saved(tmp_path, served):
    output = tmp_path / "run"
    done = train_over(CUT, tmp_path, *SMALL, *QUIET, *served, "num_steps=9", f"output_dir={output}")
    assert done.returncode == 2 and "was lost: the cable is cut" in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("grpo: no vLLM server is left")
    assert [row["step"] for row in rows(output / "metrics.jsonl")] == [1, 2, 3, 4, 5]
    assert [folder.name for folder in (output / "checkpoints").iterdir()] == ["step-00000005"]


def test_when_the_last_server_is_killed_the_last_round_is_saved(tmp_path, served):
    output = tmp_path / "run"
    words = [*SMALL, *QUIET, *served, "num_steps=4000", f"output_dir={output}"]
    process = warm.Process(["-m", "grpo.cli", "train", *words], env=ONE_THREAD, stderr=subprocess.PIPE)
    wait_for_step(output, 3, process)
    other = Replica(served[-1].partition("=[")[2].strip("]"), ONE_THREAD[KEY_VARIABLE], 5.0, run="/another/run")
    with pytest.raises(UserError, match=f"is in use: it serves the run in {output} "):
        asyncio.run(claim(other, {}))
    port = served[-1].rpartition(":")[2].strip("/]")
    for running in psutil.process_iter(["cmdline"]):
        if {"--port", port} <= {*(running.info["cmdline"] or [])} and "grpo.host.tether" not in running.info["cmdline"]:
            running.kill()
    *_, said = process.communicate(timeout=120)[1].strip().splitlines()
    assert process.returncode == 2 and said.startswith("grpo: no vLLM server is left"), said
    last = rows(output / "metrics.jsonl")[-1]["step"]
    assert [folder.name for folder in (output / "checkpoints").iterdir()] == [f"step-{last:08d}"]
