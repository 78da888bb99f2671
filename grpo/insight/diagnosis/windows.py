"""This module estimates means of windows of a series whose successive values resemble each other.

In each window, the values scatter about a straight line of the window's own. Their errors are an AR(1) series of an
unknown correlation, which all windows of the series share, and of the window's own variance. Few values say little
about the correlation. So the half-width of an interval is the mean over all correlations, weighted by their posterior.
"""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from grpo.types import Interval

Array = NDArray[np.float64]

# This is the confidence of every interval of a diagnosis.
CONFIDENCE = 0.99
# The correlations of neighbouring values that are weighed. Their prior weights are 1 minus the correlation.
CORRELATIONS: Array = np.linspace(0.0, 0.9, 10)


class Windows:
    """Windows of `length` values are cut from a series from its end on. They estimate the means of two of them."""

    def __init__(self, values: Array, length: int) -> None:
        self._values, self._length = values, length

    @property
    def last(self) -> Interval:
        """Returns the mean of the last window."""
        return self._of(self._values[-self._length :])

    @property
    def first(self) -> Interval:
        """Returns the mean of the first `length` values."""
        return self._of(self._values[: self._length])

    @property
    def difference(self) -> Interval:
        """Returns the mean of the last window minus that of the first `length` values."""
        return self._of(self._values[-self._length :], self._values[: self._length])

    def _of(self, later: Array, earlier: Array | None = None) -> Interval:
        """Returns the mean of a window, or its difference from the mean of another window."""
        mean, variances = float(later.mean()), self._variances(later)
        freedom = np.full(len(CORRELATIONS), self._length - 2.0)
        if earlier is not None:
            earlier_variances = self._variances(earlier)
            mean -= float(earlier.mean())
            freedom *= (variances + earlier_variances) ** 2 / np.maximum(variances**2 + earlier_variances**2, 1e-300)
            variances = variances + earlier_variances
        half_width = float(self._weights @ (np.sqrt(variances) * stdtrit(np.maximum(freedom, 1), 0.5 + CONFIDENCE / 2)))
        return Interval(mean, mean - half_width, mean + half_width)

    @cached_property
    def _weights(self) -> Array:
        """Returns the posterior weights of the correlations, [correlations].

        The likelihood is the restricted one (Patterson & Thompson, Biometrika 1971), from which the windows' lines are
        integrated out.
        """
        number, length = len(self._values) // self._length, self._length
        windows = self._values[len(self._values) - number * length :].reshape(number, length)
        # A window that does not scatter at all tells nothing of the correlation.
        least = 1e-9 * float(np.var(self._values)) + 1e-300
        score = np.log(1 - CORRELATIONS)
        for scatter, information in zip(*_scatter(windows), strict=True):
            if scatter.min() > least:
                score += 0.5 * np.log((1 - CORRELATIONS**2) / information) - 0.5 * (length - 2) * np.log(scatter)
        weights = np.exp(score - score.max())
        return weights / weights.sum()

    def _variances(self, window: Array) -> Array:
        """Returns the variance of a window's mean [correlations]."""
        [scatter], _ = _scatter(window[None])
        r, number = CORRELATIONS, len(window)
        # The mean of n values scatters more by 1 + 2·Σ(1 − k/n)·r^k, over the distances k of two values.
        correlation_factor = 1 + 2 * r / (1 - r) * (1 - (1 - r**number) / (number * (1 - r)))
        return scatter / max(number - 2, 1) / (1 - r**2) * correlation_factor / number


def _scatter(windows: Array) -> tuple[Array, Array]:
    """Fits a line to each window [windows, values] at each correlation. Returns the sums of squares of the AR(1)
    innovations, and the determinants of the lines' information, [windows, correlations] each.

    The first value and the innovations v_t − r·v_{t−1} of the others are independent and have one variance. So sums of
    their products are polynomials in r, whose coefficients are sums over the window.
    """
    time = np.linspace(-1, 1, windows.shape[1])
    # A line that is taken off changes no residual. The rest is small, so hardly any digit is lost.
    slopes = np.sum(time * windows, axis=1, keepdims=True) / np.sum(time**2)
    residuals = windows - windows.mean(axis=1, keepdims=True) - slopes * time
    columns = np.stack(np.broadcast_arrays(residuals, np.ones_like(time), time), axis=1)
    later, earlier, first = columns[:, :, 1:], columns[:, :, :-1], columns[:, :, :1]
    squares = [part @ part.transpose(0, 2, 1) for part in (first, later, earlier)]
    crossed = later @ earlier.transpose(0, 2, 1)
    # A further axis holds the correlations.
    of_first, of_later, of_earlier, of_both = (
        sums[:, None] for sums in (*squares, crossed + crossed.transpose(0, 2, 1))
    )
    r = CORRELATIONS[:, None, None]
    products = (1 - r**2) * of_first + of_later - r * of_both + r**2 * of_earlier
    information, shared = products[..., 1:, 1:], products[..., 1:, 0]
    explained = np.einsum("wci,wci->wc", shared, np.linalg.solve(information, shared[..., None])[..., 0])
    return np.maximum(products[..., 0, 0] - explained, 0.0), np.linalg.det(information)
