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

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

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


def fidelity(
    pass_rate: ArrayLike, group_size: int, exponent: float = 1.0, ddof: int = 0, mean_exponent: float = 0.0
) -> Array:
    """Returns the fidelity φ(G, p): the drift as a share of its limit G → ∞. It is NaN at p = 0 and p = 1."""
    limit = asymptotic_drift(pass_rate, exponent, mean_exponent)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(limit > 0, drift(pass_rate, group_size, exponent, ddof, mean_exponent) / limit, np.nan)


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


def smallest_group_size(
    pass_rates: ArrayLike,
    weights: ArrayLike,
    shortfall: float,
    exponent: float = 1.0,
    ddof: int = 0,
    largest: int = 4096,
    mean_exponent: float = 0.0,
) -> int | None:
    """Returns the smallest G ≥ 2 with mean fidelity ≥ 1 − ε, exactly, or None when `largest` does not reach it.

    The drift is the expectation of x^a·(1−x)^b, where x is the mean of G draws, b = 1 − α/2 and a = b − β. Where a and
    b lie between 0 and 1 this function of x is concave, so the drift grows with G, and a bisection finds the size. For
    other exponents all sizes are tried in turn.
    """

    def enough(group_size: int) -> bool:
        return mean_fidelity(pass_rates, weights, group_size, exponent, ddof, mean_exponent) >= 1 - shortfall

    if not (0 <= exponent <= 2 and 0 <= 1 - exponent / 2 - mean_exponent <= 1):
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


def objective(pass_rate: ArrayLike, exponent: float, mean_exponent: float = 0.0) -> Array:
    """Returns F(p) = ∫ q^(−α/2−β)·(1−q)^(−α/2) dq, the objective that the dials ascend for G → ∞.

    With β = 0, F is p at α = 0, 2·arcsin√p at α = 1, and the log-odds at α = 2. For β = 0 and α < 2 the integral runs
    from 0 to p, and is the incomplete Beta function B(p; 1−α/2, 1−α/2). For α ≥ 2 this integral would be infinite. For
    α ≥ 2 and for every β ≠ 0 the integral runs from ½ to p. At α = 0 and β = 1, which is MaxRL, it is log p − log ½.
    β ≠ 0 needs 0 < p < 1.
    """
    if mean_exponent:
        return _from_half(np.asarray(pass_rate, float), 1 - exponent / 2 - mean_exponent, 1 - exponent / 2)
    x = 2 * np.asarray(pass_rate, float) - 1

    def from_half(x: Array) -> Array:
        return 2 ** (exponent - 1) * x * special.hyp2f1(0.5, exponent / 2, 1.5, x**2)

    return from_half(x) - from_half(np.asarray(-1.0)) if exponent < 2 else from_half(x)


def _from_half(p: Array, a: float, b: float) -> Array:
    """Returns ∫ q^(a−1)·(1−q)^(b−1) dq from ½ to p, for 0 < p < 1.

    The integral is taken by a Gauss-Legendre rule over the log-odds of q, where the integrand is q^a·(1−q)^b.
    """
    nodes, shares = np.polynomial.legendre.leggauss(200)
    ends = special.logit(p)[..., None] / 2
    odds = ends * (nodes + 1)
    return (ends * special.expit(odds) ** a * special.expit(-odds) ** b) @ shares


def weight(pass_rate: ArrayLike, exponent: float, mean_exponent: float = 0.0) -> Array:
    """Returns F′(p) = [p(1−p)]^(−α/2)·p^(−β): how much a small gain of pass rate is worth at p. Needs 0 < p < 1."""
    p = np.asarray(pass_rate, float)
    return (p * (1 - p)) ** (-exponent / 2) * p**-mean_exponent


def gradient_mass(
    pass_rates: ArrayLike,
    weights: ArrayLike,
    edges: ArrayLike,
    exponent: float,
    group_size: int | None = None,
    ddof: int = 0,
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
        drifts = drift(p, group_size, exponent, ddof, mean_exponent)
    total = shares @ drifts
    if not total:
        return np.full(len(np.asarray(edges)) - 1, np.nan)
    return np.histogram(p, bins=np.asarray(edges, float), weights=shares * drifts)[0] / total
