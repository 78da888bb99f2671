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
pytestmark = pytest.mark.slow


@pytest.mark.skipif(
    not PYTHON.exists(),
    reason="make it by: bash launch/verifiers.sh sums_for_verifiers tests/episodes/sums_for_verifiers",
)
def test_a_run_plays_an_environment_of_verifiers(tmp_path):
    tasks = tmp_path / "tasks.jsonl"
    words_of_tasks = ["-m", "grpo.episodes.verifiers_bridge", tasks, "sums_for_verifiers"]
    subprocess.run([PYTHON, *words_of_tasks], check=True, timeout=300)
    words = [f"task.python={PYTHON}", f"task.data.path={tasks}", "model.max_length=128", "num_steps=2"]
    done = grpo("train", *EPISODES, *words, "rollout.sampling.max_tokens=24", f"output_dir={tmp_path}/run", timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    for row in rows(tmp_path / "run" / "metrics.jsonl"):
        assert row["episodes/failed_fraction"] == 0 and row["episodes/turns_mean"] == 1.0
        assert row["reward/mean"] >= 0.5
