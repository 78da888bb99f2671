"""This module simulates reward curves of several kinds. The dynamics model has a law for some kinds and none for
others.

A run has 60 to 300 rounds of 4 to 32 prompts × 4 to 16 completions. Prompts differ in difficulty, so a round scatters
more than independent completions would; in every second run the rounds also wander together (an AR(1) process).
Half of the runs were logged with their counts, and half as bare values, as other frameworks do.
"""

from collections import Counter
from dataclasses import replace

import numpy as np
from scipy.signal import lfilter
from scipy.special import expit, logit

from grpo.dynamics.history import history_of, history_of_values

SPREAD, MEMORY = 1.0, 0.6


def settle(generator, time):
    """Returns the start, the end and the relaxation time of a curve that settles, in shares of the run."""
    return generator.uniform(0.03, 0.45), generator.uniform(0.5, 0.97), generator.uniform(0.08, 0.6)


def exponential(generator, time):
    first, last, relaxation = settle(generator, time)
    return last + (first - last) * np.exp(-time / relaxation)


def sigmoid(generator, time):
    first, last, _ = settle(generator, time)
    return first + (last - first) * expit((time - generator.uniform(0.2, 0.8)) / generator.uniform(0.03, 0.15))


def two_sigmoids(generator, time):
    first, last, _ = settle(generator, time)
    middles, share = np.sort(generator.uniform(0.1, 0.9, 2)), generator.uniform(0.3, 0.7)
    rise = share * expit((time - middles[0]) / 0.05) + (1 - share) * expit((time - middles[1]) / 0.05)
    return first + (last - first) * rise


def power_law(generator, time):
    first, last, relaxation = settle(generator, time)
    return last + (first - last) * (1 + time / relaxation) ** -generator.uniform(0.4, 1.5)


def logarithm(generator, time):
    first, last, relaxation = settle(generator, time)
    return first + (last - first) * np.log1p(time / (0.3 * relaxation)) / np.log1p(1 / (0.3 * relaxation))


def line(generator, time):
    first = generator.uniform(0.05, 0.6)
    return first + generator.uniform(0.05, 0.38) * time


def flat(generator, time):
    return np.full(len(time), generator.uniform(0.03, 0.95))


def cosine_rate(generator, time):
    first, last, relaxation = settle(generator, time)
    spent = (time + np.sin(np.pi * time) / np.pi) / 2
    return last + (first - last) * np.exp(-spent / relaxation)


def decline(generator, time):
    first, last, relaxation = settle(generator, time)
    rise = last + (first - last) * np.exp(-time / (0.3 * relaxation))
    return rise - generator.uniform(0.05, 0.4) * np.maximum(time - generator.uniform(0.15, 0.6), 0)


def drift(generator, time):
    """Returns an exponential about which the policy wanders for twenty rounds at a time."""
    own = lfilter([np.sqrt(1 - 0.95**2)], [1, -0.95], generator.standard_normal(len(time)))
    return expit(logit(exponential(generator, time)) + generator.uniform(0.1, 0.4) * own)


def random_walk(generator, time):
    size = generator.uniform(0.3, 1.2) / np.sqrt(len(time))
    return expit(logit(generator.uniform(0.1, 0.8)) + size * np.cumsum(generator.standard_normal(len(time))))


def swinging(generator, time):
    first, last, relaxation = settle(generator, time)
    return last + (first - last) * np.exp(-time / relaxation) * np.cos(generator.uniform(6, 15) * time)


def prompts(generator, time):
    """Returns the mean pass rate of Bernoulli prompts of many difficulties, each gated by its own σ (the dial at α =
    1)."""
    logits = generator.normal(generator.uniform(-3, 0), generator.uniform(1, 2.5), 200)
    means, speed = [], generator.uniform(4, 20) / len(time)
    for _ in time:
        rates = expit(logits)
        means.append(rates.mean())
        logits = logits + speed * np.sqrt(rates * (1 - rates))
    return np.array(means)


KINDS = (
    *(exponential, sigmoid, two_sigmoids, power_law, logarithm, line, flat, cosine_rate, decline, drift, random_walk),
    *(swinging, prompts),
)


def truth(kind, generator):
    """Returns the pass rate of each round."""
    return kind(generator, np.linspace(0, 1, int(generator.choice([60, 100, 200, 300]))))


def simulated(kind, seed):
    """Returns the measured curve of one run (a `History`)."""
    generator = np.random.default_rng([seed, KINDS.index(kind)])
    curve = truth(kind, generator)
    rounds = len(curve)
    wander = lfilter([np.sqrt(1 - MEMORY**2)], [1, -MEMORY], generator.standard_normal(rounds))
    level = logit(np.clip(curve, 0.005, 0.995)) + (seed % 2) * generator.uniform(0.05, 0.4) * wander
    number, size = int(generator.choice([4, 8, 16, 32])), int(generator.choice([4, 8, 16]))
    rates = expit(level[:, None] + SPREAD * generator.standard_normal((rounds, number)))
    correct = generator.binomial(size, rates)
    steps = np.arange(1, rounds + 1)
    if generator.random() < 0.5:
        return history_of_values(steps, correct.mean(axis=1) / size)
    return history_of(
        (int(step), 1, 0, {(k, size): n for k, n in Counter(right.tolist()).items()})
        for step, right in zip(steps, correct, strict=True)
    )


def evaluated(kind, seed, evaluations=13, problems=100):
    """Returns held-out evaluations of the same run as a `History`. They have their own noise and end up to .1 below
    training."""
    curve = truth(kind, np.random.default_rng([seed, KINDS.index(kind)]))
    generator = np.random.default_rng([seed, KINDS.index(kind), 1])
    below = generator.uniform(0, 0.1) * np.linspace(0, 1, len(curve))
    steps = np.unique(np.linspace(0, len(curve) - 1, evaluations).astype(int))
    rates = np.clip(curve - below, 0.01, 0.99)[steps]
    history = history_of_values(steps, generator.binomial(problems, rates) / problems, interval=0)
    return replace(history, errors=np.maximum(history.errors, 0.5 / np.sqrt(problems)))
