"""This module reports what measured solve rates mean for training.

It shows how many groups would be silent at each group size, which problems the gradient would come from, and the
recommended settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from grpo.dynamics.difficulty import Difficulty, fit_difficulty
from grpo.dynamics.planning import EXPONENTS, FAIR_SHARE, balanced_exponent, speaking_band
from grpo.dynamics.sigma import gradient_mass, silent_rate, smallest_group_size
from grpo.host.terminal import Terminal, clean
from grpo.report import page
from grpo.report.glossary import meanings
from grpo.report.style import BLACK, BLUE, GREEN, ORANGE, in_percent, legend_below
from grpo.report.verdict import GOOD, UNSURE, Number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    Draw = Callable[[Axes], str]

PAGE_FILE = "solve_rates.html"
SIZES = (4, 8, 16, 32, 64)
# These pass rates divide the problems from hard to easy.
BINS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
MAX_SHORTFALL = 0.1
# A data set of which at least this share is worth training on is a good one.
ENOUGH = 0.5


@dataclass(frozen=True, slots=True)
class SolveRates:
    """This class holds measured solve rates and the settings recommended for them.

    correct, tried  completions of each problem
    difficulty      the estimated distribution of pass rates behind them
    band            the recommended range of pass rates
    group_size      the smallest G that keeps nine tenths of the gradient's limit on problems between 2 and 98 %
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


def write_solve_rates(
    rows: Sequence[Mapping[str, Any]], path: Path, column: str, exponent: float, mean_exponent: float = 0.0
) -> None:
    """Writes a page beside the file of solve rates at `path`, and prints a summary.

    `rows` are the rows of that file, and `column` is the name of their rates. `exponent` and `mean_exponent` are the
    configured dials α and β of the advantage's normalization.
    """
    pairs = [(row[f"{column}_correct"], row[f"{column}_samples"]) for row in rows]
    analysis = analysed(pairs, exponent, mean_exponent)
    console = Terminal()
    console.print(silence_table(analysis))
    console.print(mass_table(analysis))
    lines = summary(analysis, column)
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False)
    page.write_page(
        "solve_rates.html",
        path.with_name(PAGE_FILE),
        name=path.resolve().parent.name,
        verdict=[f"{analysis.within:.0%} of the problems are worth training on: neither too hard nor too easy."],
        mood=GOOD if analysis.within > ENOUGH else UNSURE,
        numbers=numbers(analysis),
        settings="\n".join(recommended(analysis, column)),
        reasons=[reasons(analysis)],
        meanings=meanings("solve rate", "pass rate", "group", "silent group", "α, β"),
        pictures=[page.picture(draw) for draw in (_rates(analysis), _silence(analysis), _mass(analysis))],
        examples=_examples(rows, column),
    )
    console.print(f"rates   {path}\npage    {path.with_name(PAGE_FILE)}", soft_wrap=True)


def analysed(pairs: Sequence[tuple[int, int]], exponent: float, mean_exponent: float = 0.0) -> SolveRates:
    """Works out the recommended settings from (correct, tried) of each problem.

    `exponent` and `mean_exponent` are the configured dials α and β of the advantage's normalization.
    """
    correct, tried = np.array(pairs).T
    counts: dict[tuple[int, int], float] = {}
    for pair in pairs:
        counts[tuple(pair)] = counts.get(tuple(pair), 0) + 1
    difficulty = fit_difficulty(counts)
    inside = (difficulty.pass_rates > 0.02) & (difficulty.pass_rates < 0.98)
    rates, shares = difficulty.pass_rates[inside], difficulty.weights[inside]
    dials = {"exponent": exponent, "mean_exponent": mean_exponent}
    size = smallest_group_size(rates, shares, MAX_SHORTFALL, largest=SIZES[-1], **dials) or SIZES[-1]
    size = next(candidate for candidate in SIZES if candidate >= size)
    return SolveRates(correct, tried, difficulty, speaking_band(size), size, balanced_exponent(difficulty, size))


def silent_share(analysis: SolveRates, size: int) -> float:
    """Returns the expected share of silent groups among groups of `size`, over all problems."""
    return float(analysis.difficulty.weights @ silent_rate(analysis.difficulty.pass_rates, size))


def mass(analysis: SolveRates, exponent: float, size: int, mean_exponent: float = 0.0) -> np.ndarray:
    """Returns the share of the gradient from the problems in each bin of pass rates (`BINS`)."""
    rates, shares = analysis.difficulty.pass_rates, analysis.difficulty.weights
    return gradient_mass(rates, shares, BINS, exponent, size, mean_exponent=mean_exponent)


def summary(analysis: SolveRates, column: str) -> list[str]:
    """Summarizes the solve rates in sentences, with settings to be copied."""
    rates = analysis.correct / analysis.tried
    never, always = float(np.mean(rates == 0)), float(np.mean(rates == 1))
    return [
        f"{len(rates):,} problems × {_samples(analysis)} samples: mean pass rate {rates.mean():.3f}, "
        f"{never:.1%} never and {always:.1%} always solved",
        "recommended: " + " ".join(recommended(analysis, column)),
        reasons(analysis),
    ]


def recommended(analysis: SolveRates, column: str) -> list[str]:
    """Returns the recommended settings, as words of the command line."""
    low, high = analysis.band
    return [
        f"dynamics.group_size={analysis.group_size}",
        "normalization=dial",
        f"normalization.exponent={analysis.exponent:g}",
        f"task.data.selection.solve_rate_column={column}",
        f"'task.data.selection.solve_rate=[{low:.3f},{high:.3f}]'",
    ]


def reasons(analysis: SolveRates) -> str:
    """Says why these settings are recommended."""
    return (
        f"G = {analysis.group_size} is the smallest of {', '.join(map(str, SIZES))} that keeps at least "
        f"{1 - MAX_SHORTFALL:.0%} of the gradient's limit for large groups, on problems with pass rates between 2 and "
        f"98 %, or the largest if none does. The band holds {analysis.within:.0%} of the problems; there, at most half "
        f"of the groups are silent. α = {analysis.exponent:g} is the smallest of "
        f"{', '.join(f'{exponent:g}' for exponent in EXPONENTS)} that gives the harder half of the problems at least "
        f"{FAIR_SHARE:.0%} of the gradient, or 1 if none does. The mean is not divided out (β = 0); the table shows "
        "where the gradient comes from under MaxRL, which has β = 1."
    )


def numbers(analysis: SolveRates) -> list[Number]:
    """Returns the three numbers on top of the page: the mean pass rate, and what is never and always solved."""
    rates = analysis.correct / analysis.tried
    asked = f"{len(rates):,} problems × {_samples(analysis)} samples"
    return [
        Number("mean pass rate", f"{rates.mean():.1%}", asked),
        Number(
            "never solved",
            f"{np.mean(rates == 0):.1%}",
            f"{np.sum(rates == 0):,} problems, from which nothing is learned",
        ),
        Number(
            "always solved", f"{np.mean(rates == 1):.1%}", f"{np.sum(rates == 1):,} problems with nothing left to learn"
        ),
    ]


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
    for index, (low, high) in enumerate(_bins()):
        cells = [f"{column[index]:.1%}" for column in columns]
        table.add_row(f"{low:g} – {high:g}", f"{_share(analysis, index):.1%}", *cells)
    return table


def _bins() -> list[tuple[float, float]]:
    return list(pairwise(BINS))


def _share(analysis: SolveRates, index: int) -> float:
    return float(np.histogram(analysis.difficulty.pass_rates, BINS, weights=analysis.difficulty.weights)[0][index])


def _rates(analysis: SolveRates) -> Draw:
    def draw(axes: Axes) -> str:
        # There is a bin for each possible k/n, but at most twenty.
        parts = min(int(analysis.tried.max()), 20)
        edges = (np.arange(parts + 2) - 0.5) / parts
        axes.hist(analysis.correct / analysis.tried, bins=edges, color=BLUE, alpha=0.5, label="measured k/n")
        counted = np.histogram(analysis.difficulty.pass_rates, edges, weights=analysis.difficulty.weights)
        axes.stairs(
            counted[0] * len(analysis.correct), counted[1], color=BLACK, label="estimated true rates (mixture fit)"
        )
        axes.axvspan(*analysis.band, color=GREEN, alpha=0.08, linewidth=0, label="recommended band")
        axes.set_xlim(edges[0], edges[-1])
        axes.set_xlabel("pass rate of a problem: hard on the left, easy on the right")
        axes.set_ylabel("number of problems")
        axes.set_title("How hard the problems are")
        legend_below(axes)
        return (
            "Bars count the problems by the share of their samples that is right. Few samples scatter, so the line "
            "estimates the true rates behind them. Problems in the green band are worth training on."
        )

    return draw


def _silence(analysis: SolveRates) -> Draw:
    def draw(axes: Axes) -> str:
        sizes = np.arange(2, SIZES[-1] + 1)
        axes.plot(sizes, [silent_share(analysis, int(size)) for size in sizes], color=BLUE, label="silent")
        axes.axvline(analysis.group_size, color=GREEN, linestyle=":", label="recommended")
        in_percent(axes, whole=True)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_xlabel("group size G: completions of each prompt")
        axes.set_ylabel("share of groups")
        axes.set_title("Silent groups: nothing to learn from")
        legend_below(axes)
        return "The share of groups in which all completions would be right, or all wrong, over all problems."

    return draw


def _mass(analysis: SolveRates) -> Draw:
    def draw(axes: Axes) -> str:
        places = np.arange(len(BINS) - 1)
        drawn = (
            (0.0, 0.0, BLUE, "α = 0 (Dr. GRPO)"),
            (1.0, 0.0, ORANGE, "α = 1 (GRPO)"),
            (2.0, 0.0, GREEN, "α = 2"),
            (0.0, 1.0, BLACK, "β = 1 (MaxRL)"),
        )
        for offset, (exponent, of_mean, color, label) in zip((-0.3, -0.1, 0.1, 0.3), drawn, strict=True):
            shares = mass(analysis, exponent, analysis.group_size, of_mean)
            axes.bar(places + offset, shares, 0.19, color=color, label=label)
        axes.set_xticks(places, [f"{low:g}–{high:g}" for low, high in _bins()])
        axes.set_xlabel("pass rate of a problem: hard on the left, easy on the right")
        axes.set_ylabel("share of the gradient")
        in_percent(axes)
        axes.set_title(f"Which problems the model would learn from, at G = {analysis.group_size}")
        legend_below(axes)
        return (
            "α and β are the dials of the advantage's normalization: it divides by the spread of a group's rewards to "
            "the power α, and by their mean to the power β. A larger α moves the weight to hard and to easy problems."
        )

    return draw


def _examples(rows: Sequence[Mapping[str, Any]], column: str) -> list[tuple[str, str, str]]:
    """Returns a table of the hardest, a middling and the easiest of the problems that were solved, but not always."""
    mixed = sorted((row for row in rows if 0 < row[column] < 1), key=lambda row: row[column])
    chosen = [mixed[index] for index in (0, len(mixed) // 2, -1)] if mixed else []
    shown = [(f"{row[column]:.0%}", clean(str(row["problem"])), clean(str(row["answer"]))) for row in chosen]
    return [("solve rate", "problem", "answer"), *shown]
