"""These tests run launch/setup.sh with stand-ins for nvidia-smi, up to the point where it would install."""

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def setup(folder, drivers, **variables):
    """Runs setup.sh where nvidia-smi prints `drivers`. `installed` names the kind of an environment that exists
    already."""
    smi = folder / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    lines = "\n".join(f"echo {driver}; sleep 0.05" for driver in drivers)
    smi.write_text(f"#!/usr/bin/env bash\n{lines or 'echo NVIDIA-SMI has failed; exit 9'}\n")
    smi.chmod(0o755)
    environment = {"PATH": f"{smi.parent}:{os.environ['PATH']}", "GRPO_VENV": str(folder), "GRPO_PYTHON": "bash"}
    return subprocess.run(
        ["bash", "launch/setup.sh"], cwd=ROOT, env=environment | variables, capture_output=True, text=True
    )


def installed(folder, kind):
    files = [f"launch/requirements-{kind}.txt", "launch/setup.sh", "pyproject.toml"]
    wanted = hashlib.sha256(b"".join((ROOT / file).read_bytes() for file in files))
    (folder / ".installed").write_text(wanted.hexdigest())


@pytest.mark.parametrize(
    ("drivers", "kind", "variables"),
    [
        (["580.65.06"] * 8, "gpu", {}),
        ([], "cpu", {}),
        (["535.54.03"], "cpu", {"GRPO_KIND": "cpu"}),
        ([], "gpu", {"GRPO_KIND": "gpu"}),
    ],
)
def test_builds_for_gpus_are_installed_where_their_driver_can_run_them(drivers, kind, variables, tmp_path):
    installed(tmp_path, kind)
    done = setup(tmp_path, drivers, **variables)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_old_driver_is_reported_before_anything_is_installed(tmp_path):
    done = setup(tmp_path, ["535.54.03", "535.54.03"])
    assert done.returncode == 2 and done.stdout == ""
    assert "driver 535.54.03 is too old for the pinned CUDA 13 wheels, which need 580 or newer" in done.stderr
