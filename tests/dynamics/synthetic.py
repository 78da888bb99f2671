"""This module makes reward curves of known laws, with binomial noise of known size."""

import numpy as np
from scipy.special import expit

from benchmarks.papers.oscillator import propagate, sampled_oscillator
from grpo.dynamics.history import History


def measured(curve, group_size=8, prompts=16, seed=0, interval=1):
    """Returns a `History` of noisy measurements of a curve [points]. Each round is the mean of prompts × group_size
    Bernoulli draws."""
    generator = np.random.default_rng(seed)
    curve = np.asarray(curve)
    intervals = np.broadcast_to(np.asarray(interval, float), curve.shape)
    draws = group_size * prompts
    values = generator.binomial(draws, curve) / draws
    errors = np.sqrt(np.maximum(curve * (1 - curve), 0.01) / draws)
    steps = np.concatenate([[0.0], np.cumsum(intervals)[:-1]])
    return History(steps, values, errors, np.array(intervals), np.zeros_like(steps))


def oscillating(rounds, start=0.2, plateau=0.8, momentum=0.9, stiffness=0.004, inertia=None, interval=1):
    """Returns a curve of the reduced model. `inertia` in place of (1+μ)/2 makes it more or less damped."""
    model = sampled_oscillator(momentum, stiffness, interval)
    mass = model.mass if inertia is None else model.mass - (1 + momentum) / 2 + inertia
    frequency = np.sqrt(stiffness / mass)
    steps = interval * np.arange(rounds)
    ratio = model.damping / (2 * np.sqrt(stiffness * mass))
    return plateau + (start - plateau) * propagate(steps, 1.0, 0.0, ratio, frequency)[0]


def sigmoid(rounds, floor=0.1, plateau=0.8, middle=40.0, width=6.0):
    return floor + (plateau - floor) * expit((np.arange(rounds) - middle) / width)
