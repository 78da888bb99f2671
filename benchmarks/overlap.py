"""This script measures seconds per round with a vLLM server: `pipeline=off`, `one_round` and `continuous`.

    python benchmarks/overlap.py FOLDER [ROUNDS] [overrides of grpo train]      (12 rounds of the quickstart's task)

The learner and the server have one thread each, so on two cores each has a core. A round that overlaps well takes
little more than the longer of sampling and learning. The first three rounds, slow for other reasons, are left out.
`continuous` is compared with the seconds that sampling takes under `one_round`.
"""

import os
import sys
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.runs import grpo, rows

WARM_UP = 3


def seconds(row, *phases):
    return sum(row.get(f"time/{phase}_seconds", 0.0) for phase in phases)


def main(folder, rounds="12", *overrides):
    os.environ["OMP_NUM_THREADS"] = "1"
    header = ("pipeline", "round, s", "sampling and grading", "learning", "weights", "staleness")
    table = Table(*header, "round ÷ longer of the two")
    sampling = 0.0
    for pipeline in ("off", "one_round", "continuous"):
        output = Path(folder) / pipeline
        settings = ["experiment=quickstart", "rollout=vllm_server", f"pipeline={pipeline}", f"num_steps={rounds}"]
        quiet = ["evaluation.num_problems=0", "checkpoint.every_rounds=0", "checkpoint.export=false"]
        if not (output / "config.json").exists():
            done = grpo("train", *settings, *quiet, *overrides, f"output_dir={output}", timeout=3600)
            assert done.returncode == 0, done.stderr[-2000:]
        measured = rows(output / "metrics.jsonl")[WARM_UP:-1]
        whole = median(seconds(row, "round") for row in measured)
        if pipeline != "continuous":
            sampling = median(seconds(row, "sample", "grade") for row in measured)
        learning = median(seconds(row, "logprobs", "learn") for row in measured)
        weights = median(seconds(row, "sync") for row in measured)
        stale = median(row["staleness/mean"] for row in measured)
        numbers = [f"{value:.1f}" for value in (whole, sampling, learning, weights, stale)]
        table.add_row(pipeline, *numbers, f"{whole / max(sampling, learning):.2f}")
    Console().print(table)


if __name__ == "__main__":
    main(*sys.argv[1:])
