"""This script asks whether `dynamics=adaptive` decides well, by real runs of small models at every fixed group size.

    python benchmarks/schedule.py FOLDER [SEEDS] [TASK]   (1 seed: 42 rows of 12 tiny runs; 9 take two hours, one core)
    python benchmarks/schedule.py FOLDER SEEDS show       (the tables of the runs so far)

Eight tasks of the tiny model, three of them also with 3 and 48 prompts a step in place of 12, and two of SmolLM2-135M
(`schedule_runs.py`), or those whose names begin with TASK, are trained at the right learning rate, at four times and at
a quarter of it: with every fixed group size of 2 to 32, with a cosine decay of the rate at G = 8, with
`dynamics=adaptive` that chooses G from 2 to 64, from G = 16, with `dynamics.adaptive.learning_rate=true` from G = 16 or
4, the worse of the two, and with the same and the default bounds, which hold G at 8 and bring it there from 4, 16 and
32. A run spends a number of prompt and completion tokens, of which a prompt counts once for its group. Prints the mean
pass rate over the last quarter of the tokens, and the tokens until the smoothed pass rate reached what G = 8 reached at
two thirds of its tokens, as means of the seeds that are done. For fixed sizes it also prints the ledger: the rise of
the pass rate from the first eighth of the steps to the last, and the sum of what steps gained (`step/gain`), in the
same unit. Then it compares the arms over the rows and seeds that are done. Resumable: a run that has spent its tokens
is not run again.
"""

import os
import re
import shutil
import sys
from collections.abc import Sequence
from importlib import import_module
from itertools import product
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.runs import rows
from benchmarks.schedule_runs import LOADED, TASKS, curve, has_spent, train

SIZES = (2, 4, 8, 16, 32)
RATES = {"right": 1.0, "4 × too high": 4.0, "4 × too low": 0.25}
# Arms are run in this order, each on all tasks and rates, so that a part of the runs makes a table of some arms.
# The first five are compared.
ARMS = ("G = 8", "adaptive", "with the rate", "G = 4", "G = 16", "the rate, G = 8", "cosine", "G = 2", "G = 32")
ARMS += ("the rate, G = 8 from 4", "the rate, G = 8 from 16", "the rate, G = 8 from 32")
ALL = tuple(f"G = {size}" for size in SIZES)
COMPARED, SCHEDULES = ("G = 4", "G = 8", "G = 16"), ("adaptive", "with the rate", "the rate, G = 8")
Ends = dict[str, dict[str, dict[int, float]]]
"""Pass rates at the ends of runs, by row of the table, arm and seed."""
# Rounds about a point of the smoothed curve are weighed by their tokens, within this many.
WIDTH = 4000


def words_of(arm: str, factor: float, steps: int) -> list[str]:
    """Returns the overrides of an arm. `steps` is the number of steps that G = 8 took."""
    if arm == "cosine":
        return ["dynamics.group_size=8", "learner.schedule=cosine", f"num_steps={steps + 1}"]
    if arm.startswith("G = "):
        return [f"dynamics.group_size={arm[4:]}", "num_steps=4000"]
    own = ["dynamics=adaptive", "num_steps=4000"]
    if arm.startswith("the rate, G = 8"):
        return [*own, "dynamics.adaptive.learning_rate=true", f"dynamics.group_size={arm.split()[-1]}"]
    own += ["dynamics.adaptive.smallest_group=2", "dynamics.adaptive.largest_group=64"]
    if arm == "adaptive":
        return [*own, "dynamics.group_size=16"]
    return [*own, "dynamics.adaptive.learning_rate=true", f"dynamics.group_size={4 if factor > 1 else 16}"]


def folder_of(root: Path, task: str, rate: str, arm: str, seed: int) -> Path:
    return root / re.sub("[^a-zA-Z0-9]+", "-", f"{task} {rate} {arm} seed {seed}")


def smooth(tokens: np.ndarray, rates: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Returns the mean pass rate of the rounds near each number of tokens in `at`, weighed by their tokens."""
    spent = np.diff(tokens, prepend=0.0)
    near = np.abs(at[:, None] - tokens + spent / 2) < WIDTH / 2
    return (near * spent * rates).sum(1) / np.maximum((near * spent).sum(1), 1e-9)


def measured(folder: Path, budget: int) -> tuple[float, np.ndarray, np.ndarray]:
    """Returns the mean pass rate over the last quarter of the tokens, and the smoothed curve as (tokens, pass rate)."""
    tokens, rates = curve(folder)
    spent = np.diff(tokens, prepend=0.0)
    last = (tokens > 0.75 * budget) & (tokens <= budget)
    at = np.arange(WIDTH / 2, budget - WIDTH / 2 + 1, 500)
    return float((spent[last] * rates[last]).sum() / spent[last].sum()), at, smooth(tokens, rates, at)


def tokens_to(level: float, at: np.ndarray, rates: np.ndarray) -> float | None:
    """Returns the tokens at which a smoothed curve first reaches a level, None where it does not."""
    reached = rates >= level
    return float(at[reached.argmax()]) if reached.any() else None


def ledger(folder: Path, most_tokens: int) -> tuple[float, float]:
    """Returns the rise of a run's pass rate, and the sum of its steps' gains as a pass rate.

    The loss of Dr. GRPO is −E[reward]·(G − 1)/(G·L), with L the most tokens of a completion.
    """
    found = [row for row in rows(folder / "metrics.jsonl") if "pass_rate" in row]
    rates = [row["pass_rate"] for row in found]
    eighth, size = len(rates) // 8, found[0]["plan/group_size"]
    gains = [row["step/gain"] for row in found if "step/gain" in row]
    return float(np.mean(rates[-eighth:]) - np.mean(rates[:eighth])), most_tokens * size / (size - 1) * sum(gains)


def is_done(folder: Path, budget: int) -> bool:
    return (folder / "metrics.jsonl").exists() and has_spent(budget, folder)


def run(root: Path, task: str, rate: str, arm: str, seed: int) -> None:
    """Trains one run, anew if a part of it is there."""
    folder, factor = folder_of(root, task, rate, arm, seed), RATES[rate]
    shutil.rmtree(folder, ignore_errors=True)
    steps = int((curve(folder_of(root, task, rate, "G = 8", seed))[0] <= TASKS[task].tokens).sum())
    own = [f"learner.learning_rate={TASKS[task].rate * factor:.6g}", f"seed={seed}"]
    train(TASKS[task], [*words_of(arm, factor, steps), *own], folder)


def shown(root: Path, seeds: int) -> None:
    """Prints the tables of all runs that are done."""
    table = Table("task and rate", "start", *ARMS, title="pass rate at the end (thousands of tokens to the level)")
    books = Table("task and rate", *(f"G = {size}" for size in SIZES), title="rise of the pass rate, sum of gains")
    ends: Ends = {}
    for task, rate in product(TASKS, RATES):
        budget, row, cells = TASKS[task].tokens, f"{task}, {rate}", []
        folders = {(arm, seed): folder_of(root, task, rate, arm, seed) for arm in ARMS for seed in range(seeds)}
        runs = {each: measured(folder, budget) for each, folder in folders.items() if is_done(folder, budget)}
        done = {arm: [seed for of_arm, seed in runs if of_arm == arm] for arm in ARMS}
        levels = {
            seed: rates[at <= 2 / 3 * budget][-1] for (arm, seed), (_, at, rates) in runs.items() if arm == ARMS[0]
        }
        for arm in ARMS:
            of_arm = {seed: runs[arm, seed][0] for seed in done[arm]}
            ends.setdefault(row, {})[arm] = of_arm
            needed = [tokens_to(levels[seed], *runs[arm, seed][1:]) for seed in of_arm]
            tokens = "–" if None in needed or not needed else f"{np.mean(needed) / 1000:.1f}"
            cells.append(f"{np.mean([*of_arm.values()]):.3f} ({tokens})" if of_arm else "")
        starts = [runs[ARMS[0], seed][2][0] for seed in done[ARMS[0]]]
        table.add_row(row, f"{np.mean(starts):.2f}" if starts else "", *cells)
        sums = [
            [ledger(folders[f"G = {size}", seed], TASKS[task].most_tokens) for seed in done[f"G = {size}"]]
            for size in SIZES
        ]
        books.add_row(
            row, *(f"{np.mean(pairs, 0)[0]:+.2f}, {np.mean(pairs, 0)[1]:+.2f}" if pairs else "" for pairs in sums)
        )
    Console(width=200).print(table, books, compared(ends, COMPARED), compared(ends, ALL), from_afar(ends))


def compared(ends: Ends, sizes: Sequence[str]) -> Table:
    """Returns how many times as high a pass rate the best of `sizes` ends at as each arm, over the rows and seeds in
    which `COMPARED` and the schedules are done. A row's pass rate is the mean of its seeds. A size counts in the rows
    in which it is done with all these seeds."""
    arms, regrets = (*COMPARED, *SCHEDULES), []
    for row in ends.values():
        if seeds := set.intersection(*(set(row[arm]) for arm in arms)):
            means = {arm: np.mean([row[arm][seed] for seed in seeds]) for arm in ARMS if seeds <= set(row[arm])}
            best = max(means[size] for size in sizes if size in means)
            regrets.append([best / means[arm] for arm in arms])
    table = Table(
        "arm",
        "median",
        "worst",
        "rows above 1.1",
        title=f"best of {', '.join(sizes)} over each arm, {len(regrets)} rows",
    )
    for arm, of_arm in zip(arms, np.transpose(regrets), strict=False):
        table.add_row(arm, f"{np.median(of_arm):.2f}", f"{of_arm.max():.2f}", str(int((of_arm > 1.1).sum())))
    return table


def from_afar(ends: Ends) -> Table:
    """Returns how many times as high the best cell of a task, of any fixed size and rate, ends as the schedule that may
    change the rate does from each rate."""
    table = Table("task", *RATES, title="best cell of the task over the schedule with the rate")
    for task in TASKS:
        rows_of_task = [ends[f"{task}, {rate}"] for rate in RATES]
        fixed = [[*row[arm].values()] for row in rows_of_task for arm in (*ALL, "cosine") if row[arm]]
        changed = [[*row["with the rate"].values()] for row in rows_of_task]
        if fixed and all(changed):
            best = max(map(np.mean, fixed))
            table.add_row(task, *(f"{best / np.mean(of_rate):.2f}" for of_rate in changed))
    return table


def main(root: Path, seeds: int, beginning: str) -> None:
    tasks = [task for task in TASKS if task.startswith(beginning)]
    # The arms that are compared come first, with all seeds.
    order = [each for arms in (ARMS[:5], ARMS[5:]) for each in product(range(seeds), arms, tasks, RATES)]
    for seed, arm, task, rate in order:
        folder, budget = folder_of(root, task, rate, arm, seed), TASKS[task].tokens
        if not is_done(folder, budget):
            run(root, task, rate, arm, seed)
            print(task, rate, arm, seed, f"{measured(folder, budget)[0]:.3f}", flush=True)
    shown(root, seeds)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    number = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    if sys.argv[3:] == ["show"]:
        shown(target, number)
    else:
        for module in LOADED:
            import_module(module)
        main(target, number, "".join(sys.argv[3:]))
