"""This module judges whether a run that trains has lost what its policy could do: by its pass rate and by its steps.

A pass rate alone cannot tell a loss from rounds whose prompts are harder. The gain of steps can (`step_signs`): while
they help, a fall of the pass rate is due to the prompts. Where they harm, a small fall is the beginning of a loss.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo.dynamics.step_signs import FEWEST, harm, in_errors

Array = NDArray[np.float64]

# A slow loss is a fall of means of `WINDOW` rounds. How far they wander is measured `APART` rounds apart.
WINDOW, APART = 10, 20
# A fall's weight counts so many wanders at most, and each standard error of the cosines as so many wanders. These and
# `LossRule` were chosen on simulated runs with 1 % of healthy ones in view (benchmarks/losses.py).
MOST_WANDERS, COSINES_COUNT, LEAST_WANDER = 6.0, 2.0, 1e-6


@dataclass(frozen=True, slots=True)
class LossRule:
    """A loss rule says which falls of the pass rate are losses.

    fall, least_fall, least_share   a fall exceeds all three: so many standard errors, so much pass rate, and this share
                  of the recent best, since a healthy policy fluctuates a little
    deep          share of the recent best beyond which a fall is a loss whatever the steps gain
    against       sum of the cosines since the best rounds, in standard errors, below which a fall is a loss
    slow_fall     fall of the mean of `WINDOW` rounds beyond which it is a loss if its `weight` exceeds `sure`
    early_fall, early   smaller fall of that mean, in pass rate and in units of how far such means wander by themselves,
                  that is a loss if steps surely harm
    by_chance     probability that steps of a run that do not harm ever count as sure to
    """

    fall: float = 4.0
    least_fall: float = 0.1
    least_share: float = 0.3
    deep: float = 0.6
    against: float = -2.6
    slow_fall: float = 0.08
    sure: float = 10.0
    early_fall: float = 0.05
    early: float = 4.0
    by_chance: float = 0.05


class Course(NamedTuple):
    """A course is what a run has measured since it began, last went back, or was acted on.

    rates     [rounds] pass rate
    cosines   [rounds] `step/cosine`, 0 where a round has none
    """

    rates: Array
    cosines: Array


class Fall(NamedTuple):
    """A fall is that of the mean of the last `WINDOW` rounds below the best such mean.

    size      the fall
    wander    how far such means wander by themselves
    against   sum of the cosines since the middle of the best rounds, in standard errors
    """

    size: float
    wander: float
    against: float

    @property
    def weight(self) -> float:
        """Returns how much speaks for a loss: the fall in units of the wander, and the cosines against the run.

        Data of another kind make a pass rate fall by any number of wanders, so these count up to `MOST_WANDERS` only.
        """
        return min(self.size / max(self.wander, LEAST_WANDER), MOST_WANDERS) - COSINES_COUNT * self.against


def is_lost(rule: LossRule, best: float, now: float, error: float, course: Course) -> bool:
    """Tells whether a policy with pass rate `now` has lost what the best one with pass rate `best` could do.

    `error` is the standard error of their difference. A run that logs no cosines is judged by its pass rate alone.
    """
    loss = best - now
    fallen = loss > max(rule.fall * error, rule.least_fall, rule.least_share * best)
    if np.count_nonzero(course.cosines) < FEWEST or (fallen and loss > rule.deep * best):
        return fallen
    slow = fall_of_means(course)
    if fallen and slow.against < rule.against:
        return True
    if slow.size > rule.slow_fall and slow.weight > rule.sure:
        return True
    if slow.size <= max(min(rule.early_fall, rule.least_share * best), rule.early * slow.wander):
        return False
    sign = harm(course.cosines)
    return sign is not None and sign.evidence > -np.log(rule.by_chance)


def fall_of_means(course: Course) -> Fall:
    """Returns how far the mean of the last rounds is below the best such mean.

    How far such means wander is measured by the median of second differences over `APART` rounds. A steady rise or fall
    leaves them at 0, and the turn from one to the other enlarges few. For fewer rounds size and wander are 0.
    """
    rates, window = course.rates, min(WINDOW, len(course.rates))
    means = np.convolve(rates, np.full(window, 1 / window), "valid")
    against = in_errors(course.cosines[int(means.argmax()) + window // 2 :])
    if len(rates) < WINDOW + 2 * APART:
        return Fall(0.0, 0.0, against)
    bends = means[2 * APART :] - 2 * means[APART:-APART] + means[: -2 * APART]
    # Of independent means a second difference has six times the variance, and half of its sizes are below .6745 of it.
    return Fall(float(means.max() - means[-1]), float(np.median(np.abs(bends)) / 0.6745 / 6**0.5), against)
