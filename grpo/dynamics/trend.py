"""This module follows a reward curve with a damped local linear trend, which needs no law of the curve.

    level(t + d) = level(t) + θ(1 − φ)·rise(t) + Θ(1 − Φ)·slope(t) + noise
    rise(t + d) = φ·rise(t)         slope(t + d) = Φ·slope(t) + noise         φ = exp(−d/θ), Φ = exp(−d/Θ)

The level is the logit of the pass rate. It is moved by a first rise, which only fades, and by a slope that begins at 0.
Level and slope wander at random, by amounts estimated from the curve. Were rise and slope one, the model would miss the
slow decline of a run that rose fast at first, since its slope would have to fade as fast as its rise. Time is counted
in spans: one span is the measured part of the curve, or `FEWEST_ROUNDS` rounds where that is longer. So a forecast one
span ahead is about as uncertain for a short run as for a long one.

Five settings are unknown: θ, the two amounts of wander, the size of the first rise, and a factor on the measured
errors. Forecasts average over a grid of settings, weighted by their posterior probabilities, so nothing is optimized,
and nothing is drawn that the measurements contradict. See Gardner & McKenzie (Management Science 31, 1985) for the
damped trend, Harvey (Forecasting, Structural Time Series Models and the Kalman Filter, 1989) for the filter.

A rise and a fall are not alike. Most runs keep what they have learned, so a curve that is below its present level at a
step is drawn for this step less often than one above it (`fall_probability`).
"""

from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from grpo.dynamics.history import History, noise_factor

Array = NDArray[np.float64]

# The filter takes at most this many steps through the measured curve: rounds are averaged into as many blocks.
BLOCKS = 30
# A span is at least this many rounds long.
FEWEST_ROUNDS = 30
# Setting → its grid and the prior weights. The weights are rounded from those that gave 65 simulated curves and 49
# public logs the best interval score (benchmarks/forecasts.py measures it on other simulated curves).
PRIORS = {
    # The relaxation time θ of the first rise, in spans.
    "damping": ((0.06, 0.2, 0.5, 1.2), (0.1, 0.1, 0.2, 0.6)),
    # The standard deviation of the level's own steps over one span, in logits. The last one follows a collapse.
    "level_wander": ((1e-3, 0.2, 0.45, 0.8, 2.5), (0.25, 0.55, 0.1, 0.09997, 0.00003)),
    # The standard deviation of the slope about 0 in the long run, in logits a span.
    "slope_wander": ((0.03, 0.55, 2.0), (0.15, 0.81, 0.04)),
    # The standard deviation of the first rise's slope times θ, which is how far it leads, in logits.
    "first_rise": ((0.1, 1.5, 4.0), (0.1, 0.8, 0.1)),
    # The factor on the variance of the measured errors.
    "noise": ((0.5, 1.0, 1.8, 4.0), (0.65, 0.05, 0.15, 0.15)),
}
# Every combination, [5, settings], and the logarithm of its prior weight, [settings].
SETTINGS: Array = np.array(list(product(*(grid for grid, _ in PRIORS.values())))).T
LOG_PRIOR: Array = np.log(list(product(*(weights for _, weights in PRIORS.values())))).sum(axis=1)
# The relaxation time Θ of the slope that wanders, in spans.
PERSISTENCE = 1.2
# Training raises pass rates more often than it lowers them: the first rise's mean, in its standard deviations.
LEAN = 1.0
# Runs that keep what they have learned still fall a little, by exponentially distributed logits with mean `MEAN_FALL`.
# The other runs, a share of `LOSING`, fall as easily as they rise.
MEAN_FALL, LOSING = 0.4, 0.1
# A curve surely held the level that lies this many standard deviations below its estimated level.
SURE = 2.0
# This many candidates are drawn for each returned curve. Which are returned depends on the probability of their falls.
CANDIDATES = 4
# The prior standard deviation of the first level about a pass rate of one half, in logits.
FIRST_LEVEL = 2.0
# A logit is linearized about the plain mean of `NEIGHBOURS` blocks, whose Bernoulli variance counts as at least
# `LEAST_VARIANCE`. A mean weighted by information would follow the surest blocks, those at 0 and 1, in a collapse.
NEIGHBOURS, LEAST_VARIANCE = 5, 0.02
# A block's weight in the likelihood of the settings falls to 1/e over this many spans of age: a curve that rose fast
# and then settled wanders as little as it did lately.
MEMORY = 1.0
# A wild block counts as at most this squared distance, in units of its variance. The `NEWEST` blocks count in full, so
# that a collapse is followed as soon as it is seen.
FARTHEST, NEWEST = 20.0, 2
# A drawn curve that is farther than this from the last block, in standard errors, is left out (p = .0001). The nearest
# candidates, a share of `NEAREST`, are always kept.
CONTRADICTION, NEAREST = 3.89, 0.025
# Curves no longer change this many spans ahead: by then they have wandered so far that a forecast knows nothing.
FARTHEST_AHEAD = 300


@dataclass(frozen=True, slots=True)
class Candidates:
    """Candidates are curves that the trend draws and the last block does not contradict.

    rates    [curves, steps] pass rates
    likely   [curves, steps] probability, up to a factor, of the curve's fall until this step (`fall_probability`)
    errors   [curves] standard error of one measured round under each curve
    """

    rates: Array
    likely: Array
    errors: Array

    def kept(self, number: int) -> NDArray[np.int_]:
        """Returns the indices [number, steps] of the curves that are drawn for each step, by their falls until it.

        They are drawn evenly (systematic resampling), which adds no noise of its own.
        """
        places = (np.arange(number) + 0.5) / number
        sums = np.cumsum(self.likely, axis=0).T
        return np.array([np.searchsorted(of_step, places * of_step[-1]) for of_step in sums]).T


@dataclass(frozen=True, slots=True)
class Trend:
    """A trend holds where a curve stands, for each setting of the grid.

    weights     [settings] posterior probabilities of the settings
    mean        [settings, 3] level, slope of the first rise, and slope that wanders, at the last block
    covariance  [settings, 3, 3] of these
    kept_level  [settings] highest level that the curve surely held (see `SURE`)
    now         step of the last block
    span        optimizer steps of one span
    error       median standard error of a round's pass rate, before the setting's factor on its variance
    pace        median number of optimizer steps from round to round
    last        pass rate of the last block
    last_error  its standard error, before the setting's factor on its variance
    """

    weights: Array
    mean: Array
    covariance: Array
    kept_level: Array
    now: float
    span: float
    error: float
    pace: float
    last: float
    last_error: float

    def draws(self, steps: Array, number: int, seed: int = 0) -> tuple[Array, Array]:
        """Draws curves at `steps`, which ascend and do not lie before `now`. The last block contradicts none of them.

        Returns the pass rates [number, steps] and the standard error [number] of one measured round under each draw.
        """
        candidates = self.candidates(steps, number, seed)
        kept = candidates.kept(number)[:, -1]
        return candidates.rates[kept], candidates.errors[kept]

    def candidates(self, steps: Array, number: int, seed: int = 0) -> Candidates:
        """Draws `CANDIDATES` times `number` curves at `steps`. Beyond `FARTHEST_AHEAD` spans they stay where they
        are."""
        generator = np.random.default_rng(seed)
        size = CANDIDATES * number
        setting_indices = generator.choice(len(self.weights), size=size, p=self.weights)
        root = np.linalg.cholesky(self.covariance[setting_indices] + 1e-12 * np.eye(3))
        states = self.mean[setting_indices] + np.einsum("nij,nj->ni", root, generator.standard_normal((size, 3)))
        start, rise, slope = states.T
        damping, level_wander, slope_wander, _, noise = SETTINGS[:, setting_indices]
        level, loss = start, np.maximum(self.kept_level[setting_indices] - start, 0.0)
        now, rates, likely = 0.0, [], []
        for ahead in np.minimum((np.asarray(steps, float) - self.now) / self.span, FARTHEST_AHEAD):
            # More pieces would only widen what is drawn 300 spans ahead, by 3 %.
            pieces = min(int(np.ceil(max(ahead - now, 0.0) * BLOCKS)), BLOCKS)
            for _ in range(pieces):
                gap = (ahead - now) / pieces
                kept_share = np.exp(-gap / PERSISTENCE)
                level = level + PERSISTENCE * (1 - kept_share) * slope
                level = level + level_wander * np.sqrt(gap) * generator.standard_normal(size)
                slope = kept_share * slope + slope_wander * np.sqrt(1 - kept_share**2) * generator.standard_normal(size)
            now = max(now, ahead)
            end = level + damping * (1 - np.exp(-now / damping)) * rise
            rates.append(expit(end))
            likely.append(fall_probability(loss + np.maximum(start - end, 0.0)))
        distance = np.abs(expit(start) - self.last) / (self.last_error * np.sqrt(noise))
        near = distance <= max(CONTRADICTION, np.quantile(distance, NEAREST))
        return Candidates(np.array(rates).T[near], np.array(likely).T[near], self.error * np.sqrt(noise[near]))


def follow(history: History, span: float | None = None) -> Trend:
    """Estimates the trend of a history of at least two rounds. `span` sets a span's length in optimizer steps."""
    errors = history.errors * np.sqrt(noise_factor(history.values))
    pace = max(float(np.median(np.diff(history.steps))), 1e-9)
    span = span or max(float(np.ptp(history.steps)), FEWEST_ROUNDS * pace)
    steps, values, uncertain = _blocks(history.steps, history.values, errors)
    levels, variances = _logits(values, uncertain)
    first_slope, noise = SETTINGS[3] / SETTINGS[0], SETTINGS[4]
    mean = np.stack([np.zeros_like(first_slope), LEAN * first_slope, np.zeros_like(first_slope)], axis=1)
    covariance = np.zeros((len(first_slope), 3, 3))
    covariance[:, 0, 0], covariance[:, 1, 1] = FIRST_LEVEL**2, first_slope**2
    score, kept_level = LOG_PRIOR.copy(), np.full(len(LOG_PRIOR), -np.inf)
    gaps = np.diff(steps, prepend=steps[0]) / span
    recency = np.exp((steps - steps[-1]) / span / MEMORY)
    farthest = np.where(np.arange(len(steps)) < len(steps) - NEWEST, FARTHEST, np.inf)
    for gap, level, variance, weight, most in zip(gaps, levels, variances, recency, farthest, strict=True):
        mean, covariance = _moved(mean, covariance, gap)
        total = covariance[:, 0, 0] + variance * noise
        miss = level - mean[:, 0]
        score -= 0.5 * weight * (np.log(total) + np.minimum(miss**2 / total, most))
        gain = covariance[:, :, 0] / total[:, None]
        mean = mean + gain * miss[:, None]
        covariance = covariance - gain[:, :, None] * covariance[:, None, 0, :]
        kept_level = np.maximum(kept_level, mean[:, 0] - SURE * np.sqrt(covariance[:, 0, 0]))
    weights = np.exp(score - score.max())
    error = float(np.median(errors))
    last = float(values[-1]), float(uncertain[-1])
    return Trend(weights / weights.sum(), mean, covariance, kept_level, float(steps[-1]), span, error, pace, *last)


def fall_probability(falls: Array) -> Array:
    """Returns the probability, up to a factor, that a run falls by this many logits, earlier falls included.

    The probability is a mixture over runs that keep what they learned and runs that lose it. So a run that has fallen
    far already counts as one that loses it, and its forecast follows the trend alone.

    >>> fall_probability(np.array([0.0, 0.25, 1.0, 5.0])).round(2).tolist()
    [1.0, 0.58, 0.17, 0.1]
    """
    return LOSING + (1 - LOSING) * np.exp(-falls / MEAN_FALL)


def _moved(mean: Array, covariance: Array, gap: float) -> tuple[Array, Array]:
    """Predicts level, rise and slope one gap (in spans) ahead. The slope's wander moves the level too."""
    damping, level_wander, slope_wander, _, _ = SETTINGS
    rise_kept, slope_kept = np.exp(-gap / damping), float(np.exp(-gap / PERSISTENCE))
    rise_gain, slope_gain, slope_noise = (
        damping * (1 - rise_kept),
        PERSISTENCE * (1 - slope_kept),
        slope_wander**2 * (1 - slope_kept**2),
    )
    # Each row of the covariance after the level has moved, and before the slopes have faded.
    with_level = covariance[:, 0] + rise_gain[:, None] * covariance[:, 1] + slope_gain * covariance[:, 2]
    wider = np.empty_like(covariance)
    level_variance = with_level[:, 0] + rise_gain * with_level[:, 1] + slope_gain * with_level[:, 2]
    wider[:, 0, 0] = level_variance + level_wander**2 * gap + slope_noise * gap**2 / 3
    wider[:, 0, 1] = wider[:, 1, 0] = rise_kept * with_level[:, 1]
    wider[:, 0, 2] = wider[:, 2, 0] = slope_kept * with_level[:, 2] + slope_noise * gap / 2
    wider[:, 1, 1] = rise_kept**2 * covariance[:, 1, 1]
    wider[:, 1, 2] = wider[:, 2, 1] = rise_kept * slope_kept * covariance[:, 1, 2]
    wider[:, 2, 2] = slope_kept**2 * covariance[:, 2, 2] + slope_noise
    level = mean[:, 0] + rise_gain * mean[:, 1] + slope_gain * mean[:, 2]
    return np.stack([level, rise_kept * mean[:, 1], slope_kept * mean[:, 2]], axis=1), wider


def _blocks(steps: Array, values: Array, errors: Array) -> tuple[Array, Array, Array]:
    """Averages neighbouring rounds, weighted by 1/error², into at most `BLOCKS` (step, value, error)."""
    parts = np.array_split(np.arange(len(steps)), min(BLOCKS, len(steps)))
    weights = [errors[part] ** -2.0 for part in parts]
    means = [np.average(values[part], weights=part_weights) for part, part_weights in zip(parts, weights, strict=True)]
    sizes = [part_weights.sum() ** -0.5 for part_weights in weights]
    return np.array([steps[part].mean() for part in parts]), np.array(means), np.array(sizes)


def _logits(values: Array, errors: Array) -> tuple[Array, Array]:
    """Returns the logits of pass rates, linearized about their running mean, and the variances of these logits.

    A logit is not linear, so logits of noisy rates are biased towards 0. To first order about the mean m of the
    neighbouring rates, the logit of a rate p is logit m + (p − m)/(m(1 − m)), which averages without bias (the working
    response of McCullagh & Nelder, Generalized Linear Models, 1989). Half a success and half a failure are added to m,
    and m keeps at least its own standard error from 0 and from 1. Nearer to them the logit is so steep that a measured
    0 or 1 would tell nothing.
    """
    window = np.ones(min(NEIGHBOURS, len(values)))
    number = np.convolve(np.ones(len(values)), window, "same")
    nearby_rate = np.clip(np.convolve(values, window, "same") / number, 0, 1)
    standard_error = np.sqrt(np.convolve(errors**2, window, "same")) / number
    tried = np.maximum(nearby_rate * (1 - nearby_rate), LEAST_VARIANCE) / standard_error**2
    least = np.minimum(standard_error, 0.5)
    nearby_rate = np.clip((nearby_rate * tried + 0.5) / (tried + 1), least, 1 - least)
    slope = nearby_rate * (1 - nearby_rate)
    return logit(nearby_rate) + (values - nearby_rate) / slope, np.maximum((errors / slope) ** 2, 1e-5)
