"""This module starts whole runs of `grpo`, as a user does, and reads the files that they leave, for tests and
benchmarks."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

SMALL = [
    "experiment=tiny",
    "dynamics.prompts_per_step=4",
    "dynamics.group_size=4",
    "evaluation.num_problems=8",
    "evaluation.samples_per_problem=1",
    "evaluation.pass_at=[1]",
    "checkpoint.every_rounds=3",
    "checkpoint.export=false",
]
QUIET = ["evaluation.num_problems=0", "checkpoint.every_rounds=0"]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "grpo.cli", *arguments]


def grpo(*arguments: str, timeout: float = 300) -> subprocess.CompletedProcess:
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=timeout)


def start(*arguments: str) -> subprocess.Popen:
    return subprocess.Popen(command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def rows(path: Path) -> list[dict]:
    """Returns the whole lines of a JSON lines file; a last line that is being written is left out."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def wait_for_step(output: Path, step: int, process: subprocess.Popen, seconds: float = 240) -> None:
    """Waits until `metrics.jsonl` has reached `step`."""
    deadline = time.monotonic() + seconds
    while not any(row["step"] >= step for row in rows(output / "metrics.jsonl")):
        assert process.poll() is None, process.stdout.read()[-3000:]
        assert time.monotonic() < deadline, f"step {step} was not reached"
        time.sleep(0.05)


def stream(output: Path) -> list[tuple[int, list[str]]]:
    """Returns (round, prompt ids) of each recorded round."""
    return [(row["round"], row["prompt_ids"]) for row in rows(output / "prompts.jsonl")]


def facts(output: Path) -> list[dict]:
    """Returns, for each step, the metrics on which two equal runs must agree."""
    names = ("step", "learner/gradient_norm", "reward/mean", "policy/entropy", "completions/length_mean")
    return [{name: row.get(name) for name in names} for row in rows(output / "metrics.jsonl")]


def free_ports(count: int) -> int:
    """Returns the first of `count` free ports in a row, below the ports of outgoing connections.

    Processes with neighbouring process ids begin their search 200 ports apart, because a server that was promised a
    port listens there only later.
    """
    for first in range(20_000 + os.getpid() % 50 * 200, 32_000, count):
        try:
            for port in range(first, first + count):
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return first
    raise AssertionError("no free ports")
