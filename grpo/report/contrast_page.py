"""This module writes a comparison of variants as a web page, a picture, Markdown and a table on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table

from grpo.evaluation.pass_rates import ENOUGH_SEEDS
from grpo.host.terminal import Terminal
from grpo.report import page
from grpo.report.contrast import QUARTERS, Contrast, Variant
from grpo.report.contrast_panels import PANELS
from grpo.report.curves import STYLE
from grpo.report.runs import Run, differing_keys
from grpo.types import Interval

PAGE_FILE, PLOT_FILE, MARKDOWN_FILE = "report.html", "report.png", "report.md"
SURE = 0.05
NUM_SAMPLES = 3
EXCERPT = 400
# A terminal has room for these columns of the results only: variant, after, difference, p, tokens.
NARROW = (0, 3, 4, 5, -1)


def write_contrast(shown: Contrast, folder: Path, notes: Sequence[str] = (), console: Terminal | None = None) -> None:
    """Writes page, picture and Markdown into `folder`, and prints the table and the conclusion.

    `notes` are further sentences for the reader, for example about runs that failed.
    """
    console = console or Terminal()
    tables = {
        "Results": results(shown),
        "Learned, by difficulty before training": by_quarter(shown),
        "How the runs went": health(shown),
        "Settings that differ": settings(shown),
    }
    said = [*conclusion(shown), *notes]
    _draw(shown, folder / PLOT_FILE)
    page.write_page(
        "contrast.html",
        folder / PAGE_FILE,
        name=folder.resolve().name,
        said=said,
        tables=tables,
        pictures=[page.picture(partial(panel, shown=shown)) for panel in PANELS],
        samples=samples(shown),
    )
    lines = [f"# {folder.resolve().name}", *said, f"![curves]({PLOT_FILE})"]
    lines += ["\n".join([f"## {title}\n", *_markdown(rows)]) for title, rows in tables.items()]
    (folder / MARKDOWN_FILE).write_text("\n\n".join(lines) + "\n", encoding="utf-8", errors="backslashreplace")
    header, *rows = ([row[index] for index in NARROW] for row in tables["Results"])
    table = Table(*header)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for line in said:
        console.print(line, soft_wrap=True, highlight=False)
    console.print(f"page    {folder / PAGE_FILE}\npicture {folder / PLOT_FILE}", soft_wrap=True)


def conclusion(shown: Contrast) -> list[str]:
    """Says in sentences which variants differ from the first, by how much, and how certain that is."""
    base, others = shown.base, [variant for variant in shown.variants if variant.against]
    if not others:
        return [
            f"Held-out pass@1 of {base.name} went from {base.first:.1%} to {_percent(base.last)}. There is no other "
            "variant to compare it with."
        ]
    seeds = len(base.runs)
    said = []
    for word, better in (("higher", 1), ("lower", -1)):
        clear = [
            variant for variant in others if variant.against.p < SURE and variant.against.difference.value * better > 0
        ]
        if clear:
            named = ", ".join(
                f"{variant.name} by {100 * abs(variant.against.difference.value):.1f} points "
                f"(p = {variant.against.p:.2g})"
                for variant in clear
            )
            said.append(f"These variants end clearly {word} than {base.name}: {named}.")
    unclear = [variant for variant in others if variant.against.p >= SURE]
    if unclear:
        named = ", ".join(f"{variant.name} {_points(variant.against.difference)}" for variant in unclear)
        said.append(f"No clear difference from {base.name} (in points): {named}.")
    cheaper = [
        variant
        for variant in others
        if variant.arrived == len(variant.runs) and seeds > 1 and variant.against.tokens.high < 1
    ]
    if cheaper and base.arrived == len(base.runs):
        named = ", ".join(f"{variant.name} with {_ratio(variant.against.tokens)} of its tokens" for variant in cheaper)
        said.append(f"These variants reach {shown.level:.1%} with fewer sampled tokens than {base.name}: {named}.")
    said.append(
        f"The comparison has {shown.problems} held-out problems and {seeds} seed{'s' if seeds > 1 else ''}. Intervals "
        "are 95 % over seeds and problems; p-values are corrected for the number of variants (Holm)."
        + (f" With fewer than {ENOUGH_SEEDS} seeds, both overstate the certainty." if seeds < ENOUGH_SEEDS else "")
    )
    said.append(
        "Quarters of difficulty are formed by the first evaluation. By chance alone the hardest quarter rises and the "
        "easiest falls, equally in all variants, so compare the variants with each other."
    )
    return said


def results(shown: Contrast) -> list[tuple[str, ...]]:
    """Returns the table of results: a header, and a row per variant."""
    ks = sorted({int(k) for variant in shown.variants for k in variant.pass_at if int(k) > 1})
    rows = [
        (
            *("variant", "seeds", "pass@1 before", "after", f"minus {shown.base.name}", "p"),
            *(f"pass@{k}" for k in ks),
            *(f"reached {shown.level:.1%}", f"tokens to there, ÷ {shown.base.name}"),
        )
    ]
    for variant in shown.variants:
        against = variant.against
        rows.append(
            (
                variant.name,
                str(len(variant.runs)),
                f"{variant.first:.1%}",
                _percent(variant.last),
                _points(against.difference) if against else "",
                f"{against.p:.2g}" if against else "",
                *(f"{variant.pass_at[str(k)]:.1%}" if str(k) in variant.pass_at else "" for k in ks),
                f"{variant.arrived} of {len(variant.runs)}",
                _tokens(variant),
            )
        )
    return rows


def by_quarter(shown: Contrast) -> list[tuple[str, ...]]:
    """Returns the table of what each variant learned on each quarter of the problems, and its difference from the
    first."""
    rows = [("variant", *QUARTERS, *(f"{name}, minus {shown.base.name}" for name in QUARTERS))]
    for variant in shown.variants:
        against = variant.against.quarters if variant.against else ()
        rows.append(
            (
                variant.name,
                *map(_points, variant.quarters),
                *(map(_points, against) if against else [""] * len(QUARTERS)),
            )
        )
    return rows


def health(shown: Contrast) -> list[tuple[str, ...]]:
    """Returns the table of how training went: silent groups observed and predicted, the gradient on extreme prompts,
    entropy, length, the best law of the reward curve, and the diagnosis."""
    rows = [
        (
            *("variant", "silent groups", "predicted by p^G + (1−p)^G", "gradient on p < .1 or > .9"),
            *("entropy, last quarter", "length, last quarter", "best law of the reward curve", "diagnosis"),
        )
    ]
    for variant in shown.variants:
        rows.append(
            (
                variant.name,
                f"{variant.silent:.1%}",
                f"{variant.law:.1%}",
                f"{variant.extreme:.1%}",
                _late(variant, "policy/entropy", 2),
                _late(variant, "completions/length_mean", 1),
                _counted(variant.laws),
                _counted(variant.findings) or "nothing found",
            )
        )
    return rows


def settings(shown: Contrast) -> list[tuple[str, ...]]:
    """Returns the table of the keys in which the variants' configurations differ."""
    configs = {variant.name: variant.runs[0].config for variant in shown.variants}
    differing = differing_keys(configs)
    return [("key", *configs), *((key, *map(str, values)) for key, values in differing.items())]


def samples(shown: Contrast) -> list[dict[str, Any]]:
    """Returns the few problems whose pass rates after training differ most between the variants.

    Each has the first completion of each variant after training, and one of the first variant before training.
    """
    rates = [variant.runs[0].rates(-1) for variant in shown.variants]
    spread = {name: max(r[name] for r in rates) - min(r[name] for r in rates) for name in rates[0]}
    chosen = sorted(spread, key=lambda name: (-spread[name], name))[:NUM_SAMPLES]
    return [_sample(shown, name) for name in chosen]


def _sample(shown: Contrast, name: str) -> dict[str, Any]:
    def row(run: Run, index: int) -> dict[str, Any]:
        return next(row for row in run.evaluations[index]["per_problem"] if row["problem_id"] == name)

    before = row(shown.base.runs[0], 0)
    written = [("before training", before)]
    written += [(variant.name, row(variant.runs[0], -1)) for variant in shown.variants]
    return {
        "question": before["question"],
        "answer": before["answer"],
        "completions": [
            {"who": who, "score": f"{row['correct']} of {row['total']}", "text": row["completion"][:EXCERPT]}
            for who, row in written
        ],
    }


def _draw(shown: Contrast, path: Path) -> None:
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10, 6.4), dpi=160, layout="constrained")
        for axes, panel in zip(figure.subplots(2, 2).flat, PANELS, strict=False):
            panel(axes, shown)
        figure.savefig(path)


def _late(variant: Variant, name: str, digits: int) -> str:
    values = [run.late(name) for run in variant.runs]
    mean = sum(values) / len(values)
    return "" if mean != mean else f"{mean:.{digits}f}"


def _counted(names: Any) -> str:
    return ", ".join(f"{name} ({number})" for name, number in sorted(names.items(), key=lambda item: -item[1]))


def _percent(interval: Interval) -> str:
    if interval.low == interval.high:
        return f"{interval.value:.1%}"
    return f"{interval.value:.1%} [{max(0.0, interval.low):.1%}, {min(1.0, interval.high):.1%}]"


def _points(interval: Interval) -> str:
    """Formats a difference in percentage points."""
    if interval.low == interval.high:
        return f"{100 * interval.value:+.1f}"
    return f"{100 * interval.value:+.1f} [{100 * interval.low:+.1f}, {100 * interval.high:+.1f}]"


def _tokens(variant: Variant) -> str:
    """Formats the ratio of tokens to the first variant's; "≥" when not all runs reached the level."""
    if variant.against is None:
        return "1"
    return ("" if variant.arrived == len(variant.runs) else "≥ ") + _ratio(variant.against.tokens)


def _ratio(interval: Interval) -> str:
    if interval.low == interval.high:
        return f"{interval.value:.2f}"
    return "" if interval.value != interval.value else f"{interval.value:.2f} [{interval.low:.2f}, {interval.high:.2f}]"


def _markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    header, *body = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return [header, "|" + "---|" * len(rows[0]), *body]
