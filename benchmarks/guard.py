"""This script measures how often the guard acts on healthy simulated curves, and how soon on collapsing ones.

    python benchmarks/guard.py [RUNS]      (60 by default; some minutes)

Prompts' pass rates are Beta-distributed about the policy's mean. The mean rises, stands still, or swings by itself from
round to round (a stationary AR(1) process of the deviation named). A curve has 300 rounds; a collapse is a fall to .05
at round 150.
"""

import sys
from collections import Counter
from itertools import product

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from grpo.dynamics import guard
from grpo.dynamics.history import pass_rate

ROUNDS, COLLAPSE = 300, 150
PERSISTENCE = 0.7
# The Beta distribution of prompts has this concentration: they are from nearly certain to nearly hopeless.
CONCENTRATION = 2.0
MEANS = {"rising .15 → .85": None, "standing at .5": 0.5, "standing at .85": 0.85}


def curve(generator, prompts, size, level, swing, collapse=False):
    """Yields (pass rate, standard error) of each round, as the scheduler sees them."""
    time = np.arange(ROUNDS)
    mean = 0.15 + 0.7 * (1 - np.exp(-4 * time / ROUNDS)) if level is None else np.full(ROUNDS, level)
    own = 0.0
    for index in time:
        own = PERSISTENCE * own + swing * np.sqrt(1 - PERSISTENCE**2) * generator.standard_normal()
        rate = 0.05 if collapse and index >= COLLAPSE else float(np.clip(mean[index] + own, 0.02, 0.98))
        rates = generator.beta(CONCENTRATION * rate, CONCENTRATION * (1 - rate), prompts)
        counts = Counter(generator.binomial(size, rates).tolist())
        yield pass_rate({(correct, size): groups for correct, groups in counts.items()})


def first_action(rounds):
    """Returns the round after which the guard acts first, or None."""
    state = guard.GuardState()
    for index, (rate, error) in enumerate(rounds):
        action, state = guard.watch(guard.GuardRule(), state, guard.RoundFacts(index, rate, error, 1.0, 0, 8, 1.0))
        if action:
            return index
    return None


def main(runs=60):
    generator = np.random.default_rng(0)
    table = Table("prompts × G", "curve", "own swing", "acts", "after a collapse, rounds", title=f"{runs} runs of each")
    cases = list(product(((8, 4), (8, 8), (16, 8), (64, 8)), MEANS.items(), (0.0, 0.02, 0.04)))
    for (prompts, size), (name, level), swing in track(cases, transient=True):
        healthy = [first_action(curve(generator, prompts, size, level, swing)) for _ in range(runs)]
        fallen = [first_action(curve(generator, prompts, size, level, swing, collapse=True)) for _ in range(runs)]
        delays = [index - COLLAPSE + 1 for index in fallen if index is not None and index >= COLLAPSE]
        seen = f"{np.median(delays):.0f} (not seen: {sum(index is None for index in fallen)})" if delays else "–"
        acts = f"{np.mean([index is not None for index in healthy]):.0%}"
        table.add_row(f"{prompts} × {size}", name, f"{swing:g}", acts, seen)
    Console().print(table)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
