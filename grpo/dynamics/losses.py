"""This module judges whether a run that trains has lost what its policy could do: by its pass rate and by its steps.

A pass rate alone cannot tell a loss from rounds whose prompts are harder. The gain of steps can (`step_signs`): while
they help, a fall of the pass rate is due to the prompts. Where they harm, a small fall is the beginning of a loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo.dynamics.step_signs import FEWEST, harm, in_errors

Array = NDArray[np.float64]

# A slow loss is a fall of means of `WINDOW` rounds. How far they wander is measured `APART` rounds apart.
WINDOW, APART = 10, 20


@dataclass(frozen=True, slots=True)
class LossRule:
    """A loss rule says which falls of the pass rate are losses.

    fall, least_fall, least_share   a fall exceeds all three: so many standard errors, so much pass rate, and this share
                  of the recent best, since a healthy policy fluctuates a little
    deep          share of the recent best beyond which a fall is a loss whatever the steps gain
    against       sum of the cosines since the best round, in standard errors, below which a fall is a loss
    slow, early   fall of the mean of `WINDOW` rounds, in units of how far such means wander by themselves, that is a
                  loss if it also exceeds `least_fall` and the cosines are `against` the run, or if it exceeds
                  `early_fall` and steps surely harm
    by_chance     probability that steps of a run that do not harm ever count as sure to
    """

    fall: float = 4.0
    least_fall: float = 0.1
    least_share: float = 0.3
    deep: float = 0.6
    against: float = -2.6
    early_fall: float = 0.05
    slow: float = 5.0
    early: float = 2.0
    by_chance: float = 0.05


class Course(NamedTuple):
    """A course is what a run has measured since it began, last went back, or was acted on.

    rates        pass rate of each round
    cosines      `step/cosine` of each round that has one
    since_best   number of these after the best policy was sampled
    """

    rates: Array
    cosines: Array
    since_best: int


def is_lost(rule: LossRule, best: float, now: float, error: float, course: Course) -> bool:
    """Tells whether a policy with pass rate `now` has lost what the best one with pass rate `best` could do.

    `error` is the standard error of their difference. A run that logs no cosines is judged by its pass rate alone.
    """
    loss, cosines = best - now, course.cosines
    fallen = loss > max(rule.fall * error, rule.least_fall, rule.least_share * best)
    if len(cosines) < FEWEST or (fallen and loss > rule.deep * best):
        return fallen
    since_best = in_errors(cosines[len(cosines) - course.since_best :])
    slow_fall, wander = fall_of_means(course.rates)
    if since_best < rule.against and (fallen or slow_fall > max(rule.least_fall, rule.slow * wander)):
        return True
    if slow_fall <= max(min(rule.early_fall, rule.least_share * best), rule.early * wander):
        return False
    sign = harm(cosines)
    return sign is not None and sign.evidence > -np.log(rule.by_chance)


def fall_of_means(rates: Array) -> tuple[float, float]:
    """Returns how far the mean of the last rounds is below the best such mean, and how far means wander by themselves.

    How far they wander is measured by second differences over `APART` rounds, which a steady rise or fall leaves at 0.
    Both are 0 for fewer rounds than that takes.
    """
    if len(rates) < WINDOW + 2 * APART:
        return 0.0, 0.0
    means = np.convolve(rates, np.full(WINDOW, 1 / WINDOW), "valid")
    bends = means[2 * APART :] - 2 * means[APART:-APART] + means[: -2 * APART]
    # Of independent means a second difference has six times the variance.
    return float(means.max() - means[-1]), float(np.sqrt(np.mean(bends**2) / 6))
