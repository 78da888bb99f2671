"""The code is linted, formatted and, where types carry the meaning, type checked."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CODE = ("grpo", "tests", "benchmarks")


@pytest.mark.parametrize(
    "check", [("ruff", "check", *CODE), ("ruff", "format", "--check", *CODE), ("ty", "check", "--python", sys.prefix)]
)
def test_a_check_has_nothing_to_say(check):
    program = Path(sys.executable).with_name(check[0])
    done = subprocess.run([program, *check[1:]], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
