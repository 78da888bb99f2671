"""This script compares the share of silent groups in trained runs with p^G + (1−p)^G, by difficulty.

    python benchmarks/silence.py RATES.jsonl RUN...

RATES.jsonl is the file that `grpo solve-rates` wrote and that the runs were trained on (`task.data.path`). A problem's
pass rate has the posterior under a Beta prior, fitted to all problems by moments; the law is averaged over it. The
policy changes in training, so agreement can be expected only where the policy has changed little.
"""

import json
import sys
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy import stats

from grpo.tasks.sources import read_rows
from grpo.telemetry.json_lines import read_metrics

# Correct completions before training, of all that were drawn: from, to.
BINS = ((0, 0), (1, 1), (2, 3), (4, 10**9))


def main(rates: str, *runs: str) -> None:
    path = Path(rates)
    known = [
        (row["solve_rate_correct"], row["solve_rate_samples"]) for row in read_rows(path, "the file of solve rates")
    ]
    correct, tried = np.array(known, float).T
    mean, spread = (correct / tried).mean(), (correct / tried).var()
    strength = mean * (1 - mean) / max(spread - mean * (1 - mean) / tried.mean(), 1e-6) - 1
    print(f"{len(known)} problems, mean pass rate {mean:.3f}, {np.mean(correct == 0):.0%} never solved")
    table = Table("run", *(f"{low} or more" if high > tried.max() else f"{low} to {high}" for low, high in BINS))
    for run in runs:
        groups = [
            (*known[int(name.rpartition("@")[0].removeprefix(f"{path.stem}-"))], *count)
            for row in read_metrics(Path(run) / "prompts.jsonl")
            for name, count in zip(row["prompt_ids"], row["correct"], strict=True)
        ]
        cells = []
        for low, high in BINS:
            inside = [group for group in groups if low <= group[0] <= high]
            silent = np.mean([right in (0, size) for _, _, right, size in inside])
            law = np.mean(
                [
                    stats.betabinom(size, before + strength * mean, drawn - before + strength * (1 - mean))
                    .pmf([0, size])
                    .sum()
                    for before, drawn, _, size in inside
                ]
            )
            error = np.sqrt(silent * (1 - silent) / len(inside))
            cells.append(f"{silent:.2f} ± {error:.2f}, law {law:.2f} ({len(inside)})")
        variant = json.loads((Path(run) / "config.json").read_text())["normalization"]["exponent"]
        table.add_row(f"{Path(run).name} (α = {variant:g})", *cells)
    Console(width=150).print(table)


if __name__ == "__main__":
    main(*sys.argv[1:])
