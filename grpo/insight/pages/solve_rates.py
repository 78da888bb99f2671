"""This module derives recommended settings from measured solve rates, and explains them in words, tables
and charts.

The tables show how many groups would be silent at each group size, and which problems the gradient would come from.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from grpo.config.errors import require
from grpo.config.folder import RATES_PAGE_FILE
from grpo.config.rewording import path_word
from grpo.config.start import run_name
from grpo.dynamics.difficulty import Difficulty, fit_difficulty
from grpo.dynamics.sigma import gradient_mass, silent_rate
from grpo.host.terminal import Terminal, clean
from grpo.insight.pages.page import PAGE, PAIRS, TERMINAL, Block, Kind, Number, Page, publish
from grpo.insight.pages.style import BLACK, BLUE, GREEN, ORANGE, in_percent, legend_below, plain
from grpo.insight.pages.verdict import GOOD, UNSURE
from grpo.insight.plans.planning import EXPONENTS, FAIR_SHARE, balanced_exponent, propose, speaking_band
from grpo.insight.plans.request import PlanRequest

if TYPE_CHECKING:
    from matplotlib.axes import Axes


NO_TOKENS: Mapping[str, float] = MappingProxyType({})
SIZES = (4, 8, 16, 32, 64)
# These pass rates divide the problems from hard to easy.
BINS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
# Fewer samples of a problem say little about its rate. With four samples, a problem of rate 1/2 is neither never nor
# always right with probability 7/8.
FEWEST_SAMPLES = 4
WORTH = "{:.0%} of the problems are worth training on: neither too hard nor too easy."
# A data set counts as good when more than this share of its problems is worth training on.
ENOUGH = 0.5
# Where more of the problems than this are worth training on, those that a selection leaves out are mostly good ones.
WITHOUT_SELECTION = 0.9
# The file of rates has its questions and its bare answers in these columns.
COLUMNS = ("task.data.question_column=problem", "task.data.answer_column=answer", "task.data.answer_pattern=")
# The largest width of a bar, in units of the pass rate.
WIDEST_BAR = 0.1


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
        """Returns the estimated share of the problems whose true rates are in the recommended band."""
        low, high = self.band
        return float(
            self.difficulty.weights @ ((self.difficulty.pass_rates >= low) & (self.difficulty.pass_rates <= high))
        )

    @property
    def kept(self) -> float:
        """Returns the share of the problems whose measured rates are in the band, which a selection would keep."""
        rates = self.correct / self.tried
        return float(np.mean((rates >= self.band[0]) & (rates <= self.band[1])))

    @property
    def selects(self) -> bool:
        """Tells whether a selection by measured rates is recommended: where it leaves out few good problems."""
        return self.within < WITHOUT_SELECTION


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
    difficulty = fit_difficulty(Counter(map(tuple, pairs)))
    size = propose(difficulty, PlanRequest(exponent=exponent, mean_exponent=mean_exponent, **tokens)).size.size
    return SolveRates(correct, tried, difficulty, speaking_band(size), size, balanced_exponent(difficulty, size))


def silent_share(analysis: SolveRates, size: int) -> float:
    """Returns the expected share of silent groups among groups of `size`, over all problems."""
    return float(analysis.difficulty.weights @ silent_rate(analysis.difficulty.pass_rates, size))


def mass(analysis: SolveRates, exponent: float, size: int, mean_exponent: float = 0.0) -> np.ndarray:
    """Returns the expected share of the gradient from the problems in each bin of pass rates (`BINS`)."""
    rates, shares = analysis.difficulty.pass_rates, analysis.difficulty.weights
    return gradient_mass(rates, shares, BINS, exponent, size, mean_exponent=mean_exponent)


def measured(analysis: SolveRates) -> str:
    """Says how hard the problems are."""
    rates = analysis.correct / analysis.tried
    never, always = float(np.mean(rates == 0)), float(np.mean(rates == 1))
    return f"{_asked(analysis)}: mean pass rate {rates.mean():.1%}, {never:.1%} never and {always:.1%} always solved"


def few_samples(analysis: SolveRates) -> str:
    """Says that there are too few samples of each problem to recommend settings. Returns "" if there are enough."""
    if np.median(analysis.tried) >= FEWEST_SAMPLES:
        return ""
    return (
        f"Too few samples to say which problems are worth training on: {_samples(analysis)} of each problem. Set "
        f"evaluation.samples_per_problem={2 * FEWEST_SAMPLES} or more."
    )


def recommended(analysis: SolveRates, column: str, path: Path) -> list[str]:
    """Returns the recommended settings as arguments of the command line. A selection reads the file of rates at `path`,
    whose columns have other names than those of the data that were measured."""
    low, high = analysis.band
    return [
        f"dynamics.group_size={analysis.group_size}",
        "normalization=dial",
        f"normalization.exponent={analysis.exponent:g}",
        *(
            [
                *("task.data.source=file", shlex.quote(path_word("task.data.path", path)), *COLUMNS),
                f"task.data.selection.solve_rate_column={column}",
                f"'task.data.selection.solve_rate=[{low:.3f},{high:.3f}]'",
            ]
            if analysis.selects
            else []
        ),
    ]


def reasons(analysis: SolveRates) -> list[str]:
    """Explains the recommended settings, in a sentence or two for each."""
    low, high = analysis.band
    samples = _samples(analysis)
    chosen = (
        f"A selection by the rates of {samples} samples keeps {analysis.kept:.0%}"
        if analysis.selects
        else f"The rates of {samples} samples would leave out {1 - analysis.kept:.0%}, most of them by bad luck, so "
        "none is left out"
    )
    return [
        f"Group size: G = {analysis.group_size} did as well in measured runs as sizes that a model chose; `grpo "
        "dynamics plan` shows what it expects of others.",
        f"Problems: an estimated {analysis.within:.0%} of all have true pass rates from {low:.1%} to {high:.1%}. At "
        f"most half of their groups are silent. {chosen}.",
        f"Dial: α = {analysis.exponent:g} is the smallest of {', '.join(f'{exponent:g}' for exponent in EXPONENTS)} "
        f"that gives the harder half of the problems {FAIR_SHARE:.0%} of the gradient, or 1 if none does. The mean is "
        "not divided out (β = 0), as MaxRL would do with β = 1.",
    ]


def numbers(analysis: SolveRates) -> list[Number]:
    """Returns the numbers on top of the page: mean pass rate, and shares of never and of always solved problems."""
    rates = analysis.correct / analysis.tried
    never, always = int(np.sum(rates == 0)), int(np.sum(rates == 1))
    samples = f" in {_samples(analysis)} samples each"
    return [
        Number("mean pass rate", f"{rates.mean():.1%}", _asked(analysis)),
        Number("never solved", f"{never / len(rates):.1%}", f"{never:,} problem{'s' * (never != 1)}{samples}"),
        Number("always solved", f"{always / len(rates):.1%}", f"{always:,} problem{'s' * (always != 1)}{samples}"),
    ]


def _asked(analysis: SolveRates) -> str:
    samples = _samples(analysis)
    return f"{len(analysis.tried):,} problems × {samples} sample{'s' * (samples != '1')}"


def _samples(analysis: SolveRates) -> str:
    samples = np.unique(analysis.tried)
    return f"{samples[0]}" if len(samples) == 1 else f"{samples[0]} to {samples[-1]}"


def silence_rows(analysis: SolveRates) -> list[tuple[str, str]]:
    """Returns a table of the expected share of silent groups at each group size."""
    return [
        ("G", "silent groups, all problems"),
        *((str(size), f"{silent_share(analysis, size):.1%}") for size in SIZES),
    ]


def mass_rows(analysis: SolveRates) -> list[tuple[str, ...]]:
    """Returns a table of the share of the gradient by pass rate, for each exponent α of the normalization, and for
    MaxRL, which has α = 0 and β = 1."""
    columns = [mass(analysis, exponent, analysis.group_size) for exponent in EXPONENTS]
    columns.append(mass(analysis, 0.0, analysis.group_size, mean_exponent=1.0))
    return [
        ("pass rate", "problems", *(f"α = {exponent:g}" for exponent in EXPONENTS), "MaxRL"),
        *(
            (f"{low:g} – {high:g}", f"{_share(analysis, index):.1%}", *(f"{column[index]:.1%}" for column in columns))
            for index, (low, high) in enumerate(bins())
        ),
    ]


def bins() -> list[tuple[float, float]]:
    return list(pairwise(BINS))


def _share(analysis: SolveRates, index: int) -> float:
    return float(np.histogram(analysis.difficulty.pass_rates, BINS, weights=analysis.difficulty.weights)[0][index])


def write_solve_rates(
    rows: Sequence[Mapping[str, Any]], path: Path, column: str, exponent: float, mean_exponent: float = 0.0
) -> None:
    """Writes a page beside the file of solve rates at `path`, and prints a summary.

    `rows` are the rows of that file, and `column` is the column of solve rates. `exponent` and `mean_exponent` are the
    configured dials α and β of the advantage's normalization. Raises `UserError` when no row has a rate.
    """
    rated_rows = [row for row in rows if row[f"{column}_samples"]]
    require(
        bool(rated_rows), f"no problem of {path} has a rate, since none could be graded: look at the messages above"
    )
    pairs = [(row[f"{column}_correct"], row[f"{column}_samples"]) for row in rated_rows]
    lengths = {
        name: [row[name] for row in rated_rows if row.get(name)] for name in ("prompt_tokens", "completion_tokens")
    }
    tokens = {name: fmean(found) for name, found in lengths.items() if found}
    analysis = analysed(pairs, exponent, mean_exponent, tokens)
    too_few = few_samples(analysis)
    # Rates from too few samples recommend nothing, so only their histogram is shown.
    draws = (draw_rates,) if too_few else (draw_rates, draw_silence, draw_mass)
    charts = [partial(draw, analysis=analysis) for draw in draws]
    title = f"Share of the gradient by pass rate, G = {analysis.group_size}"
    advice = [
        Block(Kind.TABLE, silence_rows(analysis), "Silent groups by group size", only=TERMINAL),
        Block(Kind.TABLE, mass_rows(analysis), title, only=TERMINAL),
        Block(Kind.COMMAND, recommended(analysis, column, path), "Recommended settings"),
        Block(Kind.LINES, reasons(analysis)),
    ]
    shown = Page(
        *("Solve rates", run_name(path.parent), [too_few or WORTH.format(analysis.within)]),
        mood=GOOD if analysis.within > ENOUGH and not too_few else UNSURE,
        blocks=[
            Block(Kind.LINES, [measured(analysis)], only=TERMINAL),
            *([] if too_few else advice),
            Block(Kind.CHARTS, charts, "Charts", layout=PAIRS),
            Block(Kind.TABLE, _examples(rated_rows, column), "Examples from hard to easy", only=PAGE, texts=range(3)),
        ],
        numbers=numbers(analysis),
        words=("solve rate", "pass rate", "group", "silent group", "α, β"),
    )
    publish(shown, path.with_name(RATES_PAGE_FILE), Terminal(), more=[f"rates   {path}"])


def draw_rates(axes: Axes, analysis: SolveRates) -> str:
    """Draws how many problems have each measured pass rate, and the estimated true rates."""
    from matplotlib.ticker import PercentFormatter

    # There is a bin for each possible share k/n of right samples, but at most twenty.
    parts = min(int(analysis.tried.max()), 20)
    edges = (np.arange(parts + 2) - 0.5) / parts
    counts, _ = np.histogram(analysis.correct / analysis.tried, edges)
    width = min(1 / parts, WIDEST_BAR)
    axes.bar(np.arange(parts + 1) / parts, counts, width, color=BLUE, alpha=0.5, label="measured")
    if not few_samples(analysis):
        true, _ = np.histogram(analysis.difficulty.pass_rates, edges, weights=analysis.difficulty.weights)
        outline = edges.clip(0, 1)
        axes.stairs(true * len(analysis.correct), outline, color=BLACK, label="estimated true rates")
        axes.axvspan(
            *analysis.band, color=GREEN, alpha=0.08, linewidth=0, label=f"worth training on: {analysis.within:.0%}"
        )
    axes.set_xlim(-0.07, 1.07)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_xlabel("pass rate of a problem: hard on the left, easy on the right")
    axes.set_ylabel("number of problems")
    axes.set_title("How hard the problems are")
    legend_below(axes)
    if few_samples(analysis):
        return "Bars count the problems by the share of their samples that is right."
    low, high = analysis.band
    return (
        "Bars count the problems by the share of their samples that is right. Few samples scatter, so the line "
        "estimates the true rates behind them. "
        f"An estimated {analysis.within:.0%} of the problems lie in the green "
        f"band, from {low:.1%} to {high:.1%}: they are solved sometimes, and so worth training on."
    )


def draw_silence(axes: Axes, analysis: SolveRates) -> str:
    """Draws the expected share of silent groups at each group size."""
    sizes = np.arange(2, SIZES[-1] + 1)
    axes.plot(sizes, [silent_share(analysis, int(size)) for size in sizes], color=BLUE, label="silent")
    axes.axvline(analysis.group_size, color=GREEN, linestyle=":", label="recommended")
    in_percent(axes, whole=True)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: plain(value))
    axes.set_xlabel("group size G: completions of each prompt")
    axes.set_ylabel("share of groups")
    axes.set_title("Silent groups: nothing to learn from")
    legend_below(axes)
    return "The share of groups in which all completions would be right, or all wrong, over all problems."


def draw_mass(axes: Axes, analysis: SolveRates) -> str:
    """Draws the expected share of the gradient from each bin of pass rates, at several dials."""
    places = np.arange(len(BINS) - 1)
    bar_groups = (
        (0.0, 0.0, BLUE, "α = 0 (Dr. GRPO)"),
        (1.0, 0.0, ORANGE, "α = 1 (GRPO)"),
        (2.0, 0.0, GREEN, "α = 2"),
        (0.0, 1.0, BLACK, "β = 1 (MaxRL)"),
    )
    for offset, (exponent, of_mean, color, label) in zip((-0.3, -0.1, 0.1, 0.3), bar_groups, strict=True):
        shares = mass(analysis, exponent, analysis.group_size, of_mean)
        axes.bar(places + offset, shares, 0.19, color=color, label=label)
    axes.set_xticks(places, [f"{100 * low:g}–{100 * high:g}%" for low, high in bins()])
    axes.set_xlabel("pass rate of a problem: hard on the left, easy on the right")
    axes.set_ylabel("share of the gradient")
    in_percent(axes)
    axes.set_title(f"Which problems the model would learn from, at G = {analysis.group_size}")
    legend_below(axes)
    return (
        "α and β are the dials of the advantage's normalization: it divides by the spread of a group's rewards to "
        "the power α, and by their mean to the power β. A larger α moves the weight to hard and to easy problems."
    )


def _examples(rows: Sequence[Mapping[str, Any]], column: str) -> list[tuple[str, str, str]]:
    """Returns a table of three problems that were sometimes solved: the hardest, the median and the easiest one."""
    mixed_rows = sorted((row for row in rows if 0 < row[column] < 1), key=lambda row: row[column])
    example_rows = [mixed_rows[index] for index in (0, len(mixed_rows) // 2, -1)] if mixed_rows else []
    example_cells = [
        (f"{row[column]:.0%}", clean(_question(row)), clean(str(row.get("answer", "")))) for row in example_rows
    ]
    return [("solve rate", "problem", "answer"), *example_cells] if example_cells else []


def _question(row: Mapping[str, Any]) -> str:
    """Returns the question of a row, which is the last message where the problem is a conversation."""
    problem = row["problem"]
    return problem[-1]["content"] if isinstance(problem, list) else str(problem)
