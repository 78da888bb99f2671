"""This module presents the reproduction of a paper: tables of "printed | ours" and a picture, and runs its script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from grpo.commands.words import typed
from grpo.host.terminal import Terminal
from grpo.insight.pages.style import STYLE
from grpo.tasks.solve_rates import read_solve_rates

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Row:
    """A row compares one quantity: the value printed in a paper or derived from it, and the value that we measured."""

    quantity: str
    expected: str
    ours: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison is one table. `expected` is the heading of the column of expected values, such as "printed"."""

    title: str
    expected: str
    rows: Sequence[Row]


@dataclass(frozen=True, slots=True)
class Reproduction:
    """A reproduction holds what a script has found: tables, remarks, and a function that draws the picture."""

    name: str
    comparisons: Sequence[Comparison]
    remarks: Sequence[str]
    draw: Callable[[Figure], None]
    size_inches: tuple[float, float] = (9.0, 3.6)


def command(words: Sequence[str], reproduce: Callable[..., Reproduction], **kinds: Any) -> None:
    """Runs a script of this folder with `FOLDER key=value …`: it reads the keys, reproduces, and presents in FOLDER."""
    folder, *settings = words
    present(reproduce(**typed(settings, **kinds)), Path(folder))


def pass_rates(path: str) -> np.ndarray:
    """Reads pass rates from a file of `grpo solve-rates` or of Big-Math's schema."""
    return np.array(read_solve_rates(Path(path)).rates)


def present(reproduction: Reproduction, output: Path) -> None:
    """Prints the tables and remarks, and writes them as Markdown, with the picture as PNG, into `output`."""
    import matplotlib
    from matplotlib.figure import Figure

    output.mkdir(parents=True, exist_ok=True)
    console, lines = Terminal(), [f"# {reproduction.name}"]
    for comparison in reproduction.comparisons:
        table = Table(title=comparison.title, title_justify="left")
        for name, side in (("", "left"), (comparison.expected, "right"), ("ours", "right")):
            table.add_column(name, justify=side)
        lines += [f"\n{comparison.title}\n", f"| | {comparison.expected} | ours |", "|---|---|---|"]
        for row in comparison.rows:
            table.add_row(row.quantity, row.expected, row.ours)
            lines.append(f"| {row.quantity} | {row.expected} | {row.ours} |")
        console.print(table)
    for remark in reproduction.remarks:
        console.print(remark, soft_wrap=True)
        lines.append(f"\n{remark}")
    picture, text = output / f"{reproduction.name}.png", output / f"{reproduction.name}.md"
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=reproduction.size_inches, dpi=160, layout="constrained")
        reproduction.draw(figure)
        figure.savefig(picture)
    text.write_text("\n".join([*lines, f"\n![{reproduction.name}]({picture.name})\n"]))
    console.print(f"picture {picture}\ntable   {text}", soft_wrap=True)
