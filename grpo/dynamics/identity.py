"""This module holds the laws of σ: how much gradient a group of G completions gives at pass rate p.

They follow from the group-standard-deviation identity (Bay & Yearick, arXiv:2607.00152, Theorem 1). With binary
rewards, k of G correct, and advantages (r − r̄)/σ^α, the group's gradient is σ^(2−α)·Δs. Here Δs is the difference of
the mean scores of right and wrong completions, and α is the exponent of the dial: 1 is GRPO, 0 is Dr. GRPO.

σ is the population standard deviation √(k(G−k))/G. With `ddof` 1 the *divisor* is the sample standard deviation,
σ·√(G/(G−1)), and the gradient carries the factor ((G−1)/G)^(α/2). All functions take arrays of pass rates and broadcast
over them. Group sizes are integers of at least 1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

Array = NDArray[np.float64]


def asymptotic_drift(pass_rate: ArrayLike, exponent: float) -> Array:
    """Returns the drift for G → ∞, [p(1−p)]^((2−α)/2): the expected length of the gradient in units of Δs."""
    p = np.asarray(pass_rate, float)
    variance = p * (1 - p)
    # A prompt that is always or never solved gives no gradient. At α = 2 the power would make it 1, beyond that ∞.
    return np.where(variance > 0, np.where(variance > 0, variance, 1.0) ** (1 - exponent / 2), 0.0)


def drift(pass_rate: ArrayLike, group_size: int, exponent: float, ddof: int = 0) -> Array:
    """Returns the drift E[σ^(2−α)] over k ~ Binomial(G, p): the expected length of a group's gradient in units of Δs.

    Silent groups count as 0. The result is exact, by enumeration of k. For α = 1 it is E[g] of arXiv:2607.00152, and
    for α = 0 it is (1 − 1/G)·p(1−p).
    """
    p = np.asarray(pass_rate, float)
    correct = np.arange(1, group_size)
    if not len(correct):
        return np.zeros_like(p)
    sigma = np.sqrt(correct * (group_size - correct)) / group_size
    factor = ((group_size - 1) / group_size) ** (exponent * ddof / 2)
    return factor * stats.binom.pmf(correct, group_size, p[..., None]) @ sigma ** (2 - exponent)


def fidelity(pass_rate: ArrayLike, group_size: int, exponent: float = 1.0, ddof: int = 0) -> Array:
    """Returns the fidelity φ(G, p): the drift as a share of its limit G → ∞. It is NaN at p = 0 and p = 1."""
    limit = asymptotic_drift(pass_rate, exponent)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(limit > 0, drift(pass_rate, group_size, exponent, ddof) / limit, np.nan)


def mean_fidelity(
    pass_rates: ArrayLike, weights: ArrayLike, group_size: int, exponent: float = 1.0, ddof: int = 0
) -> float:
    """Returns the fidelity of the whole batch's gradient: expected drift over its limit, weighted by `weights`.

    A prompt counts by the gradient that it could give, so prompts with p near 0 or 1 count little. The result is NaN
    when no prompt has 0 < p < 1.
    """
    shares = np.asarray(weights, float)
    limit = shares @ asymptotic_drift(pass_rates, exponent)
    return float(shares @ drift(pass_rates, group_size, exponent, ddof) / limit) if limit else float("nan")


def shortfall_rate(pass_rate: ArrayLike, exponent: float = 1.0, ddof: int = 0) -> Array:
    """Returns c in the approximation 1 − φ ≈ c/G of the fidelity φ.

    It comes from the second-order expansion of E[(k/G)(1−k/G)]^m about p, with m = 1 − α/2 and q = 1 − p:

        c = [m(1 − 2pq) − m²(1 − 4pq)] / (2pq) + ddof·α/2

    c is 1/(8pq) for GRPO (arXiv:2607.00152) and 1 for Dr. GRPO.
    """
    p = np.asarray(pass_rate, float)
    m, variance = 1 - exponent / 2, p * (1 - p)
    return (m * (1 - 2 * variance) - m**2 * (1 - 4 * variance)) / (2 * variance) + ddof * exponent / 2


def asymptotic_group_size(pass_rate: ArrayLike, shortfall: float, exponent: float = 1.0, ddof: int = 0) -> Array:
    """Returns the group size c/ε from which on φ ≥ 1 − ε, by the approximation of `shortfall_rate`.

    ε is `shortfall`. For GRPO the size is 1/(8εp(1−p)), the group-size law.
    """
    return shortfall_rate(pass_rate, exponent, ddof) / shortfall


def smallest_group_size(
    pass_rates: ArrayLike,
    weights: ArrayLike,
    shortfall: float,
    exponent: float = 1.0,
    ddof: int = 0,
    largest: int = 4096,
) -> int | None:
    """Returns the smallest G ≥ 2 with mean fidelity ≥ 1 − ε, exactly, or None when `largest` does not reach it.

    For 0 ≤ α ≤ 2 the drift is the expectation of a concave function of a mean of G draws, so it grows with G, and a
    bisection finds the size. For other exponents all sizes are tried in turn.
    """

    def enough(group_size: int) -> bool:
        return mean_fidelity(pass_rates, weights, group_size, exponent, ddof) >= 1 - shortfall

    if not 0 <= exponent <= 2:
        return next((size for size in range(2, largest + 1) if enough(size)), None)
    if not enough(largest):
        return None
    low, high = 1, largest
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def silent_rate(pass_rate: ArrayLike, group_size: int) -> Array:
    """Returns p^G + (1−p)^G, the probability that all rewards of a group are equal."""
    p = np.asarray(pass_rate, float)
    return p**group_size + (1 - p) ** group_size


def subsampled_silent_rate(correct: ArrayLike, tried: ArrayLike, group_size: int) -> Array:
    """Returns the probability that G of a prompt's n recorded tries are all right or all wrong.

    k of the n tries were right, and the G are drawn from them without replacement (hypergeometric). Unlike
    `silent_rate`, this does not use k/n as if it were p. It needs G ≤ n.
    """
    k, n = np.asarray(correct, float), np.asarray(tried, float)

    def all_of(kind: Array) -> Array:
        # This is C(kind, G) / C(n, G), and 0 where there are fewer than G of the kind.
        logs = special.gammaln(kind + 1) - special.gammaln(np.maximum(kind - group_size, 0) + 1)
        logs -= special.gammaln(n + 1) - special.gammaln(n - group_size + 1)
        return np.where(kind >= group_size, np.exp(logs), 0.0)

    return all_of(k) + all_of(n - k)


def refill_cost(pass_rates: ArrayLike, weights: ArrayLike, group_size: int) -> float:
    """Returns the number of groups sampled per group kept when silent ones are replaced: 1/(1 − E[silent rate]).

    It is ∞ if all groups are silent.
    """
    shares = np.asarray(weights, float)
    kept = 1 - shares @ silent_rate(pass_rates, group_size) / shares.sum()
    return float(1 / kept) if kept > 0 else float("inf")


def objective(pass_rate: ArrayLike, exponent: float) -> Array:
    """Returns F_α(p) = ∫ [q(1−q)]^(−α/2) dq, the objective that the dial ascends for G → ∞.

    F_α is p at α = 0, 2·arcsin√p at α = 1, and the log-odds at α = 2. For α < 2 the integral runs from 0 to p, and is
    the incomplete Beta function B(p; 1−α/2, 1−α/2). For α ≥ 2 that integral is infinite, and the one from ½ to p is
    returned.
    """
    x = 2 * np.asarray(pass_rate, float) - 1

    def from_half(x: Array) -> Array:
        return 2 ** (exponent - 1) * x * special.hyp2f1(0.5, exponent / 2, 1.5, x**2)

    return from_half(x) - from_half(np.asarray(-1.0)) if exponent < 2 else from_half(x)


def weight(pass_rate: ArrayLike, exponent: float) -> Array:
    """Returns F′_α(p) = [p(1−p)]^(−α/2): how much a small gain of pass rate is worth at p. Needs 0 < p < 1."""
    p = np.asarray(pass_rate, float)
    return (p * (1 - p)) ** (-exponent / 2)


def gradient_mass(
    pass_rates: ArrayLike,
    weights: ArrayLike,
    edges: ArrayLike,
    exponent: float,
    group_size: int | None = None,
    ddof: int = 0,
) -> Array:
    """Returns the share of the batch's drift that comes from prompts in each bin of pass rates.

    Bins are [edges[i], edges[i+1]), and the last is closed. With `group_size` None the limit G → ∞ is taken. The shares
    add up to 1 when the edges span all pass rates.
    """
    p, shares = np.asarray(pass_rates, float), np.asarray(weights, float)
    drifts = asymptotic_drift(p, exponent) if group_size is None else drift(p, group_size, exponent, ddof)
    total = shares @ drifts
    if not total:
        return np.full(len(np.asarray(edges)) - 1, np.nan)
    return np.histogram(p, bins=np.asarray(edges, float), weights=shares * drifts)[0] / total
