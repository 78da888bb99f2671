"""This module makes reward curves of known laws, with binomial noise of known size."""

import numpy as np
from scipy.special import expit

from benchmarks.papers.oscillator import propagate, sampled_oscillator
from grpo.dynamics.gain import PAID, Products, weight_of_heat
from grpo.dynamics.history import History
from grpo.types import Mean, RoundPlan, RoundStatistics


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


def product_means(signal, heat, generator, aim=1.0, noise=0.01, length=0.05, interval=1, momentum=0.9):
    """Returns a round's means of products, where steps have this signal at an aim of 1 and pay this heat.

    All heat is 1/PAID times as much. Cosines of single steps have the standard deviation `noise`.
    """
    means = {"step/length": Mean(length, 1), "path/steps": Mean(15, 1)}
    for kind, steps in (("step", 1), ("path", 15)):
        weight = 0.5 + (weight_of_heat(momentum, steps) - 0.5) / PAID
        scale = 0.3 * length
        product = aim * signal - weight * heat + noise * scale * generator.standard_normal() / interval**0.5
        means |= {f"{kind}/gain": Mean(product, 1), f"{kind}/cosine": Mean(product / scale, 1)}
    return means


def products_of(signal, heat, rounds=400, seed=0, products=None, aim=1.0, **how):
    """Returns the products of a run of `rounds` rounds, after those before in `products`."""
    generator, products = np.random.default_rng(seed), products or Products()
    for index in range(rounds):
        means = product_means(signal, heat, generator, aim, **how)
        plan = RoundPlan(8, how.get("interval", 1), 8)
        products = products.after(RoundStatistics(index, index, plan, means, {}, {}, ()), aim, 0.9)
    return products
