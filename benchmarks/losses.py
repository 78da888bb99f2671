"""This script measures how often guard and diagnosis speak in healthy runs of 20 kinds, and how large a loss is when
they do.

    python benchmarks/losses.py [RUNS] [FIRST_SEED] [PROCESSES]      (25 of each kind, from 0, by 2; some minutes)
    python benchmarks/losses.py constants [RUNS] [FIRST_SEED] [PROCESSES]      (how the diagnosis changes with its own)
    python benchmarks/losses.py broken [RUNS]      (how often a run is wrongly "broken by a step")
    python benchmarks/losses.py RUNS_FOLDER      (runs that logged step/cosine: when guard and diagnosis speak)

A run is simulated by its policy's pass rate, by how much easier the prompts of a round are (in logits), by the counts
of its groups, and by the cosine of each step and the next gradient. In real runs of the tiny model such cosines are
nearly independent. Their mean is +.7 of their standard deviation where the pass rate rises fast, and 0 where it stands.
It is −.25 to −.8 where a rate that is four to seven times too high loses it, and −.27 in a run that rises all the same.
"""

import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.special import expit, logit

from benchmarks.synthetic_logs import noise
from grpo.dynamics import guard
from grpo.dynamics.history import History, pass_rate
from grpo.insight.diagnosis import setbacks
from grpo.insight.diagnosis.findings import NOTE, DiagnosisRule
from grpo.insight.diagnosis.setbacks import collapse, undoing
from grpo.insight.logs.logs import counts_of, log_of, read_run, run_config
from grpo.insight.logs.run_log import RunLog, Series
from grpo.types import metrics as m

RULE = DiagnosisRule()
ROUNDS = 300
# While it trains, a run is diagnosed every so many rounds.
EVERY = 20
TIME = np.linspace(0, 1, ROUNDS)
RISING = 0.15 + 0.7 * (1 - np.exp(-4 * TIME))
STILL = np.zeros(ROUNDS)
# Where a pass rate rises by this much in a round, the mean cosine is half of `FASTEST`.
FAST, FASTEST = 0.003, 0.8
SPREAD = 1.2


def topics(memory, size):
    return lambda generator: noise(generator, ROUNDS, size, memory)


def epochs(generator):
    """The prompts come in the same order, from easy to hard, in each of five epochs."""
    return 0.8 * ((5 * TIME) % 1 - 0.5) * -1


# Name → (the policy's pass rate, the ease of a round's prompts in logits, prompts and completions of a round, a shift
# of the mean cosine).
HEALTHY = {
    "rising": (RISING, None, (32, 8), 0),
    "rising, 8 × 4": (RISING, None, (8, 4), 0),
    "rising, 8 × 8": (RISING, None, (8, 8), 0),
    "rising, 64 × 8": (RISING, None, (64, 8), 0),
    "rising at a high rate": (RISING, None, (16, 8), -0.4),
    "standing at .5": (np.full(ROUNDS, 0.5), None, (32, 8), 0),
    "standing at .85": (np.full(ROUNDS, 0.85), None, (16, 8), 0),
    "standing at .12": (np.full(ROUNDS, 0.12), None, (12, 16), 0),
    "rising from .03": (0.03 + 0.4 * expit((TIME - 0.5) / 0.08), None, (16, 8), 0),
    "two rises": (0.2 + 0.2 * expit((TIME - 0.2) / 0.05) + 0.3 * expit((TIME - 0.7) / 0.05), None, (16, 8), 0),
    "swings by itself": (RISING, topics(0.7, 0.2), (32, 8), 0),
    "topics .95, rising": (RISING, topics(0.95, 0.5), (32, 8), 0),
    "topics .95, rising, 8 × 8": (RISING, topics(0.95, 0.5), (8, 8), 0),
    "topics .9, rising": (RISING, topics(0.9, 0.5), (32, 8), 0),
    "topics .98, rising": (RISING, topics(0.98, 0.3), (32, 8), 0),
    "topics .95, standing": (np.full(ROUNDS, 0.5), topics(0.95, 0.5), (32, 8), 0),
    "topics .95, standing, .3 logits": (np.full(ROUNDS, 0.4), topics(0.95, 0.3), (8, 8), 0),
    "harder data from half time on": (RISING, lambda generator: -1.0 * (TIME > 0.5), (32, 8), 0),
    "from easy to hard": (RISING, lambda generator: 1 - 2 * TIME, (32, 8), 0),
    "epochs": (RISING, epochs, (32, 8), 0),
}


def falling(first, last, begin, rounds):
    """Returns a pass rate that rises to `first`, and from the round `begin` on falls to `last` within `rounds`."""
    rise = first * (0.5 + 0.5 * np.minimum(np.arange(ROUNDS) / max(begin, 1), 1))
    return rise - (first - last) * np.clip((np.arange(ROUNDS) - begin) / rounds, 0, 1)


# Name → (pass rate, ease, size of a round, mean cosine while it falls)
DECLINES = {
    "over 150 rounds": (falling(0.6, 0.2, 100, 150), None, (32, 8), -0.3),
    "over 150 rounds, 8 × 8": (falling(0.6, 0.2, 100, 150), None, (8, 8), -0.3),
    "over 80 rounds": (falling(0.6, 0.1, 150, 80), None, (16, 8), -0.45),
    "over 80 rounds, topics .95": (falling(0.6, 0.1, 150, 80), topics(0.95, 0.5), (32, 8), -0.45),
    "from the start, over 200": (falling(0.5, 0.1, 0, 200), None, (16, 8), -0.3),
    "over 30 rounds": (falling(0.6, 0.1, 150, 30), None, (16, 8), -0.8),
    "at once": (falling(0.6, 0.05, 150, 4), None, (16, 8), -0.8),
}


def drawn(kind, declining, seed):
    """Yields (true pass rate of the policy, measured pass rate, its error, cosine) of each round."""
    curve, ease, (prompts, size), shift = (DECLINES if declining else HEALTHY)[kind]
    generator = np.random.default_rng([seed, declining, list(DECLINES if declining else HEALTHY).index(kind)])
    shifts = ease(generator) if ease else STILL
    speed = np.maximum(np.gradient(curve), 0)
    mean = FASTEST * speed / (speed + FAST)
    mean = np.where(np.gradient(curve) < 0, shift, mean) if declining else mean + shift
    for rate, shifted, cosine in zip(curve, shifts, mean + generator.standard_normal(ROUNDS), strict=True):
        rates = expit(logit(rate) + shifted + SPREAD * generator.standard_normal(prompts))
        counts = Counter((int(correct), size) for correct in generator.binomial(size, rates))
        yield rate, *pass_rate(counts), 0.035 * cosine


def first_action(rounds, with_cosines):
    """Returns how much of the best true pass rate is lost when the guard first acts, or None if it does not act."""
    state, best = guard.GuardState(), 0.0
    for index, (true, rate, error, cosine) in enumerate(rounds):
        best = max(best, true)
        facts = guard.RoundFacts(index, rate, error, 1.0, 0, 1, 1.0, cosine if with_cosines else None)
        action, state = guard.watch(guard.GuardRule(), state, facts)
        if action:
            return best - true
    return None


def first_warning(rounds, with_cosines):
    """Returns how much is lost when the diagnosis, asked every `EVERY` rounds, first tells of a loss or of harm, or
    None if it never does. Notes are not counted."""
    true, rates, errors, cosines = np.array(rounds).T
    steps = np.arange(ROUNDS, dtype=float)
    for end in range(EVERY, ROUNDS + 1, EVERY):
        history = History(steps[:end], rates[:end], errors[:end], np.ones(end), np.zeros(end))
        series = {"pass_rate": Series(history.ends, rates[:end])}
        if with_cosines:
            series[m.COSINE] = Series(history.ends, cosines[:end])
        log = RunLog(history, series)
        findings = [finding for check in (collapse, undoing) if (finding := check(log, RULE))]
        if any(finding.severity != NOTE for finding in findings):
            return true[:end].max() - true[end - 1]
    return None


WAYS = {
    "guard, pass rates": (first_action, False),
    "guard, cosines": (first_action, True),
    "diagnosis, pass rates": (first_warning, False),
    "diagnosis, cosines": (first_warning, True),
}


# These are the constants of the diagnosis of losses, with other values than their own, which stands first.
CHOICES = [
    *(("WANDERS", value) for value in (setbacks.WANDERS, 2.0, 4.0, 8.0)),
    *(("AT_ONCE", value) for value in (3, 8)),
    *(("SURELY", value) for value in (1.0, 3.0)),
]
COLUMNS = ("healthy", "topics, rising", "topics, standing", "harder data", "seen before .15", "median loss")


def spoken(job):
    """Returns how much is lost when guard and diagnosis first speak, in each of `WAYS`."""
    rounds = list(drawn(*job))
    return [first(rounds, with_cosines) for first, with_cosines in WAYS.values()]


def simulated(runs=25, first_seed=0, processes=2):
    console = Console(width=140)
    with ProcessPoolExecutor(processes) as pool:
        for declining, kinds in ((False, HEALTHY), (True, DECLINES)):
            jobs = list(product(kinds, (declining,), range(first_seed, first_seed + runs)))
            by_kind = np.array(list(pool.map(spoken, jobs, chunksize=8)), float).reshape(len(kinds), runs, len(WAYS))
            title = "seen before .15 is lost (median loss)" if declining else "healthy runs that are spoken of"
            table = Table("kind", *WAYS, title=f"{runs} of each: {title}")
            for name, losses in zip([*kinds, "all"], [*by_kind, by_kind.reshape(-1, len(WAYS))], strict=True):
                known = ~np.isnan(losses)
                if declining:
                    middles = np.median(np.where(known, losses, 1.0), axis=0)
                    counts = (known & (losses < 0.15)).sum(axis=0)
                    cells = [f"{count} ({middle:.2f})" for count, middle in zip(counts, middles, strict=True)]
                else:
                    cells = [f"{count} ({count / len(losses):.1%})" for count in known.sum(axis=0)]
                table.add_row(name, *cells)
            console.print(table)


def spoken_by_constants(job):
    """Returns how much is lost when the diagnosis with cosines first speaks, for each choice of `CHOICES`."""
    rounds, losses = list(drawn(*job)), []
    for name, value in CHOICES:
        chosen = getattr(setbacks, name)
        setattr(setbacks, name, value)
        losses.append(first_warning(rounds, True))
        setattr(setbacks, name, chosen)
    return losses


def constants(runs=25, first_seed=0, processes=2):
    """Prints how often the diagnosis speaks of healthy and of declining runs, as its constants change one by one."""
    table = Table("constant", *COLUMNS)
    seeds = range(first_seed, first_seed + runs)
    kinds = [kind for kind in HEALTHY if kind.startswith(("topics", "harder"))]
    jobs = [*product(kinds, (False,), seeds), *product(DECLINES, (True,), seeds)]
    with ProcessPoolExecutor(processes) as pool:
        losses = np.array(list(pool.map(spoken_by_constants, jobs, chunksize=4)), float)
    healthy, declining = np.array_split(losses, [len(kinds) * runs])
    by_kind = (~np.isnan(healthy)).reshape(len(kinds), runs, -1).sum(axis=1)
    of = {name: by_kind[[name in kind for kind in kinds]].sum(axis=0) for name in ("", "rising", "standing", "harder")}
    middles = np.median(np.where(np.isnan(declining), 1.0, declining), axis=0)
    for index, (name, value) in enumerate(CHOICES):
        counts = [str(count[index]) for count in of.values()]
        seen = int((declining[:, index] < 0.15).sum())
        table.add_row(f"{name} = {value:g}", *counts, str(seen), f"{middles[index]:.2f}")
    Console(width=140).print(table)


def first_broken(curve, size, seed):
    """Tells whether the diagnosis says "broken by a step" after any of the first 60 rounds, by pass rates alone."""
    generator, ends = np.random.default_rng([seed, 2]), np.arange(1.0, 61)
    rates = [
        generator.binomial(size[1], expit(logit(rate) + SPREAD * generator.standard_normal(size[0]))).mean() / size[1]
        for rate in curve[:60]
    ]
    asked = np.full(60, float(size[0] * size[1]))
    for end in range(6, 61):
        history = History(ends[:end], np.array(rates[:end]), np.full(end, 0.05), np.ones(end), np.zeros(end))
        series = {m.PASS_RATE: Series(ends[:end], history.values), m.NUM_COMPLETIONS: Series(ends[:end], asked[:end])}
        if setbacks.broken(RunLog(history, series), RULE):
            return True
    return False


def broken(runs=50):
    """Prints how often the diagnosis says "broken by a step" of healthy runs, and of problems from easy to hard."""
    table = Table("runs", "16 a round", "64 a round", "256 a round", title=f"of {runs} runs")
    kinds = {name: kind[0] for name, kind in HEALTHY.items()} | {"standing at .06": np.full(ROUNDS, 0.06)}
    for last, rounds in product((0.002, 0.0005), (2, 5, 10, 20, 50)):
        logits = np.interp(np.arange(ROUNDS), [0, rounds], logit([0.8, last]))
        kinds[f"problems of .8 to {last:g} within {rounds} rounds"] = expit(logits)
    for name, curve in kinds.items():
        counts = [sum(first_broken(curve, size, seed) for seed in range(runs)) for size in ((2, 8), (8, 8), (32, 8))]
        if any(counts):
            table.add_row(name, *map(str, counts))
    Console(width=140).print(table)


def real(folder):
    """Prints for each run when the guard first acts, and after which round the diagnosis first tells of harm."""
    table = Table("run", "pass rate by eighths", "guard, pass rates", "guard, cosines", "steps undo each other")
    for path in sorted(path.parent for path in folder.glob("*/metrics.jsonl")):
        rows, config = read_run(path), run_config(path)
        facts = [(*pass_rate(counts_of(row)), row.get("step/cosine")) for row in rows]
        acts = []
        for with_cosines in (False, True):
            state, at = guard.GuardState(), "–"
            for row, (rate, error, cosine) in zip(rows, facts, strict=True):
                one = guard.RoundFacts(row["step"], rate, error, 1.0, 0, 1, 1.0, cosine if with_cosines else None)
                action, state = guard.watch(guard.GuardRule(), state, one)
                if action:
                    at = f"{row['step']:.0f}"
                    break
            acts.append(at)
        ends = range(20, len(rows) + 1, 10)
        first_report = next(
            (f"{rows[end - 1]['step']:.0f}" for end in ends if undoing(log_of(rows[:end], config), RULE)), "–"
        )
        eighths = " ".join(f"{np.mean([rate for rate, _, _ in part]):.2f}" for part in np.array_split(facts, 8))
        table.add_row(path.name, eighths, *acts, first_report)
    Console(width=140).print(table)


if __name__ == "__main__":
    if sys.argv[1:2] == ["constants"]:
        constants(*map(int, sys.argv[2:]))
    elif sys.argv[1:2] == ["broken"]:
        broken(*map(int, sys.argv[2:]))
    elif sys.argv[1:] and not sys.argv[1].isdigit():
        real(Path(sys.argv[1]))
    else:
        simulated(*map(int, sys.argv[1:]))
