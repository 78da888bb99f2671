"""This module estimates what an optimizer step gains, from products of steps with the gradients that come after them.

A gradient pushes the weights along its signal, which gains A, and along its noise, which gains nothing. In curved
ground a push lowers the slope that later gradients find along it, by C once it has acted in full: the **heat** of the
step. Adam's momentum β lets a push act bit by bit, by 1 − βᵏ after k steps. So the product of a gradient with one that
comes k steps later is on average A − C·(1 − βᵏ), and a push gains A − C/2 in all. The product of the last step with a
new gradient averages over the ages in its momentum, and that of a path of n steps over those in the path. Both are
A − w·C, with weights w that follow from β (`weight_of_heat`).

In steep directions the weights move about a balance, where later steps win back what earlier ones lost. There heat
changes the products by (½ − w)·C, and costs nothing. If steps pay the share s of all heat, the products are

    A − C·(½ + (w − ½)/s)    with C the heat that is paid.

So two products with different w tell A and C apart (`grpo.learner.step_products` measures them), and the gain A − C/2
is close to the product of the last step, whose w is 1/(1 + β).

Under Adam a step is as long whatever its batch. So A grows with the signal-to-noise ratio of the step's gradient, its
**aim** (`grpo.dynamics.step`), and C does not depend on the batch. A rate f times as high multiplies A by f, and C by
f². With A and C at one batch and rate, the gain at all others is known:

    gain(aim, f) = A·aim·f − C·f²/2.

Where a step costs in proportion to its completions, and its aim grows with their root, tokens buy most at C = A. To
test the sign of a product is Pflug's rule (G. Pflug, 1983); under momentum that of the last step is positive there.

Two things are approximate. `PAID`, the share s, is not measured in a run: the value is one at which the model chooses
well on the tiny model (benchmarks/results/schedule.md). And the two products of a round share a gradient, but count as
independent.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from grpo.types import RoundStatistics
from grpo.types import metrics as m

# Measurements lose this share of their weight with each step, since signal and heat belong to the present policy.
FORGETTING = 1 / 64
# Before anything is measured, heat over signal at the first batch is distributed about this value as a log-normal
# variable with this standard deviation: the configured batch is taken to be about right.
PRIOR_HEAT, PRIOR_SPREAD = 0.5, 1.2
# Steps pay this share of the heat.
PAID = 0.25

# A change of batch or rate must be right with this probability.
CERTAIN = 0.9

HEATS: NDArray[np.float64] = np.geomspace(0.02, 50, 121)


@cache
def weight_of_heat(momentum: float, steps: int) -> float:
    """Returns the weight w of the heat in the product A − w·C of a path of `steps` steps with the next gradient.

    A gradient of age a is in the path with the part of its push that fell into it, 1 − βᵃ if the path is older.

    >>> round(weight_of_heat(0.9, 1), 6), round(weight_of_heat(0.9, 1000), 2), weight_of_heat(0.0, 1)
    (0.526316, 1.0, 1.0)
    """
    ages = np.arange(1, steps + 400)
    acted = 1 - momentum**ages
    inside = np.where(ages <= steps, acted, momentum ** np.maximum(ages - steps, 0) - momentum**ages)
    return float(inside @ acted / steps)


@dataclass(frozen=True, slots=True)
class Products:
    """Products are what a run has measured so far: sums over its rounds, of which older ones have less weight.

    A measurement y = aim·λ·A − w·λ²·C has the variance v, with λ the length of the step and w the weight of the heat
    that is paid. The sums over 1/v are of

    signals   (aim·λ)²
    crossed   aim·λ · w·λ²
    heats     (w·λ²)²
    aimed     aim·λ · y
    heated    w·λ² · y
    squares   y²

    and `number` counts the measurements. `length` is the λ of the last round that had some.
    """

    signals: float = 0.0
    crossed: float = 0.0
    heats: float = 0.0
    aimed: float = 0.0
    heated: float = 0.0
    squares: float = 0.0
    number: float = 0.0
    length: float = 0.0

    def after(self, statistics: RoundStatistics, aim: float, momentum: float) -> Products:
        """Returns the products after a round whose steps were aimed with `aim`."""
        steps = statistics.plan.refresh_interval
        sums = np.array([getattr(self, name) for name in SUMS]) * (1 - FORGETTING) ** steps
        values = {name: mean.value for name, mean in statistics.means.items() if name in NAMES and mean.count}
        length, last_length = values.get(m.STEP_LENGTH, 0.0), self.length
        for kind in ("step", "path"):
            product, cosine = values.get(f"{kind}/gain", 0.0), values.get(f"{kind}/cosine", 0.0)
            if not (np.isfinite([product, cosine, length]).all() and product and cosine and length):
                continue
            # The mean over the round's steps of a product whose cosine is all luck has this variance, but for a factor.
            weight = steps * (cosine / product) ** 2
            signal = aim * length
            old = weight_of_heat(momentum, round(values.get(m.PATH_STEPS, 1)) if kind == "path" else 1)
            heat = (0.5 + (old - 0.5) / PAID) * length**2
            sums += [
                *(weight * signal**2, weight * signal * heat, weight * heat**2),
                *(weight * signal * product, weight * heat * product, weight * product**2, 1),
            ]
            # Where gradients are 0, momentum dies out, and the length of a step says nothing of the rate.
            last_length = length
        return Products(*sums.tolist(), last_length)

    def have_more(self, before: Products, steps: int) -> bool:
        """Tells whether these products have measurements that those of `before`, some steps ago, had not."""
        return self.number > before.number * (1 - FORGETTING) ** steps + 0.5


SUMS = ("signals", "crossed", "heats", "aimed", "heated", "squares", "number")
NAMES = (m.GAIN, m.COSINE, m.STEP_LENGTH, m.PATH_GAIN, m.PATH_COSINE, m.PATH_STEPS)


class Gain:
    """This model says what a step gains at any batch and rate, by the products of a run. It needs at least one.

    It holds a distribution over `HEATS` of the heat of a step over its signal, at an aim of 1 and the rate as it is.
    For each of these the signal itself is Gaussian, cut at 0.
    """

    def __init__(self, products: Products):
        # The present length of a step is the unit, which cancels in ratios.
        unit = products.length
        matrix = np.array(
            [
                [products.signals / unit**2, -products.crossed / unit**3],
                [-products.crossed / unit**3, products.heats / unit**4],
            ]
        )
        side = np.array([products.aimed / unit, -products.heated / unit**2])
        # The best signal and heat leave noise. Two measurements are used up by the fit, so two are added.
        explained = float(side @ np.linalg.pinv(matrix, hermitian=True) @ side)
        mean_square = products.squares / products.number
        variance = (max(products.squares - explained, 0.0) + 2 * mean_square) / (products.number + 2)
        directions = np.stack([np.ones_like(HEATS), HEATS])
        precision = np.einsum("ik,ij,jk->k", directions, matrix, directions) / variance
        score = side @ directions / variance
        precision = np.maximum(precision, 1e-12 * precision.max())
        ratio = score / precision**0.5
        likelihood = ratio**2 / 2 + stats.norm.logcdf(ratio) - np.log(precision) / 2
        chances = likelihood - (np.log(HEATS / PRIOR_HEAT) / PRIOR_SPREAD) ** 2 / 2
        weights = np.exp(chances - chances.max())
        self.weights = weights / weights.sum()
        hazard = np.exp(stats.norm.logpdf(ratio) - stats.norm.logcdf(ratio))
        self._signals = (ratio + hazard) / precision**0.5

    @cached_property
    def signal(self) -> float:
        """Returns the expected signal A of a step, in the unit of `step/gain`."""
        return float(self.weights @ self._signals)

    @cached_property
    def heat(self) -> float:
        """Returns the expected heat C of a step over its signal A, at an aim of 1."""
        return float(self.weights @ (self._signals * HEATS)) / self.signal

    def bounds(self, coverage: float = 0.9) -> tuple[float, float]:
        """Returns an interval that holds the heat over the signal, at an aim of 1, with this probability."""
        cumulative = np.cumsum(self.weights)
        low, high = (int(np.searchsorted(cumulative, end)) for end in ((1 - coverage) / 2, (1 + coverage) / 2))
        return float(HEATS[low]), float(HEATS[min(high, len(HEATS) - 1)])

    def of(self, aim: float, rate: float = 1.0) -> float:
        """Returns the expected gain of a step, over the signal of a step with an aim of 1 at the rate as it is."""
        return aim * rate - self.heat * rate**2 / 2

    def chance(self, aim: float, cost: float, other_aim: float, other_cost: float) -> float:
        """Returns the probability that a step gains more for its cost than another step with another aim and cost."""
        return float(self.weights @ ((aim - HEATS / 2) / cost > (other_aim - HEATS / 2) / other_cost))

    def best_rate(self, aim: float, coverage: float = CERTAIN) -> tuple[float, float]:
        """Returns an interval that holds, with this probability, the factor on the rate at which steps gain most."""
        low, high = self.bounds(coverage)
        return aim / high, aim / low
