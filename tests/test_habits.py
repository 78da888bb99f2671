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


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="a copy without its history")
def test_the_top_level_holds_what_belongs_there_and_nothing_that_a_program_has_left():
    kept = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {name.partition("/")[0] for name in kept.splitlines()} <= {
        *(".ci", ".github", ".gitignore", "LICENSE", "README.md", "pyproject.toml"),
        *("grpo", "configs", "launch", "tests", "benchmarks"),
    }
