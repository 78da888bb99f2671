"""How well `grpo dynamics whatif` predicts runs that are then made: the tiny model under other G, batches, τ and dials.

    python benchmarks/whatif.py FOLDER [SEEDS]      (5 by default; half a minute a run)

Every arm is run with every seed; a run that ended is not made again. The speed of an arm is the factor on the step that
lays its curve on the first arm's. From each run of the first arm alone, every arm is predicted at the tokens and at the
steps that the arm itself took, and held against its runs. An arm is decided where the 95 % interval of its difference
from the first arm, over seeds and at what both spent, leaves out 0. A prediction is right there if it calls the side
that came more probable.
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
from grpo.dynamics.whatif import drawn_curves, predict, stages_of
from grpo.report.logs import read_log, run_config

FIRST = "base"
# Name → what differs from the first arm: G = 8, 16 prompts a step, τ = 1, GRPO.
ARMS = {
    FIRST: [],
    "g4": ["dynamics.group_size=4"],
    "g16": ["dynamics.group_size=16"],
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
# The adaptive runs may change G and τ, and begin with G = 16.
ADAPTIVE = [
    *("dynamics=adaptive", "dynamics.group_size=16", "num_steps=240"),
    *("dynamics.adaptive.decide_every=3", "dynamics.adaptive.longest_interval=4"),
]
SMOOTH = 200
# Every run of the arms that are compared by tokens reaches both.
LEVELS = (0.65, 0.7)


def train(folder, arm, seed, own):
    """Makes one run with its `own` words, unless it has been made."""
    path = folder / f"{arm}-s{seed}"
    words = ["experiment=tiny", f"num_steps={STEPS}", f"seed={seed}", "checkpoint.every_rounds=1000"]
    if not (path / "report.md").exists():
        shutil.rmtree(path, ignore_errors=True)
        grpo("train", *words, "evaluation.num_problems=0", *own, f"output_dir={path}")


class Measured:
    """A run's smoothed pass rate over what it had spent. `error` is the standard error of a smoothed rate."""

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


def backtest(folder, seeds, unit):
    """Predicts every arm from every seed of the first one. Returns a row per arm."""
    runs = {(arm, seed): Measured(folder / f"{arm}-s{seed}") for arm, seed in product(ARMS, seeds)}
    rows = {}
    for index, (arm, words) in enumerate(ARMS.items()):
        inside, widths, misses, better = [], [], [], []
        # The last steps are smoothed from one side only.
        amount = 0.95 * np.mean([runs[arm, seed].spent[unit][-1] for seed in seeds])
        common = min(amount, 0.95 * np.mean([runs[FIRST, seed].spent[unit][-1] for seed in seeds]))
        generator = np.random.default_rng(index)
        for seed in seeds:
            path = folder / f"{FIRST}-s{seed}"
            log, values = read_log(path), run_config(path)
            stages = stages_of(log, batch_setting(from_dict(values)))
            course = predict(log, stages, batch_setting(from_dict(values, words)), seed=2 * index + 1)
            again = predict(log, stages, batch_setting(from_dict(values)), seed=2 * index)
            for other in seeds:
                if (arm, other) != (FIRST, seed):
                    run = runs[arm, other]
                    predicted = course.at(unit, amount)["rates"]
                    predicted = predicted + run.error * generator.standard_normal(len(predicted))
                    low, middle, high = np.quantile(predicted, [0.05, 0.5, 0.95])
                    inside.append(low <= run.at(unit, amount) <= high)
                    widths.append(high - low)
                    misses.append(run.at(unit, amount) - middle)
            better.append(np.mean(course.at(unit, common)["rates"] > again.at(unit, common)["rates"]))
        differences = [runs[arm, seed].at(unit, common) - runs[FIRST, seed].at(unit, common) for seed in seeds]
        rows[arm] = inside, widths, misses, better, differences
    return rows


def speeds(folder, seeds):
    """Prints each arm's speed over the first arm's, measured and by the law at three amounts of the prompts' noise."""
    steps = np.arange(STEPS)
    curves = {(arm, seed): np.interp(steps, *steps_and_rates(folder, arm, seed)) for arm, seed in product(ARMS, seeds)}
    first = np.mean([curves[FIRST, seed] for seed in seeds], axis=0)
    factors = np.exp(np.linspace(-1.5, 1.5, 121))

    def speed(curve):
        misses = [np.mean((np.interp(f * steps, steps, first) - curve)[f * steps < STEPS] ** 2) for f in factors]
        return factors[int(np.argmin(misses))]

    noises = np.array([0.0, PROMPT_NOISE, 1e6])
    table = Table("arm", "measured", *(f"ρ = {noise:g}" for noise in noises), title="speed of a step")
    config = {seed: run_config(folder / f"{FIRST}-s{seed}") for seed in seeds}
    for arm, words in ARMS.items():
        ratios = []
        for seed in seeds:
            own, other = (batch_setting(from_dict(config[seed], chosen)) for chosen in ([], words))
            for stage in stages_of(read_log(folder / f"{FIRST}-s{seed}"), own):
                here, there = (progress_of_step(setting, stage.difficulty, noises) for setting in (own, other))
                ratios.append(np.log(there / here))
        measured = [speed(curves[arm, seed]) for seed in seeds]
        law = np.exp(np.mean(ratios, axis=0))
        table.add_row(arm, f"{np.mean(measured):.2f} ± {stats.sem(measured):.2f}", *(f"{ratio:.2f}" for ratio in law))
    Console().print(table)


def costs(folder, seeds):
    """Prints the tokens until the smoothed pass rate reached two levels, as means over seeds."""
    table = Table("arm", *(f"until {level:g}" for level in LEVELS), title="prompt and completion tokens")
    for arm in ("adaptive", "g4", FIRST, "g16"):
        runs = [Measured(folder / f"{arm}-s{seed}") for seed in seeds]
        spent = [[run.spent["tokens"][np.argmax(run.rates >= level)] for run in runs] for level in LEVELS]
        table.add_row(arm, *(f"{np.mean(tokens):,.0f}" for tokens in spent))
    Console().print(table)


def steps_and_rates(folder, arm, seed):
    run = Measured(folder / f"{arm}-s{seed}")
    return run.spent["steps"], run.rates


def main(folder, seeds="5"):
    folder, seeds = Path(folder), range(int(seeds))
    for (arm, words), seed in product({**ARMS, "adaptive": ADAPTIVE}.items(), seeds):
        train(folder, arm, seed, words)
    speeds(folder, seeds)
    costs(folder, seeds)
    for unit in ("tokens", "steps"):
        table = Table("arm", "inside 90 %", "width", "miss", "better?", "measured difference", "decided", title=unit)
        everything, right, decided = [], 0, 0
        for arm, (inside, widths, misses, better, differences) in backtest(folder, seeds, unit).items():
            error = stats.sem(differences) * stats.t.ppf(0.975, len(differences) - 1) if arm != FIRST else np.inf
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
