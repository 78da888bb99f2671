"""This script makes tiny runs for `forecasts.py runs=FOLDER`: twelve settings with several seeds each.

python benchmarks/own_runs.py FOLDER [SEEDS] [AT_ONCE]      (5 and 2; about a minute a run)

Resumable: a run that has ended is kept and not made again.
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console

DONE = "finished"
COMMON = (
    *("experiment=tiny", "num_steps=100", "evaluation.every_rounds=10", "evaluation.num_problems=90"),
    *("evaluation.samples_per_problem=2", "evaluation.pass_at=[1]", "checkpoint.every_rounds=0"),
    *("checkpoint.export=false", "dynamics.diagnose_every=0"),
)
SETTINGS = {
    "slow": ("learner.learning_rate=1e-4",),
    "usual": ("learner.learning_rate=3e-4",),
    "fast-small": ("learner.learning_rate=6e-4", "dynamics.group_size=4"),
    "off-policy": ("learner.learning_rate=6e-4", "dynamics.refresh_interval=2", "evaluation.every_rounds=5"),
    "unstable": ("learner.learning_rate=3e-3", "learner.warmup_steps=0"),
    "overdriven": ("learner.learning_rate=1.5e-3", "dynamics.refresh_interval=4", "evaluation.every_rounds=3"),
    "harder": ("task.data.options.max=99",),
    "easier": ("task.data.options.max=9",),
    "few-prompts": ("dynamics.prompts_per_step=4", "dynamics.group_size=4"),
    "dr-grpo": ("normalization=dr_grpo", "objective=dr_grpo"),
    "refilled": ("normalization=dapo", "learner.learning_rate=6e-4"),
    "sequences": ("objective=gspo", "dynamics.group_size=16", "dynamics.prompts_per_step=8"),
}


def train(folder, name, seed):
    """Makes one run. Returns a line on how it ended."""
    output = Path(folder, f"{name}-{seed}")
    if (output / DONE).exists():
        return f"{output.name}: kept"
    command = [sys.executable, "-m", "grpo.cli", "train", *COMMON, *SETTINGS[name], f"seed={seed}"]
    done = subprocess.run(
        [*command, f"output_dir={output}"], capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    if done.returncode:
        return f"{output.name} failed: {(done.stderr.strip().splitlines() or ['?'])[-1]}"
    (output / DONE).touch()
    return f"{output.name}: done"


def main(folder, seeds=5, at_once=2):
    jobs = [(folder, name, seed) for seed in range(int(seeds)) for name in SETTINGS]
    with ThreadPoolExecutor(int(at_once)) as pool:
        for line in pool.map(lambda job: train(*job), jobs):
            Console().print(line)


if __name__ == "__main__":
    main(*sys.argv[1:])
