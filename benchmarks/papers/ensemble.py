"""This module simulates many replicas of one policy at once, to show how group size, momentum and optimizer change the
mean reward curve and its fluctuation.

A policy is one logit θ with pass rate p = 1/(1+e^−θ). It is trained on groups of G tries by the dial's gradient
σ^(2−α), with the sign that raises p. A KL penalty in the loss pulls by β·p(1−p)·θ back to θ = 0, so that the curve has
a plateau below 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Policy:
    """This type describes the simulated policy and its training.

    exponent    the dial's α
    start       pass rate at the beginning
    penalty     β, the coefficient of the KL penalty
    prompts     groups per step; all have the same pass rate
    optimizer   "sgd" (heavy ball, first moment a sum) or "adam" (first moment an average, β₂ = 0.999)
    momentum    μ of "sgd", or β₁ of "adam"
    """

    group_size: int
    exponent: float = 1.0
    start: float = 0.2
    penalty: float = 0.0
    prompts: int = 4
    optimizer: str = "sgd"
    momentum: float = 0.0
    step_size: float = 0.05


def pass_rates(policy: Policy, steps: int, replicas: int, seed: int = 0) -> Array:
    """Simulates independent runs. Returns their pass rates [steps + 1, replicas]."""
    generator = np.random.default_rng(seed)
    theta = np.full(replicas, float(logit(policy.start)))
    first, second = np.zeros(replicas), np.zeros(replicas)
    rates = np.empty((steps + 1, replicas))
    for step in range(steps + 1):
        rates[step] = expit(theta)
        gradient = _gradient(policy, rates[step], theta, generator)
        if policy.optimizer == "adam":
            first = policy.momentum * first + (1 - policy.momentum) * gradient
            second = 0.999 * second + 0.001 * gradient**2
            corrected = first / (1 - policy.momentum ** (step + 1)) if policy.momentum else first
            theta = theta + policy.step_size * corrected / (np.sqrt(second / (1 - 0.999 ** (step + 1))) + 1e-8)
        else:
            first = policy.momentum * first + gradient
            theta = theta + policy.step_size * first
    return rates


def _gradient(policy: Policy, rates: Array, theta: Array, generator: np.random.Generator) -> Array:
    """Returns one step's gradient [replicas]: σ^(2−α) averaged over the groups, minus the penalty's pull."""
    size = policy.group_size
    correct = generator.binomial(size, rates[:, None], (len(rates), policy.prompts))
    sigma = np.sqrt(correct * (size - correct)) / size
    drift = np.where(sigma > 0, sigma ** (2 - policy.exponent), 0.0).mean(axis=1)
    return drift - policy.penalty * rates * (1 - rates) * theta
