"""This script asks whether `dynamics=adaptive` decides well, by real runs of the tiny model at every fixed group size.

    python benchmarks/schedule.py FOLDER [SEEDS]                    (1 seed: 9 rows of 7 runs, an hour on one core)

Three tasks are trained at the right learning rate, at four times and at a quarter of it, with every fixed group size
of 2, 4, 8, 16 and 32, with `dynamics=adaptive` from G = 16, and with `dynamics.adaptive.learning_rate=true` from G = 16
or 4, the worse of the two. A run spends 40,000 prompt and completion tokens, of which a prompt counts once for its
group. Prints and writes to FOLDER/schedule.json the mean pass rate over the last quarter of the tokens, and the tokens
until the smoothed pass rate reached the level that the best fixed size reached at two thirds of its tokens. For fixed
sizes it also prints the ledger: the rise of the pass rate from the first eighth of the steps to the last, and the sum
of what steps gained (`step/gain`), in the same unit. Resumable: a run that has spent its tokens is not run again.
"""

import json
import os
import re
import sys
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.runs import grpo, rows

TOKENS = 40_000
SIZES = (2, 4, 8, 16, 32)
RATES = {"right": 1.0, "4 × too high": 4.0, "4 × too low": 0.25}
OPTIONS = "task.data.options={{min: 0, max: {}, num_terms: 3, operators: {}}}"
TASKS = {
    "two terms to 9": (3e-4, []),
    "three terms to 6": (
        3e-4,
        [OPTIONS.format(6, "['+']"), "task.data.size=0", "rollout.sampling.temperature=1.3"],
    ),
    "three terms to 19": (1e-4, [OPTIONS.format(19, "['+', '-']"), "task.data.size=3000"]),
}
COMMON = [
    *("experiment=tiny", "rollout=transformers", "normalization=dr_grpo", "objective=dr_grpo"),
    *("dynamics.prompts_per_step=12", "evaluation.num_problems=0", "checkpoint.export=false"),
    *("checkpoint.every_rounds=0", "dynamics.diagnose_every=0", "tracking.samples_per_round=0", "num_steps=4000"),
]
# The most tokens of a completion of experiment=tiny.
MOST_TOKENS = 6
# Rounds about a point of the smoothed curve are weighed by their tokens, within this many.
WIDTH = 4000


def arms(factor: float) -> dict[str, list[str]]:
    """Returns the overrides of each arm of a row, by the arm's name."""
    start = 4 if factor > 1 else 16
    # The limit counts completions only. A prompt has at least 1.7 times the tokens of a completion here.
    limit = {size: f"limits.tokens={round(TOKENS * size / (size + 1.7))}" for size in SIZES}
    fixed = {f"G = {size}": [f"dynamics.group_size={size}", limit[size]] for size in SIZES}
    own = ["dynamics=adaptive", limit[32]]
    free = [*own, "dynamics.adaptive.learning_rate=true", f"dynamics.group_size={start}"]
    return fixed | {"adaptive": [*own, "dynamics.group_size=16"], "with the rate": free}


def curve(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns the tokens spent until the end of each round, and the pass rate of each round."""
    found = [row for row in rows(folder / "metrics.jsonl") if "pass_rate" in row]
    tokens = [
        row["groups/num_sampled"] * row["prompts/length_mean"]
        + row["completions/num_sampled"] * row["completions/length_mean"]
        for row in found
    ]
    return np.cumsum(tokens), np.array([row["pass_rate"] for row in found])


def smooth(tokens: np.ndarray, rates: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Returns the mean pass rate of the rounds near each number of tokens in `at`, weighed by their tokens."""
    spent = np.diff(tokens, prepend=0.0)
    near = np.abs(at[:, None] - tokens + spent / 2) < WIDTH / 2
    return (near * spent * rates).sum(1) / np.maximum((near * spent).sum(1), 1e-9)


def measured(folder: Path) -> tuple[float, np.ndarray, np.ndarray]:
    """Returns the mean pass rate over the last quarter of the tokens, and the smoothed curve as (tokens, pass rate)."""
    tokens, rates = curve(folder)
    spent = np.diff(tokens, prepend=0.0)
    last = (tokens > 0.75 * TOKENS) & (tokens <= TOKENS)
    at = np.arange(WIDTH / 2, TOKENS - WIDTH / 2 + 1, 500)
    return float((spent[last] * rates[last]).sum() / spent[last].sum()), at, smooth(tokens, rates, at)


def tokens_to(level: float, at: np.ndarray, rates: np.ndarray) -> float | None:
    """Returns the tokens at which a smoothed curve first reaches a level, None where it does not."""
    reached = rates >= level
    return float(at[reached.argmax()]) if reached.any() else None


def ledger(folder: Path) -> tuple[float, float]:
    """Returns the rise of a run's pass rate, and the sum of its steps' gains as a pass rate.

    The loss of Dr. GRPO is −E[reward]·(G − 1)/(G·L), with L the most tokens of a completion.
    """
    found = [row for row in rows(folder / "metrics.jsonl") if "pass_rate" in row]
    rates = [row["pass_rate"] for row in found]
    eighth, size = len(rates) // 8, found[0]["plan/group_size"]
    gains = [row["step/gain"] for row in found if "step/gain" in row]
    return float(np.mean(rates[-eighth:]) - np.mean(rates[:eighth])), MOST_TOKENS * size / (size - 1) * sum(gains)


def row_of(folders: dict[str, list[Path]]) -> dict[str, dict]:
    """Returns end and tokens of each arm of a row, the means of its seeds; None where a seed misses the level."""
    runs = {arm: [measured(folder) for folder in seeds] for arm, seeds in folders.items()}
    ends = {arm: float(np.mean([end for end, _, _ in seeds])) for arm, seeds in runs.items()}
    best = max((arm for arm in runs if arm.startswith("G = ")), key=ends.__getitem__)
    levels = [rates[at <= 2 / 3 * TOKENS][-1] for _, at, rates in runs[best]]
    found = {}
    for arm, seeds in runs.items():
        needed = [tokens_to(level, at, rates) for level, (_, at, rates) in zip(levels, seeds, strict=True)]
        all_reach = all(tokens is not None for tokens in needed)
        found[arm] = {"end": ends[arm], "tokens": float(np.mean(needed)) if all_reach else None}
    return found


def main(folder: Path, seeds: int) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    results: dict[str, dict] = {}
    books = Table("task and rate", *(f"G = {size}" for size in SIZES), title="rise of the pass rate, sum of gains")
    for task, (rate, words) in TASKS.items():
        for name, factor in RATES.items():
            folders: dict[str, list[Path]] = {}
            for arm, further in arms(factor).items():
                for seed in range(seeds):
                    output = folder / re.sub("[^a-zA-Z0-9]+", "-", f"{task} {name} {arm} seed {seed}")
                    folders.setdefault(arm, []).append(output)
                    if output.exists() and curve(output)[0][-1:].sum() >= TOKENS:
                        continue
                    own = [f"learner.learning_rate={rate * factor}", f"seed={seed}", f"output_dir={output}"]
                    done = grpo("train", *COMMON, *words, *further, *own, timeout=3600)
                    if done.returncode:
                        sys.exit(done.stdout[-2000:] + done.stderr[-2000:])
            results[f"{task}, rate {name}"] = row_of(folders)
            sums = [np.mean([ledger(run) for run in folders[f"G = {size}"]], axis=0) for size in SIZES]
            books.add_row(f"{task}, rate {name}", *(f"{rise:+.2f}, {gains:+.2f}" for rise, gains in sums))
            (folder / "schedule.json").write_text(json.dumps(results, indent=1))
    table = Table("task and rate", *arms(1.0), title="pass rate at the end (thousands of tokens to the level)")
    for row, found in results.items():
        tokens = ["–" if arm["tokens"] is None else f"{arm['tokens'] / 1000:.1f}" for arm in found.values()]
        table.add_row(row, *(f"{arm['end']:.3f} ({need})" for arm, need in zip(found.values(), tokens, strict=True)))
    Console(width=200).print(table, books)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    main(target, int(sys.argv[2]) if len(sys.argv) > 2 else 1)
