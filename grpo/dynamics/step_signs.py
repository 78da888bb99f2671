"""This module asks of a run's steps whether they harm: whether the loss rises along them when the next samples come.

`step/cosine` is the cosine of a step and of the loss's falling direction on the next, fresh samples. Given the past,
its noise is about symmetric. Let S be the sum of the cosines since some step, and V the sum of their squares. If their
mean is 0, exp(−λS − λ²V/2) is a supermartingale for each λ > 0 (V. de la Peña, Annals of Probability 27, 1999), and a
positive mean makes it smaller. A mean of such processes over λ with a half-normal weight (Robbins, Annals of
Mathematical Statistics 41, 1970), and over the steps at which S begins, is one too. By Ville's inequality it exceeds
1/α at any time of a run with probability α at most. So a run may be asked after each round, and harm may begin late.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, logsumexp

Array = NDArray[np.float64]

# The first cosines tell how large cosines of this model are. Sums begin after them.
FEWEST = 5
# Sums begin at steps in these proportions, so that a few of them are near any step at which harm may begin.
STARTS_RATIO = 1.4
# The mixture over λ expects the harm to show within about this many steps.
EXPECTED = 30


class Harm(NamedTuple):
    """Harm says how sure it is that steps harm.

    evidence    logarithm of the process: harm in a run without any exceeds log(1/α) with probability α at most
    first       index of the cosine from which on it is surest
    z           sum of the cosines since then, in standard errors
    """

    evidence: float
    first: int
    z: float


def harm(cosines: Array) -> Harm | None:
    """Returns how sure it is that the steps of a run harm by now, or None for `FEWEST` cosines or fewer."""
    cosines = cosines[np.isfinite(cosines)]
    if len(cosines) <= FEWEST or not cosines.any():
        return None
    sums, squares = (np.concatenate([[0.0], np.cumsum(values)]) for values in (cosines, cosines**2))
    starts = starts_of(len(cosines))
    # The expected noise comes from the cosines before a start, so that it cannot follow those after it.
    prior = np.maximum(EXPECTED * squares[starts] / starts, 1e-300)
    total, variance = sums[-1] - sums[starts], squares[-1] - squares[starts]
    z = total / np.sqrt(variance + prior)
    logs = np.log(2) + 0.5 * (np.log(prior) - np.log(variance + prior)) + 0.5 * z**2 + log_ndtr(-z)
    order = np.arange(1, len(starts) + 1)
    # These weights add up to less than 1. Sums that have not begun yet are worth 1 each.
    weighted = logs - np.log(order * (order + 1))
    surest = int(weighted.argmax())
    evidence = float(np.logaddexp(logsumexp(weighted), -np.log(len(starts) + 1)))
    return Harm(evidence, int(starts[surest]), float(total[surest] / np.sqrt(max(variance[surest], 1e-300))))


def in_errors(cosines: Array) -> float:
    """Returns the sum of cosines in standard errors of their noise, or 0 for fewer than `FEWEST` of them."""
    cosines = cosines[np.isfinite(cosines)]
    if len(cosines) < FEWEST or not cosines.any():
        return 0.0
    return float(cosines.sum() / np.sqrt(np.sum(cosines**2)))


def starts_of(number: int) -> NDArray[np.int64]:
    """Returns the indices at which sums over this many cosines begin.

    >>> starts_of(20).tolist()
    [5, 7, 9, 13]
    """
    count = max(1, int(np.log(max(number - 1, FEWEST) / FEWEST) / np.log(STARTS_RATIO)) + 1)
    return np.unique((FEWEST * STARTS_RATIO ** np.arange(count)).astype(np.int64))
