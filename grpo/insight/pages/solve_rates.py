"""This module derives recommended settings from measured solve rates, and explains them in words and tables.

The tables show how many groups would be silent at each group size, and which problems the gradient would come from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

import numpy as np
from rich.table import Table

from grpo.dynamics.difficulty import Difficulty, fit_difficulty
from grpo.dynamics.sigma import gradient_mass, silent_rate
from grpo.insight.pages.verdict import Number
from grpo.insight.plans.planning import EXPONENTS, FAIR_SHARE, balanced_exponent, propose, speaking_band
from grpo.insight.plans.request import PlanRequest

NO_TOKENS: Mapping[str, float] = MappingProxyType({})
SIZES = (4, 8, 16, 32, 64)
# These pass rates divide the problems from hard to easy.
BINS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
# Fewer samples of a problem say little about its rate. With four samples, a problem of rate 1/2 is neither never nor
# always right with probability 7/8.
FEWEST_SAMPLES = 4


@dataclass(frozen=True, slots=True)
class SolveRates:
    """This class holds measured solve rates and the settings recommended for them.

    correct, tried  numbers of correct and of all completions [problems]
    difficulty      the estimated distribution of the problems' true pass rates
    band            the recommended range of pass rates
    group_size      the recommended G: the one that `grpo dynamics plan` proposes
    exponent        the recommended α
    """

    correct: np.ndarray
    tried: np.ndarray
    difficulty: Difficulty
    band: tuple[float, float]
    group_size: int
    exponent: float

    @property
    def within(self) -> float:
        """Returns the share of the problems whose measured rates are in the recommended band."""
        rates = self.correct / self.tried
        return float(np.mean((rates >= self.band[0]) & (rates <= self.band[1])))


def analysed(
    pairs: Sequence[tuple[int, int]],
    exponent: float,
    mean_exponent: float = 0.0,
    tokens: Mapping[str, float] = NO_TOKENS,
) -> SolveRates:
    """Estimates difficulty and recommended settings from the pair (correct, tried) of each problem.

    `exponent` and `mean_exponent` are the configured dials α and β of the advantage's normalization. `tokens` holds the
    mean lengths "prompt_tokens" and "completion_tokens", if they are known.
    """
    correct, tried = np.array(pairs).T
    counts: dict[tuple[int, int], float] = {}
    for pair in pairs:
        counts[tuple(pair)] = counts.get(tuple(pair), 0) + 1
    difficulty = fit_difficulty(counts)
    size = propose(difficulty, PlanRequest(exponent=exponent, mean_exponent=mean_exponent, **tokens)).size.size
    return SolveRates(correct, tried, difficulty, speaking_band(size), size, balanced_exponent(difficulty, size))


def silent_share(analysis: SolveRates, size: int) -> float:
    """Returns the expected share of silent groups among groups of `size`, over all problems."""
    return float(analysis.difficulty.weights @ silent_rate(analysis.difficulty.pass_rates, size))


def mass(analysis: SolveRates, exponent: float, size: int, mean_exponent: float = 0.0) -> np.ndarray:
    """Returns the expected share of the gradient from the problems in each bin of pass rates (`BINS`)."""
    rates, shares = analysis.difficulty.pass_rates, analysis.difficulty.weights
    return gradient_mass(rates, shares, BINS, exponent, size, mean_exponent=mean_exponent)


def summary(analysis: SolveRates, column: str) -> list[str]:
    """Summarizes the solve rates in sentences, with the recommended settings to be copied. `column` names the rates."""
    rates, too_few = analysis.correct / analysis.tried, few_samples(analysis)
    never, always = float(np.mean(rates == 0)), float(np.mean(rates == 1))
    what_was_measured = (
        f"{_asked(analysis)}: mean pass rate {rates.mean():.1%}, {never:.1%} never and {always:.1%} always solved"
    )
    if too_few:
        return [what_was_measured, too_few]
    return [what_was_measured, "recommended: " + " ".join(recommended(analysis, column)), *reasons(analysis)]


def few_samples(analysis: SolveRates) -> str:
    """Says that there are too few samples of each problem to recommend settings. Returns "" if there are enough."""
    if np.median(analysis.tried) >= FEWEST_SAMPLES:
        return ""
    return (
        f"Too few samples to say which problems are worth training on: {_samples(analysis)} of each problem. Set "
        f"evaluation.samples_per_problem={2 * FEWEST_SAMPLES} or more."
    )


def recommended(analysis: SolveRates, column: str) -> list[str]:
    """Returns the recommended settings as arguments of the command line."""
    low, high = analysis.band
    return [
        f"dynamics.group_size={analysis.group_size}",
        "normalization=dial",
        f"normalization.exponent={analysis.exponent:g}",
        f"task.data.selection.solve_rate_column={column}",
        f"'task.data.selection.solve_rate=[{low:.3f},{high:.3f}]'",
    ]


def reasons(analysis: SolveRates) -> list[str]:
    """Explains the recommended settings, in a sentence or two for each."""
    low, high = analysis.band
    return [
        f"Group size: at G = {analysis.group_size} a token is expected to gain most, as `grpo dynamics plan` explains. "
        "dynamics=adaptive measures it while training.",
        f"Problems: those with pass rates from {low:.1%} to {high:.1%} are {analysis.within:.0%} of all. At most "
        "half of their groups are silent.",
        f"Dial: α = {analysis.exponent:g} is the smallest of {', '.join(f'{exponent:g}' for exponent in EXPONENTS)} "
        f"that gives the harder half of the problems {FAIR_SHARE:.0%} of the gradient, or 1 if none does. The mean is "
        "not divided out (β = 0), as MaxRL would do with β = 1.",
    ]


def numbers(analysis: SolveRates) -> list[Number]:
    """Returns the numbers on top of the page: mean pass rate, and shares of never and of always solved problems."""
    rates = analysis.correct / analysis.tried
    never, always = int(np.sum(rates == 0)), int(np.sum(rates == 1))
    few = bool(few_samples(analysis))
    hard, easy = ("", "") if few else (", from which nothing is learned", " with nothing left to learn")
    return [
        Number("mean pass rate", f"{rates.mean():.1%}", _asked(analysis)),
        Number("never solved", f"{never / len(rates):.1%}", f"{never:,} problem{'s' * (never != 1)}{hard}"),
        Number("always solved", f"{always / len(rates):.1%}", f"{always:,} problem{'s' * (always != 1)}{easy}"),
    ]


def _asked(analysis: SolveRates) -> str:
    samples = _samples(analysis)
    return f"{len(analysis.tried):,} problems × {samples} sample{'s' * (samples != '1')}"


def _samples(analysis: SolveRates) -> str:
    samples = np.unique(analysis.tried)
    return f"{samples[0]}" if len(samples) == 1 else f"{samples[0]} to {samples[-1]}"


def silence_table(analysis: SolveRates) -> Table:
    """Returns a table of the expected share of silent groups at each group size."""
    table = Table("G", "silent groups, all problems", title="Silent groups by group size", title_justify="left")
    for size in SIZES:
        table.add_row(str(size), f"{silent_share(analysis, size):.1%}")
    return table


def mass_table(analysis: SolveRates) -> Table:
    """Returns a table of the share of the gradient by pass rate, for each exponent α of the normalization, and for
    MaxRL, which has α = 0 and β = 1."""
    title = f"Share of the gradient by pass rate, G = {analysis.group_size}"
    headings = (f"α = {exponent:g}" for exponent in EXPONENTS)
    table = Table("pass rate", "problems", *headings, "MaxRL", title=title, title_justify="left")
    columns = [mass(analysis, exponent, analysis.group_size) for exponent in EXPONENTS]
    columns.append(mass(analysis, 0.0, analysis.group_size, mean_exponent=1.0))
    for index, (low, high) in enumerate(bins()):
        cells = [f"{column[index]:.1%}" for column in columns]
        table.add_row(f"{low:g} – {high:g}", f"{_share(analysis, index):.1%}", *cells)
    return table


def bins() -> list[tuple[float, float]]:
    return list(pairwise(BINS))


def _share(analysis: SolveRates, index: int) -> float:
    return float(np.histogram(analysis.difficulty.pass_rates, BINS, weights=analysis.difficulty.weights)[0][index])
