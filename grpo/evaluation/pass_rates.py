"""This module computes pass rates and their confidence intervals, with the problem as the sampling unit.

Samples of one problem are correlated (an easy problem is solved every time), so n problems with m samples
each carry far less information than n·m independent observations. All intervals here resample or count problems.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from grpo.config import UserError
from grpo.types import Interval

# Intervals cover this share, unless a caller corrects for several comparisons.
LEVEL = 0.95
_NUM_RESAMPLES = 9999
# With fewer seeds than this, reports draw no conclusion about other seeds from `crossed_difference`.
FEWEST_SEEDS = 3
# Reports advise to ask more problems where a change is not clear and there are fewer than this.
FEWEST_PROBLEMS = 20
# Drawing this many resamples at once bounds memory to this many times the number of problems.
_RESAMPLE_BATCH = 500
_SEED = 0
# A mean square below this share of another one is float rounding, and so is a mean of pass rates below this.
_ROUNDING = 1e-12


def pass_at_k(n: int, c: int, k: int) -> float:
    """Estimates, without bias, the probability that at least one of `k` samples is correct when `c` of `n` were.

    The formula is 1 − C(n−c, k) / C(n, k) of Chen et al. 2021 (arXiv:2107.03374), computed in whole numbers and
    rounded once. Raises `UserError` when fewer than `k` samples were drawn.

    >>> pass_at_k(4, 2, 2)
    0.8333333333333334
    """
    if not 1 <= k <= n:
        raise UserError(
            f"pass@{k} needs at least {max(k, 1)} samples of each problem and there are {n}: "
            "raise evaluation.samples_per_problem or change evaluation.pass_at"
        )
    return (math.comb(n, k) - math.comb(n - c, k)) / math.comb(n, k)


def mean_interval(correct_counts: Sequence[int], totals: Sequence[int]) -> Interval:
    """Returns pass@1, the mean over problems of the share of correct samples: `pass_at_k_interval` with k = 1."""
    return pass_at_k_interval(correct_counts, totals, 1)


def pass_at_k_interval(correct_counts: Sequence[int], totals: Sequence[int], k: int) -> Interval:
    """Returns pass@k, the mean over problems of `pass_at_k`, with a confidence interval of coverage `LEVEL`.

    `correct_counts[i]` of `totals[i]` samples of problem i are correct. With one sample of each problem, the interval
    is Wilson's. With several, it is the BCa bootstrap over problems, with a fixed seed. When all problems have the same
    rate, resampling shows no spread, so the interval is Wilson's with one sample of each problem. That is wide enough,
    since no variable in [0, 1] varies more than a coin with the same mean.
    """
    rates = np.array([pass_at_k(n, c, k) for c, n in zip(correct_counts, totals, strict=True)])
    if rates.size == 0:
        raise ValueError("no problems were evaluated")
    if np.all(rates == rates[0]) or all(n == 1 for n in totals):
        return _wilson(rates)
    return _bootstrap(rates)


class PairedChange(NamedTuple):
    """A paired change says how far problems' pass rates moved, how many got better and worse, and how sure that is.

    `p` is the two-sided p-value of no change. It is below 1 − level exactly when the interval excludes 0.
    """

    interval: Interval
    better: int
    worse: int
    p: float


def paired_change(before: Sequence[float], after: Sequence[float], level: float = LEVEL) -> PairedChange:
    """Tests the mean change of the problems' pass rates, after − before, by the paired randomization test.

    `before[i]` and `after[i]` belong to the same problem. Without a true change the two could be exchanged, so every
    choice of signs for the differences is as likely as the measured one (Fisher 1935). Turning the signs of some
    problems' differences makes their mean 0 or less exactly where the mean over these problems is 0 or more, so the
    same means give the interval: its ends are quantiles of the mean over random subsets of the problems (Hartigan,
    JASA 64, 1969). Up to 13 problems all subsets are taken. The interval reaches over everything possible where so few
    problems decide nothing, and has no width where all of more than five changed equally.

    benchmarks/paired_change.py simulated 8, 23 and 100 problems, asked once or four times. Without a true change one
    was found in at most 5.0 % of the evaluations, where Student's t found it in up to 6.3 % and the bootstrap (BCa) in
    up to 10.7 %. A true change was found at least as often as by the sign test. From 23 problems on, 92 to 97 % of the
    intervals held the true change.
    """
    if len(before) != len(after) or len(after) == 0:
        raise ValueError(f"rates of {len(before)} and {len(after)} problems are not pairs")
    differences = np.subtract(after, before, dtype=float)
    means = _subset_means(differences)
    means = np.sort(np.where(np.abs(means) > _ROUNDING, means, 0.0))
    total, value = len(means) + 1, float(differences.mean())
    # The empty subset stands for the measured signs. It is as extreme as possible on either side.
    p = min(1.0, 2 * (1 + int(min(np.sum(means <= 0), np.sum(means >= 0)))) / total)
    outside = math.ceil((1 - level) / 2 * total - _ROUNDING) - 1
    low, high = (means[outside - 1], means[-outside]) if outside > 0 else (-1.0, 1.0)
    better, worse = int(np.sum(differences > 0)), int(np.sum(differences < 0))
    return PairedChange(Interval(value, min(float(low), value), max(float(high), value)), better, worse, p)


def _subset_means(differences: np.ndarray) -> np.ndarray:
    """Returns the mean over each subset of the differences but the empty one, or over random ones if there are many."""
    count = len(differences)
    if 2**count <= _NUM_RESAMPLES + 1:
        chosen = (np.arange(1, 2**count)[:, None] >> np.arange(count)) & 1
        return chosen @ differences / chosen.sum(axis=1)
    generator, means = np.random.default_rng(_SEED), []
    for begin in range(0, _NUM_RESAMPLES, _RESAMPLE_BATCH):
        chosen = generator.random((min(_RESAMPLE_BATCH, _NUM_RESAMPLES - begin), count)) < 0.5
        # More than 13 problems are all left out in less than one draw of ten thousand, which then counts for all.
        chosen[~chosen.any(axis=1)] = True
        means.append(chosen @ differences / chosen.sum(axis=1))
    return np.concatenate(means)


def _wilson(rates: np.ndarray) -> Interval:
    """Returns Wilson's score interval for the mean of `rates`, in closed form. Their sum need not be a whole number."""
    rate, count = float(rates.mean()), rates.size
    z = float(stats.norm.ppf((1 + LEVEL) / 2))
    middle = rate + z**2 / (2 * count)
    half = z * math.sqrt(rate * (1 - rate) / count + (z / (2 * count)) ** 2)
    low, high = ((middle + end) / (1 + z**2 / count) for end in (-half, half))
    # At a rate of 0 or 1 the end is exact in theory, but rounding would move it.
    return Interval(rate, low if rate else 0.0, high if rate < 1 else 1.0)


def _bootstrap(values: np.ndarray) -> Interval:
    bounds = stats.bootstrap(
        (values,),
        np.mean,
        confidence_level=LEVEL,
        n_resamples=_NUM_RESAMPLES,
        batch=_RESAMPLE_BATCH,
        method="BCa",
        rng=_SEED,
    ).confidence_interval
    return Interval(float(values.mean()), float(bounds.low), float(bounds.high))


def crossed_difference(differences: Sequence[Sequence[float]], level: float = LEVEL) -> tuple[Interval, float]:
    """Returns the mean of paired differences [seeds, problems] with an interval, and the two-sided p-value of no
    difference.

    Student's t over the seeds, widened by the variation between problems, which all seeds share. Each cell is a mean
    plus random effects of its seed, of its problem, and of the two together. The variance of the overall mean is
    (MS_seeds + MS_problems − MS_rest)/(seeds·problems) with the mean squares of a two-way analysis of variance, where
    MS_problems − MS_rest is at least 0. The degrees of freedom are the seeds' alone, so few seeds give wide intervals.
    Without a true difference, p ≤ x has at most probability x, and less where problems vary more than seeds. With one
    seed, the interval includes the variation between problems only, and says nothing of other seeds.
    """
    cells = np.asarray(differences, float)
    (num_seeds, num_problems), value = cells.shape, float(cells.mean())
    if np.ptp(cells) <= _ROUNDING:
        # All differences are equal, so p is that of a sign test over the seeds.
        return Interval(value, value, value), min(1.0, 2.0 ** (1 - num_seeds)) if abs(value) > _ROUNDING else 1.0
    by_seed, by_problem = cells.mean(1, keepdims=True) - value, cells.mean(0, keepdims=True) - value
    residuals = cells - value - by_seed - by_problem
    freedom = num_seeds - 1 or num_problems - 1
    of_seeds = num_problems * np.square(by_seed).sum() / max(num_seeds - 1, 1)
    of_problems = num_seeds * np.square(by_problem).sum() / max(num_problems - 1, 1)
    of_rest = np.square(residuals).sum() / max((num_seeds - 1) * (num_problems - 1), 1)
    between = of_seeds + max(of_problems - of_rest, 0.0)
    # The means of a few seeds may be equal by chance, up to rounding. Their variation is then estimated by the rest.
    error = math.sqrt((between if between > _ROUNDING * of_rest else of_rest) / cells.size)
    half_width = float(stats.t.ppf((1 + level) / 2, freedom)) * error
    return Interval(value, value - half_width, value + half_width), float(2 * stats.t.sf(abs(value) / error, freedom))


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns p-values corrected for multiple comparisons (Holm 1979), in the order given.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values)
    steps = np.asarray(p_values)[order] * np.arange(len(p_values), 0, -1)
    corrected = np.empty(len(p_values))
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(steps))
    return [float(p) for p in corrected]


def geometric_ratio(ours: Sequence[float], base: Sequence[float], level: float = LEVEL) -> Interval:
    """Returns the geometric mean of the ratios `ours` / `base` with its interval (Student's t on the logarithms).

    For a single pair the interval has no width.
    """
    logs = np.log(np.asarray(ours, float) / np.asarray(base, float))
    half = stats.t.ppf((1 + level) / 2, len(logs) - 1) * stats.sem(logs) if len(logs) > 1 else 0.0
    return Interval(*(float(np.exp(log)) for log in (logs.mean(), logs.mean() - half, logs.mean() + half)))


def ratio_p_value(ours: Sequence[float], base: Sequence[float]) -> float:
    """Returns the two-sided p-value of no difference between paired numbers (Student's t on their ratios' logarithms).

    If all ratios are equal, it is that of a sign test, so a single pair gives 1.
    """
    logs = np.log(np.asarray(ours, float) / np.asarray(base, float))
    if np.all(logs == logs[0]):
        return min(1.0, 2.0 ** (1 - len(logs))) if logs[0] else 1.0
    return float(stats.ttest_1samp(logs, 0.0).pvalue)
