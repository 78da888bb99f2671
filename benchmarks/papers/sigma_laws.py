"""This module holds further laws of σ (arXiv:2607.00152), which the papers' figures need and no decision does.

The dials α and β are those of `grpo.dynamics.sigma`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from grpo.dynamics.sigma import asymptotic_drift, drift, mean_fidelity

Array = NDArray[np.float64]


def fidelity(
    pass_rate: ArrayLike, group_size: int, exponent: float = 1.0, ddof: int = 0, mean_exponent: float = 0.0
) -> Array:
    """Returns the fidelity φ(G, p): the drift as a share of its limit G → ∞. It is NaN at p = 0 and p = 1."""
    limit = asymptotic_drift(pass_rate, exponent, mean_exponent)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(limit > 0, drift(pass_rate, group_size, exponent, ddof, mean_exponent) / limit, np.nan)


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
