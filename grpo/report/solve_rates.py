"""What measured solve rates say about training: which problems can speak at which group size, and to whom they do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from grpo.dynamics.difficulty import Difficulty, fit_difficulty
from grpo.dynamics.identity import gradient_mass, silent_rate, smallest_group_size
from grpo.dynamics.planning import EXPONENTS, FAIR_SHARE, balanced_exponent, speaking_band
from grpo.host.terminal import Terminal
from grpo.report import page
from grpo.report.curves import BLACK, BLUE, GREEN, ORANGE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    Draw = Callable[[Axes], None]

PAGE_FILE = "solve_rates.html"
SIZES = (4, 8, 16, 32, 64)
# Pass rates that part hard from easy problems.
BINS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
MAX_SHORTFALL = 0.1


@dataclass(frozen=True, slots=True)
class SolveRates:
    """Correct and tried completions of each problem, the distribution of pass rates behind them, and what is
    recommended: a band, the smallest G that keeps nine tenths of the gradient's limit within it, and an exponent."""

    correct: np.ndarray
    tried: np.ndarray
    difficulty: Difficulty
    band: tuple[float, float]
    group_size: int
    exponent: float

    @property
    def within(self) -> float:
        """Share of the problems in the band, by their measured rates."""
        rates = self.correct / self.tried
        return float(np.mean((rates >= self.band[0]) & (rates <= self.band[1])))


def write_solve_rates(rows: Sequence[Mapping[str, Any]], path: Path, column: str, exponent: float) -> None:
    """A page beside the file of rates at `path`, whose rows these are, and the same in short on the terminal.
    `exponent` is the configured α."""
    pairs = [(row[f"{column}_correct"], row[f"{column}_samples"]) for row in rows]
    found = analysed(pairs, exponent)
    console = Terminal()
    console.print(silence_table(found))
    console.print(mass_table(found))
    lines = summary(found, column)
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False)
    page.write_page(
        "solve_rates.html",
        path.with_name(PAGE_FILE),
        name=path.resolve().parent.name,
        summary=lines,
        pictures=[page.picture(draw) for draw in (_rates(found), _silence(found), _mass(found))],
        examples=_examples(rows, column),
    )
    console.print(f"rates   {path}\npage    {path.with_name(PAGE_FILE)}", soft_wrap=True)


def analysed(pairs: Sequence[tuple[int, int]], exponent: float) -> SolveRates:
    """(correct, tried) of each problem → what follows for training with the dial at `exponent`."""
    correct, tried = np.array(pairs).T
    counts: dict[tuple[int, int], float] = {}
    for pair in pairs:
        counts[tuple(pair)] = counts.get(tuple(pair), 0) + 1
    difficulty = fit_difficulty(counts)
    inside = (difficulty.pass_rates > 0.02) & (difficulty.pass_rates < 0.98)
    rates, shares = difficulty.pass_rates[inside], difficulty.weights[inside]
    size = smallest_group_size(rates, shares, MAX_SHORTFALL, exponent, largest=SIZES[-1]) or SIZES[-1]
    size = next(each for each in SIZES if each >= size)
    return SolveRates(correct, tried, difficulty, speaking_band(size), size, balanced_exponent(difficulty, size))


def silent_share(found: SolveRates, size: int) -> float:
    """Expected share of silent groups among groups of `size`, over all problems."""
    return float(found.difficulty.weights @ silent_rate(found.difficulty.pass_rates, size))


def mass(found: SolveRates, exponent: float, size: int) -> np.ndarray:
    """Share of the gradient from each of `BINS`."""
    rates, shares = found.difficulty.pass_rates, found.difficulty.weights
    return gradient_mass(rates, shares, BINS, exponent, size)


def summary(found: SolveRates, column: str) -> list[str]:
    """In words, with the settings to be copied."""
    rates = found.correct / found.tried
    never, always = float(np.mean(rates == 0)), float(np.mean(rates == 1))
    low, high = found.band
    samples = np.unique(found.tried)
    each = f"{samples[0]}" if len(samples) == 1 else f"{samples[0]} to {samples[-1]}"
    return [
        f"{len(rates):,} problems × {each} samples: mean pass rate {rates.mean():.3f}, "
        f"{never:.1%} never and {always:.1%} always solved",
        f"recommended: dynamics.group_size={found.group_size} normalization=dial "
        f"normalization.exponent={found.exponent:g} task.data.selection.solve_rate_column={column} "
        f"'task.data.selection.solve_rate=[{low:.3f},{high:.3f}]'",
        f"G = {found.group_size} keeps at least {1 - MAX_SHORTFALL:.0%} of the gradient's limit on problems between 2 "
        f"and 98 % (of {', '.join(map(str, SIZES))}); in the band, {found.within:.0%} of the problems, at most half of "
        f"its groups are silent; α = {found.exponent:g} "
        f"is the least of {', '.join(f'{each:g}' for each in EXPONENTS)} that gives the harder half of the problems at "
        f"least {FAIR_SHARE:.0%} of the gradient, or 1",
    ]


def silence_table(found: SolveRates) -> Table:
    table = Table("G", "silent groups, all problems", title="Silence", title_justify="left")
    for size in SIZES:
        table.add_row(str(size), f"{silent_share(found, size):.1%}")
    return table


def mass_table(found: SolveRates) -> Table:
    title = f"Share of the gradient by pass rate, G = {found.group_size}"
    table = Table("pass rate", "problems", *(f"α = {each:g}" for each in EXPONENTS), title=title, title_justify="left")
    columns = [mass(found, each, found.group_size) for each in EXPONENTS]
    for index, (low, high) in enumerate(_bins()):
        cells = [f"{column[index]:.1%}" for column in columns]
        table.add_row(f"{low:g} – {high:g}", f"{_share(found, index):.1%}", *cells)
    return table


def _bins() -> list[tuple[float, float]]:
    return list(pairwise(BINS))


def _share(found: SolveRates, index: int) -> float:
    return float(np.histogram(found.difficulty.pass_rates, BINS, weights=found.difficulty.weights)[0][index])


def _rates(found: SolveRates) -> Draw:
    def draw(axes: Axes) -> None:
        # A bin for each k/n, or twenty.
        parts = min(int(found.tried.max()), 20)
        edges = (np.arange(parts + 2) - 0.5) / parts
        axes.hist(found.correct / found.tried, bins=edges, color=BLUE, alpha=0.5, label="measured k/n")
        counted = np.histogram(found.difficulty.pass_rates, edges, weights=found.difficulty.weights)
        axes.stairs(counted[0] * len(found.correct), counted[1], color=BLACK, label="behind it (mixture fit)")
        axes.axvspan(*found.band, color=GREEN, alpha=0.08, linewidth=0, label="recommended band")
        axes.set_xlim(edges[0], edges[-1])
        axes.set_xlabel("pass rate")
        axes.set_ylabel("problems")
        axes.legend()
        axes.set_title("how hard the problems are")

    return draw


def _silence(found: SolveRates) -> Draw:
    def draw(axes: Axes) -> None:
        sizes = np.arange(2, SIZES[-1] + 1)
        axes.plot(sizes, [silent_share(found, int(each)) for each in sizes], color=BLUE)
        axes.axvline(found.group_size, color=GREEN, linestyle=":", label="recommended")
        axes.set_ylim(0, 1)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_xlabel("group size G")
        axes.legend()
        axes.set_title("silent groups (share)")

    return draw


def _mass(found: SolveRates) -> Draw:
    def draw(axes: Axes) -> None:
        places = np.arange(len(BINS) - 1)
        drawn = ((0.0, BLUE, "α = 0 (Dr. GRPO)"), (1.0, ORANGE, "α = 1 (GRPO)"), (2.0, GREEN, "α = 2"))
        for offset, (exponent, color, label) in zip((-0.27, 0, 0.27), drawn, strict=True):
            axes.bar(places + offset, mass(found, exponent, found.group_size), 0.25, color=color, label=label)
        axes.set_xticks(places, [f"{low:g}–{high:g}" for low, high in _bins()])
        axes.set_xlabel("pass rate")
        axes.legend()
        axes.set_title(f"share of the gradient, G = {found.group_size}")

    return draw


def _examples(rows: Sequence[Mapping[str, Any]], column: str) -> list[dict[str, str]]:
    """The hardest, a middling and an easy problem that were solved at least once and not always."""
    mixed = sorted((row for row in rows if 0 < row[column] < 1), key=lambda row: row[column])
    chosen = [mixed[index] for index in (0, len(mixed) // 2, -1)] if mixed else []
    return [
        {"rate": f"{row[column]:.2f}", "problem": str(row["problem"]), "answer": str(row["answer"])} for row in chosen
    ]
