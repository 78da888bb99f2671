"""launch/slurm.sh runs as Slurm would start it, and start it again, with stand-ins for Slurm and for the ranks."""

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# The launcher itself is real. In place of a learner, its seat prints what the launcher has given it.
LAUNCH = """
import sys
import grpo.commands.launch as command
from grpo.launch.machines import Machine
from grpo.launch.seats import LEARNER, Seat

def stand_in(config, words, machines):
    program = "import os, sys; print(*(w for w in sys.argv if 'resume' in w), os.environ['GRPO_START'])"
    return [Seat(LEARNER, 0, Machine("127.0.0.1", "127.0.0.1"), (sys.executable, "-c", program, *words), 5.0)]

command.seats_of = stand_in
sys.exit(command.run(sys.argv[4:]))
"""


def job(folder, output):
    """Runs the script for job 17, and returns what it printed last."""
    environment = {**os.environ, "GRPO_VENV": str(folder), "SLURM_SUBMIT_DIR": str(ROOT), "SLURM_JOB_ID": "17"}
    words = ["bash", "launch/slurm.sh", "experiment=tiny", f"output_dir='{output}/${{start:}}'"]
    environment |= {"GRPO_KIND": "cpu", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-2:]


@pytest.mark.slow
def test_a_job_that_slurm_starts_again_finds_its_folder_and_its_checkpoint(tmp_path):
    files = ["launch/requirements-cpu.txt", "launch/setup.sh", "pyproject.toml"]
    wanted = hashlib.sha256(b"".join((ROOT / file).read_bytes() for file in files))
    (tmp_path / ".installed").write_text(wanted.hexdigest())
    (tmp_path / "launch.py").write_text(LAUNCH)
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text(f'#!/usr/bin/env bash\nexec {sys.executable} {tmp_path}/launch.py "$@"\n')
    python.chmod(0o755)
    runs = tmp_path / "runs"

    started = [f"{runs}/job-17 will hold what the run writes", "checkpoint.resume=auto job-17"]
    assert job(tmp_path, runs) == started
    (runs / "job-17" / "checkpoints" / "step-00000002").mkdir(parents=True)
    assert job(tmp_path, runs) == started
    assert [path.name for path in runs.iterdir()] == ["job-17"]


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETING"])
@pytest.mark.parametrize(
    ("image", "within"),
    [
        (
            "grpo.sif",
            f"apptainer exec --nv --bind {ROOT}:{ROOT},CACHE:/cache,/hub:/hub --pwd {ROOT} grpo.sif grpo launch ",
        ),
        (
            "my/grpo",
            f"--container-image=my/grpo --container-mounts={ROOT}:{ROOT},CACHE:/cache,/hub:/hub "
            f"--container-workdir={ROOT} grpo launch ",
        ),
    ],
)
def test_an_image_is_started_once_on_each_machine_and_goes_back_into_the_queue_unless_it_was_cancelled(
    image, within, state, tmp_path
):
    for name, program in {
        # Asked to stop itself, srun kills its tasks. They save where scancel sends them the signal.
        "srun": 'echo "$*" $GRPO_START ${#GRPO_SERVER_KEY}; trap "exit 137" TERM; trap "exit 143" USR1; '
        "echo $$ > here; while :; do sleep 0.05; done",
        "scancel": '[[ "$*" == "--signal=TERM 17" ]] && kill -USR1 $(cat here)',
        "squeue": f'[[ "$*" == "-h -j 17 -o %T" ]] && echo {state}',
        "scontrol": 'echo scontrol "$*"',
    }.items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\ncd {tmp_path}\n{program}\n")
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_SUBMIT_DIR": str(ROOT), "SLURM_JOB_ID": "17"}
    cache = environment["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    environment["HF_HOME"] = "/hub"
    words = ["bash", "launch/slurm.sh", "experiment=tiny", "hardware=slurm"]
    with subprocess.Popen(
        words, cwd=ROOT, env=environment | {"GRPO_IMAGE": image}, stdout=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + 30
        while not ((tmp_path / "here").exists() and (tmp_path / "here").read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.terminate()
        started, *requeued = process.stdout.read().splitlines()
    assert process.returncode == 143 and requeued == ["scontrol requeue 17"] * (state == "RUNNING")
    assert started.startswith("--ntasks-per-node=1 --cpu-bind=none ") and within.replace("CACHE", cache) in started
    # The machines agree on the folder, and have one key. The last of several words for a key counts.
    given = "checkpoint.resume=auto checkpoint.grace_seconds=110 experiment=tiny hardware=slurm hardware.shell=each"
    assert started.endswith(f"{given} job-17 48")
