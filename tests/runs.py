"""Whole runs of `grpo`: in a process whose imports are done (see warm.py), or as a person starts them."""

import json
import subprocess
import sys
import time
from pathlib import Path

from tests import warm

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


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "grpo.cli", *arguments]


def as_a_person(*arguments: str, timeout: float = 300) -> subprocess.CompletedProcess:
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=timeout)


def grpo(*arguments: str, timeout: float = 300) -> subprocess.CompletedProcess:
    return warm.run(["-m", "grpo.cli", *arguments], timeout=timeout)


def start(*arguments: str) -> warm.Process:
    return warm.Process(["-m", "grpo.cli", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def rows(path: Path) -> list[dict]:
    """The whole lines of a JSON lines file; a last line that is being written is left out."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def wait_for_step(output: Path, step: int, process: warm.Process | subprocess.Popen, seconds: float = 240) -> None:
    """Returns when `metrics.jsonl` has reached `step`."""
    deadline = time.monotonic() + seconds
    while not any(row["step"] >= step for row in rows(output / "metrics.jsonl")):
        assert process.poll() is None, process.stdout.read()[-3000:]
        assert time.monotonic() < deadline, f"step {step} was not reached"
        time.sleep(0.05)


def stream(output: Path) -> list[tuple[int, list[str]]]:
    """Round and prompt ids, as recorded."""
    return [(row["round"], row["prompt_ids"]) for row in rows(output / "prompts.jsonl")]


def facts(output: Path) -> list[dict]:
    """What two equal runs must agree on, step by step."""
    names = ("step", "learner/gradient_norm", "reward/mean", "policy/entropy", "completions/length_mean")
    return [{name: row.get(name) for name in names} for row in rows(output / "metrics.jsonl")]
