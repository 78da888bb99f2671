"""This module writes a comparison of variants as a web page, a picture, Markdown and a table on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table

from grpo.config.folder import COMPARISON_PLOT_FILE, PAGE_FILE, REPORT_FILE
from grpo.config.start import run_name
from grpo.evaluation.pass_rates import FEWEST_SEEDS
from grpo.host.disk import write_whole
from grpo.host.terminal import Terminal, clean
from grpo.report import page
from grpo.report.contrast import SURE, Contrast, Variant
from grpo.report.contrast_panels import PANELS
from grpo.report.contrast_tables import CAPTIONS, by_quarter, health, percent, points, ratio, results, settings
from grpo.report.course import standing, unfinished, where
from grpo.report.finished_runs import Run
from grpo.report.glossary import meanings, signed
from grpo.report.style import sheet
from grpo.report.summary import unlike
from grpo.report.verdict import GOOD, UNSURE, Number, probability

NUM_SAMPLES = 3
# The head of the page names at most this many variants.
MOST_LISTED = 6
EXCERPT = 400
# The width of the picture, and the height of each of its rows.
SHEET_INCHES = (10.0, 3.6)
# The columns of the results that fit on a terminal: variant, after, difference, seeds higher, p, tokens.
NARROW = (0, 3, 4, 5, 6, -1)


def write_contrast(shown: Contrast, folder: Path, notes: Sequence[str] = (), console: Terminal | None = None) -> None:
    """Writes a comparison as page, picture and Markdown into `folder`, and prints its table and conclusion.

    `notes` are sentences to add to the conclusion, for example about runs that failed.
    """
    console = console or Terminal()
    tables = {
        "Results": results(shown),
        "Learned, by difficulty before training": by_quarter(shown),
        "How the runs went": health(shown),
        "Settings that differ": settings(shown),
    }
    unlike_asked = differently_asked(shown)
    said = [*unlike_asked, *conclusion(shown), *courses(shown), *notes]
    panels = [partial(panel, shown=shown) for panel in PANELS]
    sheet(panels[:4], folder / COMPARISON_PLOT_FILE, SHEET_INCHES, columns=2, first_wide=False)
    page.write_page(
        "contrast.html",
        folder / PAGE_FILE,
        name=run_name(folder),
        compared=_listed([variant.name for variant in shown.variants]),
        verdict=said[:1],
        mood=GOOD if not unlike_asked and any(_is_clear(variant) for variant in shown.variants) else UNSURE,
        numbers=numbers(shown),
        notes=said[1:],
        tables=tables,
        captions=CAPTIONS,
        pictures=[page.picture(panel) for panel in panels],
        samples=samples(shown),
        meanings=meanings(
            *("pass@1", "held-out problems", "seed", "95 % interval", "percentage point", "p", "group"),
            *("silent group", "entropy", "law"),
        ),
    )
    lines = [f"# {run_name(folder)}", *said, f"![curves]({COMPARISON_PLOT_FILE})"]
    lines += ["\n".join([f"## {title}\n", f"{CAPTIONS[title]}\n", *_markdown(rows)]) for title, rows in tables.items()]
    write_whole(folder / REPORT_FILE, "\n\n".join(lines) + "\n", "backslashreplace")
    header, *rows = ([row[index] for index in NARROW] for row in tables["Results"])
    table = Table(*header)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for line in said:
        console.print(line, soft_wrap=True, highlight=False)
    console.print(f"page    {folder / PAGE_FILE}\npicture {folder / COMPARISON_PLOT_FILE}", soft_wrap=True)


def _is_clear(variant: Variant) -> bool:
    return bool(variant.against and variant.against.clear)


def _listed(names: Sequence[str]) -> str:
    """Joins names of variants by commas: the first `MOST_LISTED`, and how many more there are."""
    more = f" and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else ""
    return ", ".join(names[:MOST_LISTED]) + more


def conclusion(shown: Contrast) -> list[str]:
    """Says in sentences which variants differ from the first, by how much, and how certain that is."""
    base, others = shown.base, [variant for variant in shown.variants if variant.against]
    if not others:
        return [
            f"Held-out pass@1 of {base.name} went from {base.first:.1%} to {percent(base.last)}. There is no other "
            "variant to compare it with."
        ]
    sentences = [_winner(shown)] if len(others) > 1 else []
    for word, better in (("higher", 1), ("lower", -1)):
        clear = [
            variant for variant in others if variant.against.clear and variant.against.difference.value * better > 0
        ]
        if clear:
            named = ", ".join(_surely(variant) for variant in clear)
            sentences.append(f"These variants end clearly {word} than {base.name}: {named}.")
    unclear = [variant for variant in others if variant.against.telling and not variant.against.clear]
    if unclear:
        sentences.append(f"No clear difference from {base.name} (in points): {_differences(unclear)}.")
    too_few = [variant for variant in others if not variant.against.telling]
    if too_few:
        sentences.append(_open(too_few, base))
    cheaper = [
        variant
        for variant in others
        if variant.arrived == len(variant.runs)
        and variant.against.telling
        and variant.against.tokens_p < SURE
        and variant.against.tokens.value < 1
    ]
    if cheaper and base.arrived == len(base.runs):
        named = ", ".join(f"{variant.name} with {ratio(variant.against.tokens)} of its tokens" for variant in cheaper)
        sentences.append(f"These variants reach {shown.level:.1%} with fewer sampled tokens than {base.name}: {named}.")
    sentences.append(_certainty(shown.problems, len(base.runs), len(others)))
    sentences.append(
        "Quarters of difficulty are formed by the first evaluation. By chance alone the hardest quarter rises and the "
        "easiest falls, equally in all variants, so compare the variants with each other."
    )
    return sentences


def differently_asked(shown: Contrast) -> list[str]:
    """Says in what the variants' last evaluations differ, since that alone may make a difference."""
    conditions = unlike([variant.runs[0].evaluations[-1] for variant in shown.variants])
    if not conditions:
        return []
    named = "; ".join(f"{name} is {_of_each(shown, values)}" for name, values in conditions.items())
    return [f"The variants were evaluated differently, which alone may make a difference: {named}."]


def _of_each(shown: Contrast, values: Sequence[Any]) -> str:
    """Joins a value of each variant, as "1.0 of base, 0.5 of other"."""
    return _listed([f"{value} of {variant.name}" for variant, value in zip(shown.variants, values, strict=True)])


def courses(shown: Contrast) -> list[str]:
    """Says how many steps the variants took if not the same, which runs were resumed, and which have not finished."""
    runs = [run for variant in shown.variants for run in variant.runs]
    steps = [f"{max(run.evaluations[-1]['step'] for run in variant.runs):,}" for variant in shown.variants]
    resumed = [f"{run_name(run.folder)} {where(run.resumptions)}" for run in runs if run.resumptions]
    sentences = [f"The number of optimizer steps is {_of_each(shown, steps)}."] if len(set(steps)) > 1 else []
    sentences += [f"Of {len(runs)} runs {len(resumed)} had to be resumed: {_listed(resumed)}."] if resumed else []
    for run in runs:
        sentences += unfinished(run_name(run.folder), standing(run.folder, run.rows, run.config))
    return sentences


def _open(variants: Sequence[Variant], base: Variant) -> str:
    """Says how far variants with too few seeds ended from the first, and how many seeds are needed to decide."""
    seeds = min(variant.against.seeds for variant in variants)
    ended = " and ".join(
        f"{variant.name} {_apart(100 * variant.against.difference.value)} {base.name}" for variant in variants
    )
    return (
        f"Nothing is decided: {seeds} seed{'s' * (seeds > 1)} cannot show whether another would agree. In held-out "
        f"pass@1 {ended}. At least {FEWEST_SEEDS} seeds are needed to tell."
    )


def _apart(points_more: float) -> str:
    """Says by how many percentage points one variant ended above or below another, as "ended 1.5 points above"."""
    amount = f"{abs(points_more):.1f}"
    if amount == "0.0":
        return "ended level with"
    return f"ended {amount} points {'above' if points_more > 0 else 'below'}"


def _winner(shown: Contrast) -> str:
    """Says which variant ended highest, and which of the others may be as good."""
    ended = next(variant.last for variant in shown.variants if variant.name == shown.best)
    highest = f"{shown.best} ended highest, at {percent(ended)}"
    if not shown.rivals:
        return f"{highest}, clearly above all others."
    if len(shown.rivals) == len(shown.variants) - 1:
        return f"{highest}, but that decides nothing: no other variant is clearly below it."
    return f"{highest}. These may be as good, since they are not clearly below it: {', '.join(shown.rivals)}."


def _surely(variant: Variant) -> str:
    """Says by how many points a variant differs from the first, how many seeds agree, and the p-value."""
    against = variant.against
    agreeing = against.higher if against.difference.value > 0 else against.seeds - against.higher
    how_sure = f"{agreeing} of {against.seeds} seeds, p = {against.p:.2g}"
    return f"{variant.name} by {points(against.difference)} points ({how_sure})"


def _differences(variants: Sequence[Variant]) -> str:
    return ", ".join(f"{variant.name} {points(variant.against.difference)}" for variant in variants)


def _certainty(problems: int, seeds: int, others: int) -> str:
    """Says what the intervals and p-values include, and what a small number of seeds cannot show."""
    said = (
        f"The comparison has {problems} held-out problems and {seeds} seed{'s' if seeds > 1 else ''}. Intervals are of "
        f"95 %, over {'seeds and problems' if seeds > 1 else 'problems only'}, each by itself"
    )
    said += f"; p-values are corrected for the {others} comparisons (Holm)." if others > 1 else "."
    least = 2.0 ** (1 - seeds)
    if seeds >= FEWEST_SEEDS and least >= SURE:
        said += (
            f" With {seeds} seeds they rest on differences being about normal: by their signs alone nothing is sure, "
            f"since all {seeds} agree by chance in {least:.1%} of cases."
        )
    return said


def numbers(shown: Contrast) -> list[Number]:
    """Returns the three numbers on top of the page: the best variant, its lead, and how many runs were compared."""
    best = max(shown.variants, key=lambda variant: variant.last.value)
    seeds = [len(variant.runs) for variant in shown.variants]
    runs = f"{min(seeds)}" if min(seeds) == max(seeds) else f"{min(seeds)} to {max(seeds)}"
    first = Number(f"highest at the end: {best.name}", f"{best.last.value:.1%}", f"{best.first:.1%} before training")
    if best.against:
        difference = best.against.difference
        lead = Number(
            f"points above {shown.base.name}",
            signed(100 * difference.value),
            f"95 % interval {signed(100 * difference.low)} to {signed(100 * difference.high)}, "
            f"{probability(best.against.p)}"
            if best.against.telling
            else "too few seeds: another may differ",
        )
    else:
        lead = Number(f"points above {shown.base.name}", "–", f"no variant ends higher than {shown.base.name}")
    return [
        first,
        lead,
        Number("runs compared", f"{sum(seeds)}", f"seeds of each variant: {runs}; {shown.problems} held-out problems"),
    ]


def samples(shown: Contrast) -> list[dict[str, Any]]:
    """Returns the `NUM_SAMPLES` problems whose pass rates after training differ most between the variants.

    Each problem comes with one completion of every variant after training, and one of the first variant before.
    """
    rates = [variant.runs[0].rates(-1) for variant in shown.variants]
    graded = set(shown.base.runs[0].rates(0)).intersection(*rates)
    spread = {name: max(r[name] for r in rates) - min(r[name] for r in rates) for name in graded}
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
            {
                "who": who,
                "score": f"{row['correct']} of {row['total']}",
                "text": clean(row["completion"][:EXCERPT]),
            }
            for who, row in written
        ],
    }


def _markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    header, *body = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return [header, "|" + "---|" * len(rows[0]), *body]
