"""The loop that is written out for researchers learns what `grpo train` learns."""

import pytest

from benchmarks.loop_by_hand import WORDS
from benchmarks.runs import rows
from tests import warm
from tests.runs import grpo


@pytest.mark.slow
def test_the_loop_by_hand_takes_the_steps_of_a_run(tmp_path):
    done = warm.run(["-m", "benchmarks.loop_by_hand", "3"], warm.TRAIN)
    assert done.returncode == 0, done.stderr[-3000:]
    limits = ["limits.samples=384", "evaluation.num_problems=0", "checkpoint.every_rounds=0", "checkpoint.export=false"]
    trained = grpo("train", *WORDS, *limits, f"output_dir={tmp_path}")
    assert trained.returncode == 0, trained.stderr[-3000:]
    right = [row["pass_rate"] for row in rows(tmp_path / "metrics.jsonl") if "pass_rate" in row]
    lines = [f"step   {step}  right {rate:.0%}" for step, rate in enumerate(right, start=1)]
    assert len(lines) == 3 and 0.1 < min(right) < max(right) < 0.9
    assert done.stdout.splitlines()[-3:] == lines
