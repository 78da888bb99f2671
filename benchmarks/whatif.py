"""This script measures how well `grpo dynamics whatif` predicts other runs of the tiny model, which are then made.

    python benchmarks/whatif.py FOLDER [SEEDS] [sums|differences]      (5 and sums by default; half a minute a run)
    python benchmarks/whatif.py CELLS/FIRST[,OTHER,…] SEEDS made      (of a sweep's cells, CELLS/FIRST-seed0 …)

Every arm is run with every seed; a run that ended is not made again. An arm's speed is the factor on the steps with
which its curve coincides with the first arm's. From each single run of the first arm, every arm is predicted at the
tokens and at the steps that the arm itself took, and compared with the arm's runs. An arm is decided if the 95 %
interval of its difference from the first arm, over seeds and at what both have spent, leaves out 0. A prediction is
then right if it calls the observed side the more probable one.
"""

import shutil
import sys
from itertools import product
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy import stats

from benchmarks.runs import grpo
from grpo.config.saved import from_dict
from grpo.dynamics.scheduler import batch_setting
from grpo.dynamics.step import PROMPT_NOISE, progress_of_step
from grpo.insight.logs.logs import read_log, run_config
from grpo.insight.plans.whatif import drawn_curves, predict, stages_of

FIRST = "base"
# Name → what differs from the first arm: G = 8, 16 prompts a step, τ = 1, GRPO.
ARMS = {
    FIRST: [],
    "g4": ["dynamics.group_size=4"],
    "g16": ["dynamics.group_size=16"],
    "p8g4": ["dynamics.group_size=4", "dynamics.prompts_per_step=8"],
    "p32g4": ["dynamics.group_size=4", "dynamics.prompts_per_step=32"],
    "p4g16": ["dynamics.group_size=16", "dynamics.prompts_per_step=4"],
    "p32g8": ["dynamics.prompts_per_step=32"],
    "tau4": ["dynamics.refresh_interval=4"],
    "tau8": ["dynamics.refresh_interval=8"],
    "dr": ["normalization=dr_grpo"],
    "dial2": ["normalization=dial", "normalization.exponent=2"],
    "dapo": ["normalization=dapo"],
}
STEPS = 120
# Task → its own words, and the arms that are made of it.
TASKS = {
    "sums": ([], tuple(arm for arm in ARMS if arm != "p8g4")),
    "differences": (
        ["task.data.options.operators=[-]", "task.data.options.max=24"],
        (FIRST, "g4", "g16", "p8g4", "p32g4", "tau4", "dr"),
    ),
}
# The adaptive runs may change G and τ, and one of them the prompts. They begin with G = 16.
SCHEDULE = [
    *("dynamics=adaptive", "dynamics.group_size=16"),
    *("dynamics.adaptive.smallest_group=2", "dynamics.adaptive.largest_group=64"),
    *("dynamics.adaptive.decide_every=3", "dynamics.adaptive.longest_interval=4"),
]
ADAPTIVE = {
    "adaptive": [*SCHEDULE, "num_steps=240"],
    "prompts": [*SCHEDULE, "num_steps=480", "dynamics.adaptive.fewest_prompts=4"],
}
SMOOTH = 200
# Every run of the arms that are compared by tokens reaches both.
LEVELS = (0.65, 0.7)


def train(path, seed, own):
    """Makes one run with the overrides `own`, unless the run has ended before."""
    words = ["experiment=tiny", f"num_steps={STEPS}", f"seed={seed}", "checkpoint.every_rounds=1000"]
    if not (path / "report.html").exists():
        shutil.rmtree(path, ignore_errors=True)
        grpo("train", *words, "evaluation.num_problems=0", *own, f"output_dir={path}")


class Measured:
    """A measured run has its smoothed pass rate over the tokens or steps spent. `error` is the standard error of a
    smoothed rate."""

    def __init__(self, path):
        log = read_log(path)
        steps = np.linspace(0, log.steps_taken, SMOOTH)
        draws = drawn_curves(log.history, steps)
        self.rates, self.error = draws.mean(axis=0), float(np.median(draws.std(axis=0)))
        groups = np.array([sum(counts.values()) for counts in log.counts])
        tried = np.array([sum(size * number for (_, size), number in counts.items()) for counts in log.counts])
        tokens = tried * log["completions/length_mean"].values + groups * log["prompts/length_mean"].values
        ends = np.concatenate([[0.0], log.history.steps + log.history.delays])
        self.spent = {"steps": steps, "tokens": np.interp(steps, ends, np.concatenate([[0.0], np.cumsum(tokens)]))}

    def at(self, unit, amount):
        return float(np.interp(amount, self.spent[unit], self.rates))


def setting_of(path):
    return batch_setting(from_dict(run_config(path)))


def backtest(paths, seeds, unit):
    """Predicts every arm from every seed of the first one, and returns a row per arm. `paths` are the runs' folders, by
    arm and seed."""
    runs = {key: Measured(path) for key, path in paths.items()}
    first, *_ = arms = list(dict.fromkeys(arm for arm, _ in paths))
    rows = {}
    for index, arm in enumerate(arms):
        inside, widths, misses, better = [], [], [], []
        # The last steps are smoothed from one side only.
        amount = 0.95 * np.mean([runs[arm, seed].spent[unit][-1] for seed in seeds])
        common = min(amount, 0.95 * np.mean([runs[first, seed].spent[unit][-1] for seed in seeds]))
        generator = np.random.default_rng(index)
        for seed in seeds:
            path = paths[first, seed]
            log, own = read_log(path), setting_of(path)
            stages = stages_of(log, own)
            course = predict(log, stages, setting_of(paths[arm, seed]), seed=2 * index + 1)
            again = predict(log, stages, own, seed=2 * index)
            for other in seeds:
                if (arm, other) != (first, seed):
                    run = runs[arm, other]
                    predicted = course.at(unit, amount)["rates"]
                    predicted = predicted + run.error * generator.standard_normal(len(predicted))
                    low, middle, high = np.quantile(predicted, [0.05, 0.5, 0.95])
                    inside.append(low <= run.at(unit, amount) <= high)
                    widths.append(high - low)
                    misses.append(run.at(unit, amount) - middle)
            better.append(np.mean(course.at(unit, common)["rates"] > again.at(unit, common)["rates"]))
        differences = [runs[arm, seed].at(unit, common) - runs[first, seed].at(unit, common) for seed in seeds]
        rows[arm] = inside, widths, misses, better, differences
    return rows


def speeds(paths, seeds):
    """Prints each arm's speed over the first arm's, measured and by the law at three amounts of the prompts' noise."""
    first, *_ = arms = list(dict.fromkeys(arm for arm, _ in paths))
    steps = np.arange(STEPS)
    curves = {key: np.interp(steps, *steps_and_rates(path)) for key, path in paths.items()}
    middle = np.mean([curves[first, seed] for seed in seeds], axis=0)
    factors = np.exp(np.linspace(-1.5, 1.5, 121))

    def speed(curve):
        misses = [np.mean((np.interp(f * steps, steps, middle) - curve)[f * steps < STEPS] ** 2) for f in factors]
        return factors[int(np.argmin(misses))]

    noises = np.array([0.0, PROMPT_NOISE, 1e6])
    table = Table("arm", "measured", *(f"ρ = {noise:g}" for noise in noises), title="speed of a step")
    for arm in arms:
        ratios = []
        for seed in seeds:
            own, other = setting_of(paths[first, seed]), setting_of(paths[arm, seed])
            for stage in stages_of(read_log(paths[first, seed]), own):
                here, there = (progress_of_step(setting, stage.difficulty, noises) for setting in (own, other))
                ratios.append(np.log(there / here))
        measured = [speed(curves[arm, seed]) for seed in seeds]
        law = np.exp(np.mean(ratios, axis=0))
        table.add_row(arm, f"{np.mean(measured):.2f} ± {stats.sem(measured):.2f}", *(f"{ratio:.2f}" for ratio in law))
    Console().print(table)


def costs(folder, seeds):
    """Prints the tokens until the smoothed pass rate reached two levels, as means over seeds."""
    table = Table("arm", *(f"until {level:g}" for level in LEVELS), title="prompt and completion tokens")
    for arm in (*ADAPTIVE, "g4", FIRST, "g16"):
        runs = [Measured(folder / f"{arm}-s{seed}") for seed in seeds]
        spent = [[run.spent["tokens"][np.argmax(run.rates >= level)] for run in runs] for level in LEVELS]
        table.add_row(arm, *(f"{np.mean(tokens):,.0f}" for tokens in spent))
    Console().print(table)


def steps_and_rates(path):
    run = Measured(path)
    return run.spent["steps"], run.rates


def made(folder, seeds, task):
    """Makes the runs of a task, prints their costs, and returns their paths by arm and seed."""
    words, arms = TASKS[task]
    own = {arm: ARMS[arm] for arm in arms} | ADAPTIVE
    for arm, seed in product(own, seeds):
        train(folder / f"{arm}-s{seed}", seed, [*words, *own[arm]])
    costs(folder, seeds)
    return {(arm, seed): folder / f"{arm}-s{seed}" for arm, seed in product(arms, seeds)}


def main(folder, seeds="5", task="sums"):
    folder, seeds = Path(folder), range(int(seeds))
    if task == "made":
        cells = product(folder.name.split(","), seeds)
        paths = {(arm, seed): folder.parent / f"{arm}-seed{seed}" for arm, seed in cells}
    else:
        paths = made(folder, seeds, task)
    speeds(paths, seeds)
    for unit in ("tokens", "steps"):
        table = Table("arm", "inside 90 %", "width", "miss", "better?", "measured difference", "decided", title=unit)
        everything, right, decided = [], 0, 0
        for index, (arm, row) in enumerate(backtest(paths, seeds, unit).items()):
            inside, widths, misses, better, differences = row
            error = stats.sem(differences) * stats.t.ppf(0.975, len(differences) - 1) if index else np.inf
            mean = float(np.mean(differences))
            sure = abs(mean) > error
            agrees = (np.mean(better) > 0.5) == (mean > 0)
            decided, right = decided + sure, right + (sure and agrees)
            everything += inside
            verdict = ("right" if agrees else "WRONG") if sure else "–"
            cells = f"{np.mean(inside):.0%}", f"{np.mean(widths):.3f}", f"{np.mean(misses):+.3f}"
            table.add_row(arm, *cells, f"{np.mean(better):.0%}", f"{mean:+.3f} ± {error:.3f}", verdict)
        Console().print(table)
        print(f"{unit}: {np.mean(everything):.0%} of {len(everything)} inside; {right} of {decided} decided are right")


if __name__ == "__main__":
    main(*sys.argv[1:])
