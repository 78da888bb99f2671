"""This script measures what `grpo dynamics diagnose` takes for a long log of TRL: processor time and memory.

    python benchmarks/long_log.py FOLDER [ROWS]      (100,000 by default)

The log has 20 columns, and is written into FOLDER unless it is there.
"""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np

COLUMNS = {
    "loss": (0.0, 0.01),
    "grad_norm": (0.3, 0.05),
    "learning_rate": (1e-6, 0.0),
    "num_tokens": (5e6, 1e5),
    "completions/mean_length": (400.0, 20.0),
    "completions/min_length": (100.0, 10.0),
    "completions/max_length": (900.0, 30.0),
    "completions/clipped_ratio": (0.05, 0.01),
    "completions/mean_terminated_length": (380.0, 20.0),
    "rewards/accuracy_reward/mean": (0.5, 0.05),
    "rewards/accuracy_reward/std": (0.5, 0.02),
    "reward": (0.5, 0.05),
    "reward_std": (0.4, 0.02),
    "frac_reward_zero_std": (0.2, 0.05),
    "kl": (0.02, 0.002),
    "entropy": (0.6, 0.02),
    "clip_ratio/low_mean": (0.01, 0.002),
    "clip_ratio/high_mean": (0.01, 0.002),
    "epoch": (1.0, 0.0),
}


def write_log(path, rows):
    """Writes TRL's log of a run that learns in its first fifth and stands still afterwards."""
    generator = np.random.default_rng(0)
    values = {name: mean + scatter * generator.standard_normal(rows) for name, (mean, scatter) in COLUMNS.items()}
    learned = 0.2 * np.minimum(np.arange(rows) / (rows / 5), 1) - 0.2
    for name in ("rewards/accuracy_reward/mean", "reward"):
        values[name] = values[name] + learned
    lines = [{"step": row + 1, **{name: float(series[row]) for name, series in values.items()}} for row in range(rows)]
    path.write_text(json.dumps({"log_history": lines, "max_steps": rows}))


def main(folder, rows="100000"):
    path = Path(folder) / "trainer_state.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        write_log(path, int(rows))
    command = [sys.executable, "-m", "grpo.cli", "dynamics", "diagnose", str(path)]
    subprocess.run(command, check=True, env=os.environ, stdout=subprocess.DEVNULL)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds, megabytes = used.ru_utime + used.ru_stime, path.stat().st_size / 2**20
    print(
        f"{int(rows):,} rows, {megabytes:.0f} MiB: {seconds:.1f} s of processor time, "
        f"{used.ru_maxrss / 2**10:.0f} MiB of memory"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
