"""This module holds the laws of σ: how much gradient a group of G completions gives at pass rate p.

The laws follow from the group-standard-deviation identity (Bay & Yearick, arXiv:2607.00152, Theorem 1). With binary
rewards, k of G correct, and advantages (r − r̄)/σ^α, the group's gradient is σ^(2−α)·Δs. Here Δs is the difference of
the mean scores of right and wrong completions, and α is the exponent of the dial: 1 is GRPO, 0 is Dr. GRPO.

A second dial divides by the group's mean reward k/G to the power β. The gradient is then σ^(2−α)·(k/G)^(−β)·Δs. MaxRL
(arXiv:2602.02710) is α = 0 and β = 1: its drift is (1−p) − (1−p)^G, and it ascends log p.

σ is the population standard deviation √(k(G−k))/G. With `ddof` 1 the *divisor* is the sample standard deviation,
σ·√(G/(G−1)), and the gradient carries the factor ((G−1)/G)^(α/2). All functions take arrays of pass rates and broadcast
over them. Group sizes are integers of at least 1.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

Array = NDArray[np.float64]


def asymptotic_drift(pass_rate: ArrayLike, exponent: float, mean_exponent: float = 0.0) -> Array:
    """Returns the drift for G → ∞, [p(1−p)]^((2−α)/2)·p^(−β): the expected length of the gradient in units of Δs."""
    p = np.asarray(pass_rate, float)
    variance = p * (1 - p)
    # A prompt that is always or never solved gives no gradient. At α = 2 the power would make it 1, beyond that ∞.
    inside = np.where(variance > 0, variance, 1.0) ** (1 - exponent / 2)
    return np.where(variance > 0, inside * np.where(p > 0, p, 1.0) ** -mean_exponent, 0.0)


def drift(pass_rate: ArrayLike, group_size: int, exponent: float, ddof: int = 0, mean_exponent: float = 0.0) -> Array:
    """Returns the drift E[σ^(2−α)·(k/G)^(−β)] over k ~ Binomial(G, p): the expected length of a group's gradient in
    units of Δs.

    Silent groups count as 0. The result is exact, by enumeration of k. For α = 1 it is E[g] of arXiv:2607.00152, and
    for α = 0 it is (1 − 1/G)·p(1−p).
    """
    p = np.asarray(pass_rate, float)
    correct = np.arange(1, group_size)
    if not len(correct):
        return np.zeros_like(p)
    sigma = np.sqrt(correct * (group_size - correct)) / group_size
    factor = ((group_size - 1) / group_size) ** (exponent * ddof / 2)
    lengths = sigma ** (2 - exponent) * (correct / group_size) ** -mean_exponent
    return factor * stats.binom.pmf(correct, group_size, p[..., None]) @ lengths


def mean_fidelity(
    pass_rates: ArrayLike,
    weights: ArrayLike,
    group_size: int,
    exponent: float = 1.0,
    ddof: int = 0,
    mean_exponent: float = 0.0,
) -> float:
    """Returns the fidelity of the whole batch's gradient: expected drift over its limit, weighted by `weights`.

    A prompt counts by the gradient that it could give, so prompts with p near 0 or 1 count little. The result is NaN
    when no prompt has 0 < p < 1.
    """
    shares = np.asarray(weights, float)
    limit = shares @ asymptotic_drift(pass_rates, exponent, mean_exponent)
    expected = shares @ drift(pass_rates, group_size, exponent, ddof, mean_exponent)
    return float(expected / limit) if limit else float("nan")


def silent_rate(pass_rate: ArrayLike, group_size: int) -> Array:
    """Returns p^G + (1−p)^G, the probability that all rewards of a group are equal."""
    p = np.asarray(pass_rate, float)
    return p**group_size + (1 - p) ** group_size


def gradient_mass(
    pass_rates: ArrayLike,
    weights: ArrayLike,
    edges: ArrayLike,
    exponent: float,
    group_size: int | None = None,
    mean_exponent: float = 0.0,
) -> Array:
    """Returns the share of the batch's drift that comes from prompts in each bin of pass rates.

    Bins are [edges[i], edges[i+1]), and the last is closed. With `group_size` None the limit G → ∞ is taken. The shares
    add up to 1 when the edges span all pass rates.
    """
    p, shares = np.asarray(pass_rates, float), np.asarray(weights, float)
    if group_size is None:
        drifts = asymptotic_drift(p, exponent, mean_exponent)
    else:
        drifts = drift(p, group_size, exponent, mean_exponent=mean_exponent)
    total = shares @ drifts
    if not total:
        return np.full(len(np.asarray(edges)) - 1, np.nan)
    return np.histogram(p, bins=np.asarray(edges, float), weights=shares * drifts)[0] / total
