"""What a reproduction of a paper ends with: a table "printed | ours" and a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from grpo.host.terminal import Terminal
from grpo.report.curves import STYLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Row:
    """One number: what it is, what the paper (or a derivation from it) says, what came out here."""

    quantity: str
    expected: str
    ours: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """One table. `expected` heads its middle column: "printed", "derived", "predicted"."""

    title: str
    expected: str
    rows: Sequence[Row]


@dataclass(frozen=True, slots=True)
class Reproduction:
    """Tables, remarks, and what draws the picture."""

    name: str
    comparisons: Sequence[Comparison]
    remarks: Sequence[str]
    draw: Callable[[Figure], None]
    size_inches: tuple[float, float] = (9.0, 3.6)


def present(found: Reproduction, output: Path) -> None:
    """Prints the tables, writes them as Markdown, and draws the picture, into `output`."""
    import matplotlib
    from matplotlib.figure import Figure

    output.mkdir(parents=True, exist_ok=True)
    console, lines = Terminal(), [f"# {found.name}"]
    for each in found.comparisons:
        table = Table(title=each.title, title_justify="left")
        for name, side in (("", "left"), (each.expected, "right"), ("ours", "right")):
            table.add_column(name, justify=side)
        lines += [f"\n{each.title}\n", f"| | {each.expected} | ours |", "|---|---|---|"]
        for row in each.rows:
            table.add_row(row.quantity, row.expected, row.ours)
            lines.append(f"| {row.quantity} | {row.expected} | {row.ours} |")
        console.print(table)
    for remark in found.remarks:
        console.print(remark, soft_wrap=True)
        lines.append(f"\n{remark}")
    picture, text = output / f"{found.name}.png", output / f"{found.name}.md"
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=found.size_inches, dpi=160, layout="constrained")
        found.draw(figure)
        figure.savefig(picture)
    text.write_text("\n".join([*lines, f"\n![{found.name}]({picture.name})\n"]))
    console.print(f"picture {picture}\ntable   {text}", soft_wrap=True)
