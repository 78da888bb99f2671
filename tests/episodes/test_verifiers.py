"""This test trains on an environment of verifiers, in a Python that launch/verifiers.sh has made."""

import os
import subprocess
from pathlib import Path

import pytest

from benchmarks.runs import QUIET, SMALL, rows
from tests.runs import grpo

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("GRPO_VERIFIERS_VENV", ROOT / ".venv-verifiers")) / "bin/python"
EPISODES = [*SMALL, *QUIET, "task=verifiers", "task.episode=verifiers:sums_for_verifiers", "rollout=transformers"]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not PYTHON.exists(),
        reason="run bash launch/verifiers.sh sums_for_verifiers tests/episodes/sums_for_verifiers select.limit=8",
    ),
]


def tasks_of(*words):
    command = [PYTHON, "-m", "grpo.episodes.verifiers_bridge", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_an_environment_whose_tasks_never_end_asks_for_their_number(tmp_path):
    done = tasks_of(tmp_path / "tasks.jsonl", "sums_for_verifiers")
    said = "verifiers: sums_for_verifiers makes tasks without end: add select.limit=2000, or another number of them\n"
    assert (done.returncode, done.stderr, [*tmp_path.iterdir()]) == (2, said, [])


def test_a_run_plays_an_environment_of_verifiers(tmp_path):
    tasks = tmp_path / "tasks.jsonl"
    assert tasks_of(tasks, "sums_for_verifiers", "select.limit=8").returncode == 0
    assert len(tasks.read_text().splitlines()) == 8
    words = [f"task.python={PYTHON}", f"task.data.path={tasks}", "model.max_length=128", "num_steps=2"]
    done = grpo("train", *EPISODES, *words, "rollout.sampling.max_tokens=24", f"output_dir={tmp_path}/run", timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    for row in rows(tmp_path / "run" / "metrics.jsonl"):
        assert row["episodes/failed_fraction"] == 0 and row["episodes/turns_mean"] == 1.0
        assert row["reward/mean"] >= 0.5
