"""The scripts for a GPU without network are whole, and their steps end within the time that a call has."""

import re
import subprocess
import time
from pathlib import Path

import psutil
import pytest

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks" / "airgapped"
SCRIPTS = sorted(FOLDER.glob("*.sh"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_script_can_be_read_and_its_limits_end_within_a_call(script):
    assert subprocess.run(["bash", "-n", script]).returncode == 0
    limits = re.findall(r"^(?:step \S+|prove|colocated \S+) (\d+)\b", script.read_text(), re.MULTILINE)
    assert sum(map(int, limits)) <= 480
    assert f"airgapped/{script.name}" in (FOLDER / "README.md").read_text() or script.name == "steps.sh"


def test_a_step_that_fails_is_reported_and_does_not_stop_the_next(tmp_path):
    lines = ["source benchmarks/airgapped/steps.sh", "step first 9 false", "step second 9 echo fine", "exit $failed"]
    environment = {"OUT": str(tmp_path / "out"), "SITE": str(tmp_path / "site"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        ["bash", "-c", "\n".join(lines)], cwd=FOLDER.parent.parent, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 1 and "first: exit code 1" in done.stdout and "second: exit code 0" in done.stdout
    assert (tmp_path / "out" / "second.log").read_text() == "fine\n"


def test_steps_are_given_shares_of_the_time_that_a_call_has(tmp_path):
    (tmp_path / "timeout").write_text('#!/bin/sh\necho "$3"\n')
    (tmp_path / "timeout").chmod(0o755)
    lines = ["source benchmarks/airgapped/steps.sh", "step half 240 true"]
    environment = {"OUT": str(tmp_path / "out"), "SITE": str(tmp_path / "site"), "PATH": f"{tmp_path}:/usr/bin:/bin"}
    for given, seconds in (({}, "240\n"), ({"CALL_SECONDS": "1200"}, "600\n"), ({"CALL_SECONDS": "120"}, "60\n")):
        command = ["bash", "-c", "\n".join(lines)]
        subprocess.run(command, cwd=FOLDER.parent.parent, env=environment | given, check=True, capture_output=True)
        assert (tmp_path / "out" / "half.log").read_text() == seconds


def test_a_step_gets_what_earlier_steps_left_but_no_more_than_the_call(tmp_path):
    (tmp_path / "timeout").write_text('#!/bin/sh\necho "$3"\n')
    (tmp_path / "timeout").chmod(0o755)
    lines = ["source benchmarks/airgapped/steps.sh", "SECONDS=400", "step late 100 true"]
    lines += ["planned=450 SECONDS=440", "step early 30 true", "SECONDS=999", "step over 9 true"]
    environment = {"OUT": str(tmp_path / "out"), "SITE": str(tmp_path / "site"), "PATH": f"{tmp_path}:/usr/bin:/bin"}
    command = ["bash", "-c", "\n".join(lines)]
    subprocess.run(command, cwd=FOLDER.parent.parent, env=environment, check=True, capture_output=True)
    limits = [(tmp_path / "out" / f"{name}.log").read_text() for name in ("late", "early", "over")]
    assert limits == ["80\n", "40\n", "1\n"]


def test_a_step_whose_time_is_over_leaves_nothing_that_runs(tmp_path):
    """A run finishes its round and saves when it is asked to stop, and holds a GPU's memory meanwhile."""
    (tmp_path / "saving").write_text(f"(trap '' TERM; echo $BASHPID >{tmp_path}/pid; sleep 60) & wait")
    lines = ["source benchmarks/airgapped/steps.sh", f"step late 1 bash {tmp_path}/saving"]
    environment = {"OUT": str(tmp_path / "out"), "SITE": str(tmp_path / "site"), "PATH": "/usr/bin:/bin"}
    command = ["bash", "-c", "\n".join(lines)]
    done = subprocess.run(command, cwd=FOLDER.parent.parent, env=environment, capture_output=True, text=True)
    assert "late: exit code 124" in done.stdout
    process = int((tmp_path / "pid").read_text())
    # A killed process takes a moment to end. This one would sleep for a minute.
    deadline = time.monotonic() + 20
    while runs(process) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not runs(process)


def runs(process):
    return psutil.pid_exists(process) and psutil.Process(process).status() != psutil.STATUS_ZOMBIE


def test_packed_versions_are_those_that_the_project_pins():
    """All pins agree except vLLM's, whose version differs for a GPU without network: see the folder's README."""
    pinned = dict(
        line.split("==")
        for line in (FOLDER.parent.parent / "launch" / "requirements-gpu.txt").read_text().splitlines()
        if line[:1].isalpha()
    )
    packed = dict(line.split("==") for line in (FOLDER / "small.txt").read_text().splitlines() if line[:1].isalpha())
    own = (
        "deepspeed",
        "hydra-core",
        "omegaconf",
        "datasets",
        "math-verify",
        "pebble",
        "peft",
        "antlr4-python3-runtime",
    )
    assert {name: packed[name] for name in own} == {name: pinned[name] for name in own}


def test_parts_are_put_together_in_their_order(tmp_path):
    archive = subprocess.run(["tar", "-cJ", "-C", FOLDER, "steps.sh"], capture_output=True, check=True).stdout
    for number, folder in ((0, "z.y"), (1, "a")):
        (tmp_path / folder).mkdir()
        half = archive[: len(archive) // 2] if number == 0 else archive[len(archive) // 2 :]
        (tmp_path / folder / f"site.tar.xz.part0{number}").write_bytes(half)
    lines = ["source benchmarks/airgapped/steps.sh", f"unpack {tmp_path}/a {tmp_path}/z.y"]
    environment = {"OUT": str(tmp_path / "out"), "SITE": str(tmp_path / "site"), "PATH": "/usr/bin:/bin"}
    subprocess.run(["bash", "-c", "\n".join(lines)], cwd=FOLDER.parent.parent, env=environment, check=True)
    assert (tmp_path / "site" / "steps.sh").read_text() == (FOLDER / "steps.sh").read_text()
