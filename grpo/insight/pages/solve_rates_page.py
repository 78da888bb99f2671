"""This module writes the page of `grpo solve-rates`, and draws its charts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from grpo.config.errors import require
from grpo.config.folder import RATES_PAGE_FILE
from grpo.config.start import run_name
from grpo.host.terminal import Terminal, clean
from grpo.insight.pages import page
from grpo.insight.pages.glossary import meanings
from grpo.insight.pages.solve_rates import (
    BINS,
    SIZES,
    SolveRates,
    analysed,
    bins,
    few_samples,
    mass,
    mass_table,
    numbers,
    reasons,
    recommended,
    silence_table,
    silent_share,
    summary,
)
from grpo.insight.pages.style import BLACK, BLUE, GREEN, ORANGE, in_percent, legend_below, plain
from grpo.insight.pages.verdict import GOOD, UNSURE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    Draw = Callable[[Axes], str]

WORTH = "{:.0%} of the problems are worth training on: neither too hard nor too easy."
# A data set counts as good when more than this share of its problems is worth training on.
ENOUGH = 0.5
# The largest width of a bar, in units of the pass rate.
WIDEST_BAR = 0.1


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
    console, too_few = Terminal(), few_samples(analysis)
    # Rates from too few samples recommend nothing, so only their histogram is shown.
    tables = () if too_few else (silence_table(analysis), mass_table(analysis))
    charts = (_rates(analysis),) if too_few else (_rates(analysis), _silence(analysis), _mass(analysis))
    for table_or_line in (*tables, *summary(analysis, column)):
        console.print(table_or_line, soft_wrap=isinstance(table_or_line, str), highlight=False)
    page.write_page(
        "solve_rates.html",
        path.with_name(RATES_PAGE_FILE),
        name=run_name(path.parent),
        verdict=[too_few or WORTH.format(analysis.within)],
        mood=GOOD if analysis.within > ENOUGH and not too_few else UNSURE,
        numbers=numbers(analysis),
        settings="" if too_few else "\n".join(recommended(analysis, column)),
        reasons=reasons(analysis),
        meanings=meanings("solve rate", "pass rate", "group", "silent group", "α, β"),
        pictures=page.pictures(charts, first_wide=False),
        examples=_examples(rated_rows, column),
    )
    console.print(f"rates   {path}\npage    {path.with_name(RATES_PAGE_FILE)}", soft_wrap=True)


def _rates(analysis: SolveRates) -> Draw:
    def draw(axes: Axes) -> str:
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
            f"estimates the true rates behind them. {analysis.within:.0%} of the problems lie in the green band, from "
            f"{low:.1%} to {high:.1%}: they are solved sometimes, and so worth training on."
        )

    return draw


def _silence(analysis: SolveRates) -> Draw:
    def draw(axes: Axes) -> str:
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

    return draw


def _mass(analysis: SolveRates) -> Draw:
    def draw(axes: Axes) -> str:
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

    return draw


def _examples(rows: Sequence[Mapping[str, Any]], column: str) -> list[tuple[str, str, str]]:
    """Returns a table of three problems that were sometimes solved: the hardest, the median and the easiest one."""
    mixed_rows = sorted((row for row in rows if 0 < row[column] < 1), key=lambda row: row[column])
    example_rows = [mixed_rows[index] for index in (0, len(mixed_rows) // 2, -1)] if mixed_rows else []
    example_cells = [
        (f"{row[column]:.0%}", clean(_question(row)), clean(str(row.get("answer", "")))) for row in example_rows
    ]
    return [("solve rate", "problem", "answer"), *example_cells]


def _question(row: Mapping[str, Any]) -> str:
    """Returns the question of a row, which is the last message where the problem is a conversation."""
    problem = row["problem"]
    return problem[-1]["content"] if isinstance(problem, list) else str(problem)
