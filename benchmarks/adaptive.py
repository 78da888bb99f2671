"""This script compares `dynamics=adaptive` with fixed settings: how many tokens each needs to reach a held-out pass
rate.

    python benchmarks/adaptive.py FOLDER [tiny|quickstart] [SEEDS] [AT_ONCE]      (8 seeds, 2 runs at once)

All arms of a seed train the same model on the same stream of prompts. Fixed arms share a budget of samples; the
adaptive run begins with the first arm's settings. Resumable: a run that wrote its report is not run again. The held-out
curve over tokens is made monotone (isotonic regression), and the tokens are read off where it reaches the level. A run
that never reaches the level counts with all its tokens, which flatters it. Writes FOLDER/adaptive.json.
"""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.runs import grpo, rows
from grpo.evaluation.pass_rates import geometric_ratio
from grpo.insight.logs.finished_runs import load
from grpo.types import Interval

ADAPTIVE = "adaptive"
SIZES = ("dynamics.adaptive.smallest_group=2", "dynamics.adaptive.largest_group=64")


@dataclass(frozen=True)
class Setup:
    """A setup describes one comparison. `fixed` has (G, τ, optimizer steps) of each fixed arm, and `level` is the
    held-out pass rate that runs must reach."""

    overrides: list[str]
    fixed: list[tuple[int, int, int]]
    adaptive_steps: int
    adaptive: list[str]
    level: float
    evaluations: int


SETUPS = {
    "tiny": Setup(
        ["experiment=tiny", "evaluation.num_problems=180", "evaluation.samples_per_problem=2"],
        [(16, 1, 56), (8, 1, 112), (4, 1, 224), (4, 4, 224)],
        224,
        ["dynamics.adaptive.decide_every=3", "dynamics.adaptive.longest_interval=4", *SIZES],
        0.6,
        8,
    ),
    "quickstart": Setup(
        [
            "experiment=quickstart",
            "learner.schedule=constant",
            "learner.learning_rate=1.5e-5",
            "evaluation.samples_per_problem=4",
        ],
        [(16, 1, 24), (4, 1, 72)],
        72,
        ["dynamics.adaptive.decide_every=3", "dynamics.adaptive.longest_interval=4", *SIZES],
        0.6,
        6,
    ),
}


def arms(setup: Setup) -> dict[str, list[str]]:
    """Returns the overrides of each arm, by the arm's name."""
    group_size, interval, _ = setup.fixed[0]
    count = setup.evaluations
    every = {f"G={size} τ={tau}": (size, tau, steps, count, []) for size, tau, steps in setup.fixed}
    # Its rounds grow longer: evaluated more often, they stay as close.
    every[ADAPTIVE] = (group_size, interval, setup.adaptive_steps, 2 * count, ["dynamics=adaptive", *setup.adaptive])
    return {
        name: [
            *setup.overrides,
            *further,
            f"dynamics.group_size={size}",
            f"dynamics.refresh_interval={tau}",
            f"num_steps={steps}",
            f"evaluation.every_rounds={max(1, steps // tau // evaluations)}",
            "evaluation.pass_at=[1]",
            "checkpoint.every_rounds=0",
            "checkpoint.export=false",
        ]
        for name, (size, tau, steps, evaluations, further) in every.items()
    }


def folder_name(arm: str) -> str:
    """Returns an arm's name without characters that have a meaning in Hydra's grammar: "G=16 τ=4" becomes G16-tau4."""
    return arm.replace("=", "").replace("τ", "tau").replace(" ", "-")


def train(output: Path, overrides: list[str], seed: int) -> None:
    if (output / "report.html").exists():
        return
    done = grpo("train", *overrides, f"seed={seed}", f"output_dir={output}", timeout=3600)
    assert done.returncode == 0, f"{output}: {done.stderr[-2000:]}"
    print(f"{output.name}: {rows(output / 'evaluations.jsonl')[-1]['pass@1']['value']:.3f}", flush=True)


def shown(ratio: Interval) -> str:
    return f"{ratio.value:.2f}" if ratio.low == ratio.high else f"{ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"


def main(folder: str, experiment: str = "tiny", seeds: str = "8", at_once: str = "2") -> None:
    setup, root = SETUPS[experiment], Path(folder)
    names = arms(setup)
    os.environ["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // int(at_once)))
    jobs = [(root / f"{folder_name(name)}-{seed}", name, seed) for seed in range(int(seeds)) for name in names]
    with ThreadPoolExecutor(int(at_once)) as pool:
        list(pool.map(lambda job: train(job[0], names[job[1]], job[2]), jobs))

    runs_of = {name: [load(output, name) for output, arm, _ in jobs if arm == name] for name in names}
    cost = {name: [run.cost(setup.level, "tokens") for run in runs_of[name]] for name in names}
    time = {name: [run.cost(setup.level, "seconds") for run in runs_of[name]] for name in names}
    base = next(iter(names))
    table = Table("setting", "reached", "tokens", f"of {base}'s", f"seconds, of {base}'s", "last pass@1")
    for name in names:
        spent = [value for value, _ in cost[name]]
        table.add_row(
            name,
            f"{sum(arrived for _, arrived in cost[name])} of {len(spent)}",
            f"{np.exp(np.mean(np.log(spent))):,.0f}",
            shown(geometric_ratio(spent, [value for value, _ in cost[base]])),
            shown(geometric_ratio([value for value, _ in time[name]], [value for value, _ in time[base]])),
            f"{np.mean([run.held_out[-1] for run in runs_of[name]]):.3f}",
        )
    Console().print(f"{experiment}, until held-out pass@1 {setup.level}, {seeds} seeds, {at_once} at once")
    Console().print(table)
    result = {name: {"tokens": cost[name], "seconds": time[name]} for name in names}
    (root / "adaptive.json").write_text(json.dumps({"level": setup.level, "arms": result}, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
