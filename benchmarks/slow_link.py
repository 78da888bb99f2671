"""This script asks whether the refresh interval grows where refreshes are dear, and only where samples keep.

    python benchmarks/slow_link.py FOLDER [SECONDS] [STEPS]      (2 seconds a refresh, 100 steps)

Every refresh of the tiny model takes SECONDS longer, as over a slow link. At two learning rates, of which the second is
so high that samples do not keep, it trains at τ = 1, and with `dynamics=adaptive` that counts seconds and may change
only τ. Prints the τ of each eighth of the rounds, the least effective share of samples (ESS), the pass rate over the
last quarter of the steps, and the seconds of a step: at τ = 1, at the last τ as the rounds at τ = 1 promise, and as
measured. Resumable.
"""

import os
import re
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.runs import rows
from benchmarks.schedule_runs import LOADED, run

RATES = {"3e-4": "samples keep", "2e-3": "samples do not keep"}
ARMS = {
    "τ = 1": [],
    "adaptive": [
        *("dynamics=adaptive", "dynamics.adaptive.cost=seconds"),
    ],
}


def slowed(refresh: Callable, seconds: float) -> Callable:
    def slow(*arguments: object) -> object:
        time.sleep(seconds)
        return refresh(*arguments)

    return slow


def has_taken(steps: int, folder: Path) -> bool:
    return rows(folder / "metrics.jsonl")[-1]["step"] >= steps


def measured(folder: Path, steps: int) -> list[str]:
    """Returns the cells of a run's row."""
    found = [row for row in rows(folder / "metrics.jsonl") if "pass_rate" in row and row["step"] <= steps]
    taus = np.array([row["plan/refresh_interval"] for row in found])
    seconds = np.array([row["time/round_seconds"] for row in found])
    syncs = np.array([row["time/sync_seconds"] for row in found])
    once, last = taus == 1, taus == taus[-1]
    sync, step = np.median(syncs[once]), np.median((seconds - syncs)[once])
    end = [row["pass_rate"] for row in found if row["step"] > 0.75 * found[-1]["step"]]
    eighths = " ".join(f"{np.median(part):.0f}" for part in np.array_split(taus, 8))
    ess = min(row.get("policy/ess_fraction", 1.0) for row in found)
    promised, true = step + sync / taus[-1], np.median(seconds[last] / taus[last])
    return [eighths, f"{ess:.2f}", f"{np.mean(end):.3f}", f"{step + sync:.2f}", f"{promised:.2f}", f"{true:.2f}"]


def main(root: Path, seconds: float = 2.0, steps: int = 100) -> None:
    from grpo.weight_sync.refresh import CheckedSync

    CheckedSync.refresh = slowed(CheckedSync.refresh, seconds)
    columns = ("τ by eighths", "least ESS", "pass rate", "s a step at τ = 1", "promised at the last τ", "measured")
    table = Table("rate", "arm", *columns, title=f"{seconds:g} s more a refresh, {steps} steps")
    for rate, kind in RATES.items():
        for arm, words in ARMS.items():
            folder = root / re.sub("[^a-z0-9]+", "-", f"{rate} {arm}")
            if not (folder / "metrics.jsonl").exists():
                run([f"learner.learning_rate={rate}", "num_steps=4000", *words], folder, partial(has_taken, steps))
            table.add_row(f"{rate}, {kind}", arm, *measured(folder, steps))
    Console(width=160).print(table)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for module in LOADED:
        import_module(module)
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    main(target, *map(float, sys.argv[2:3]), *map(int, sys.argv[3:4]))
