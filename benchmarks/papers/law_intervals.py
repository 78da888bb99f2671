"""This script counts how often the 95 % intervals of the oscillator law hold a curve's plateau and stiffness.

    python benchmarks/papers/law_intervals.py [CURVES]      (400 by default)

Curves of 60 and of 150 rounds of 16 prompts × 8 completions follow the law, and are measured with binomial noise.
"""

import sys

import numpy as np

from benchmarks.papers.identify import fit_law
from benchmarks.papers.laws import oscillator_law
from benchmarks.papers.oscillator import propagate, sampled_oscillator
from grpo.dynamics.history import History

MOMENTUM, TRIED = 0.9, 128
LAW = oscillator_law(MOMENTUM)


def curve_of(rounds, seed):
    """Returns a measured curve, with its plateau and its stiffness."""
    generator = np.random.default_rng(1000 + seed)
    start, plateau = generator.uniform(0.1, 0.4), generator.uniform(0.5, 0.75)
    stiffness = (1 - MOMENTUM) / (generator.uniform(0.1, 0.35) * rounds + 1)
    model, steps = sampled_oscillator(MOMENTUM, stiffness, 1), np.arange(float(rounds))
    rates = plateau + (start - plateau) * propagate(steps, 1.0, 0.0, model.damping_ratio, model.frequency)[0]
    values = np.random.default_rng(seed).binomial(TRIED, rates) / TRIED
    errors = np.sqrt(np.maximum(rates * (1 - rates), 0.01) / TRIED)
    return History(steps, values, errors, np.ones(rounds), np.zeros(rounds)), (plateau, stiffness)


def holds(rounds, seed):
    """Returns whether the intervals of plateau and stiffness hold them, [2]."""
    history, truths = curve_of(rounds, seed)
    fit = fit_law(LAW, history)
    intervals = [fit.interval(lambda free, index=index: LAW.read(free)[..., index]) for index in (1, 2)]
    return [interval.low <= truth <= interval.high for interval, truth in zip(intervals, truths, strict=True)]


def main(curves=400):
    for rounds in (60, 150):
        plateau, stiffness = np.mean([holds(rounds, seed) for seed in range(curves)], axis=0)
        print(f"{rounds} rounds, {curves} curves: the plateau is held {plateau:.1%}, the stiffness {stiffness:.1%}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
