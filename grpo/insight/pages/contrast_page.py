"""This module makes the page of a comparison of variants."""

from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from grpo.config.folder import PAGE_FILE
from grpo.config.start import run_name
from grpo.evaluation.pass_rates import FEWEST_SEEDS
from grpo.host.terminal import Terminal, clean
from grpo.insight.logs.finished_runs import Run
from grpo.insight.pages.contrast import SURE, Contrast, Variant
from grpo.insight.pages.contrast_panels import PANELS
from grpo.insight.pages.contrast_tables import CAPTIONS, by_quarter, health, ratio, results, settings
from grpo.insight.pages.course import describe_state, unfinished, where
from grpo.insight.pages.links import links_to
from grpo.insight.pages.page import PAGE, PAIRS, TERMINAL, Block, Kind, Number, Page, publish
from grpo.insight.pages.summary import unlike
from grpo.insight.pages.verdict import GOOD, UNSURE, probability
from grpo.insight.pages.yardstick import Yardstick
from grpo.telemetry.json_lines import Row

NUM_SAMPLES = 3
# The head of the page names at most this many variants.
MOST_LISTED = 6
EXCERPT = 400
ABOUT_SAMPLES = "These are the problems on which the variants differ most, with completions of the first seed."
# The columns of the results that fit on a terminal: variant, after, difference, seeds higher, p, tokens.
NARROW = (0, 3, 4, 5, 6, -1)


def write_contrast(contrast: Contrast, folder: Path, notes: Sequence[str] = (), also: Collection[str] = ()) -> None:
    """Prints a comparison, and writes it into `folder` as a page and in the formats of `also`.

    `notes` are sentences to add to the conclusion, for example about runs that failed.
    """
    folders = [run.folder for variant in contrast.variants for run in variant.runs]
    publish(contrast_page(contrast, folder, notes), folder / PAGE_FILE, Terminal(), also, folders)


def contrast_page(contrast: Contrast, folder: Path, notes: Sequence[str] = ()) -> Page:
    """Returns the page of a comparison, which links to those of its runs relative to `folder`."""
    unlike_asked, outcome = differently_asked(contrast), results(contrast)
    lines = [*unlike_asked, *conclusion(contrast), *courses(contrast), *notes]
    links = links_to([run.folder for variant in contrast.variants for run in variant.runs], folder)
    tables = [
        Block(Kind.TABLE, rows, title, only=PAGE, legend=CAPTIONS[title])
        for title, rows in (
            ("Results", outcome),
            ("Learned, by difficulty before training", by_quarter(contrast)),
            ("How the runs went", health(contrast)),
            ("Settings that differ", settings(contrast)),
        )
    ]
    return Page(
        *("Variants compared", run_name(folder), lines[:1]),
        mood=GOOD if not unlike_asked and any(v.against and v.against.clear for v in contrast.variants) else UNSURE,
        blocks=[
            Block(Kind.TABLE, [[row[at] for at in NARROW] for row in outcome], only=TERMINAL, texts=range(len(NARROW))),
            Block(Kind.LINES, lines[1:], "What to know first"),
            Block(Kind.LINKS, links, "Runs"),
            tables[0],
            Block(Kind.CHARTS, [partial(panel, contrast=contrast) for panel in PANELS], "Charts", layout=PAIRS),
            *tables[1:],
            Block(Kind.COMPLETIONS, samples(contrast), "Completions", ABOUT_SAMPLES),
        ],
        numbers=numbers(contrast),
        about=_listed([variant.name for variant in contrast.variants]),
        words=(
            *(("pass@1", "percentage point") if contrast.yardstick.in_percent else ()),
            *("held-out problems", "seed", "95 % interval", "p", "group", "silent group", "entropy"),
        ),
    )


def _listed(names: Sequence[str]) -> str:
    """Joins names of variants by commas: the first `MOST_LISTED`, and how many more there are."""
    more = f" and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else ""
    return ", ".join(names[:MOST_LISTED]) + more


def conclusion(contrast: Contrast) -> list[str]:
    """Says in sentences which variants differ from the first, by how much, and how certain that is."""
    base, others = contrast.base, [variant for variant in contrast.variants if variant.against]
    yardstick = contrast.yardstick
    if not others:
        return [
            f"The held-out {yardstick.name} of {base.name} went from {yardstick.value(base.first)} to "
            f"{yardstick.values(base.last)}. There is no other variant to compare it with."
        ]
    sentences = [_winner(contrast)] if len(others) > 1 else []
    for word, better in (("higher", 1), ("lower", -1)):
        clear_variants = [
            variant for variant in others if variant.against.clear and variant.against.difference.value * better > 0
        ]
        if clear_variants:
            variant_list = ", ".join(_surely(variant, yardstick) for variant in clear_variants)
            sentences.append(f"These variants end clearly {word} than {base.name}: {variant_list}.")
    unclear_variants = [variant for variant in others if variant.against.telling and not variant.against.clear]
    if unclear_variants:
        in_units = "in points" if yardstick.in_percent else "of the mean reward"
        differences = ", ".join(
            f"{variant.name} {yardstick.changes(variant.against.difference)}" for variant in unclear_variants
        )
        sentences.append(f"No clear difference from {base.name} ({in_units}): {differences}.")
    too_few = [variant for variant in others if not variant.against.telling]
    if too_few:
        sentences.append(_open(too_few, base, yardstick))
    cheaper = [
        variant
        for variant in others
        if variant.arrived == len(variant.runs)
        and variant.against.telling
        and variant.against.tokens_p < SURE
        and variant.against.tokens.value < 1
    ]
    if cheaper and base.arrived == len(base.runs):
        variant_list = ", ".join(
            f"{variant.name} with {ratio(variant.against.tokens)} of its tokens" for variant in cheaper
        )
        sentences.append(
            f"These variants reach {yardstick.value(contrast.level)} with fewer sampled tokens than {base.name}: "
            f"{variant_list}."
        )
    sentences.append(_certainty(contrast.problems, len(base.runs), len(others)))
    sentences.append(
        "Quarters of difficulty are formed by the first evaluation. By chance alone the hardest quarter rises and the "
        "easiest falls, equally in all variants, so compare the variants with each other."
    )
    return sentences


def differently_asked(contrast: Contrast) -> list[str]:
    """Says in what the variants' last evaluations differ, since that alone may make a difference."""
    conditions = unlike([variant.runs[0].evaluations[-1] for variant in contrast.variants])
    if not conditions:
        return []
    condition_list = "; ".join(f"{name} is {_of_each(contrast, values)}" for name, values in conditions.items())
    return [f"The variants were evaluated differently, which alone may make a difference: {condition_list}."]


def _of_each(contrast: Contrast, values: Sequence[Any]) -> str:
    """Joins a value of each variant, as "1.0 of base, 0.5 of other"."""
    return _listed([f"{value} of {variant.name}" for variant, value in zip(contrast.variants, values, strict=True)])


def courses(contrast: Contrast) -> list[str]:
    """Says how many steps the variants took if not the same, which runs were resumed, and which have not finished."""
    runs = [run for variant in contrast.variants for run in variant.runs]
    steps = [f"{max(run.evaluations[-1]['step'] for run in variant.runs):,}" for variant in contrast.variants]
    resumed_runs = [f"{run_name(run.folder)} {where(run.resumptions)}" for run in runs if run.resumptions]
    sentences = [f"The number of optimizer steps is {_of_each(contrast, steps)}."] if len(set(steps)) > 1 else []
    sentences += (
        [f"Of {len(runs)} runs {len(resumed_runs)} had to be resumed: {_listed(resumed_runs)}."] if resumed_runs else []
    )
    for run in runs:
        sentences += unfinished(run_name(run.folder), describe_state(run.folder, run.rows, run.config))
    return sentences


def _open(variants: Sequence[Variant], base: Variant, yardstick: Yardstick) -> str:
    """Says how far variants with too few seeds ended from the first, and how many seeds are needed to decide."""
    seeds = min(variant.against.seeds for variant in variants)
    endings = " and ".join(
        f"{variant.name} {_apart(variant.against.difference.value, yardstick)} {base.name}" for variant in variants
    )
    return (
        f"Nothing is decided: {seeds} seed{'s' * (seeds > 1)} cannot show whether another would agree. In held-out "
        f"{yardstick.name} {endings}. At least {FEWEST_SEEDS} seeds are needed to tell."
    )


def _apart(more: float, yardstick: Yardstick) -> str:
    """Says by how much one variant ended above or below another, as "ended 1.5 points above"."""
    amount = yardstick.change(more)
    if not float(amount):
        return "ended level with"
    return f"ended {amount[1:]} {yardstick.unit} {'above' if more > 0 else 'below'}"


def _winner(contrast: Contrast) -> str:
    """Says which variant ended highest, and which of the others may be as good."""
    best_end = next(variant.last for variant in contrast.variants if variant.name == contrast.best)
    highest = f"{contrast.best} ended highest, at {contrast.yardstick.values(best_end)}"
    if not contrast.rivals:
        return f"{highest}, clearly above all others."
    if len(contrast.rivals) == len(contrast.variants) - 1:
        return f"{highest}, but that decides nothing: no other variant is clearly below it."
    return f"{highest}. These may be as good, since they are not clearly below it: {', '.join(contrast.rivals)}."


def _surely(variant: Variant, yardstick: Yardstick) -> str:
    """Says by how much a variant differs from the first, how many seeds agree, and the p-value."""
    against = variant.against
    agreeing = against.higher if against.difference.value > 0 else against.lower
    how_sure = f"{agreeing} of {against.seeds} seeds, p = {against.p:.2g}"
    return f"{variant.name} by {yardstick.changes(against.difference)} {yardstick.unit} ({how_sure})"


def _certainty(problems: int, seeds: int, others: int) -> str:
    """Says what the intervals and p-values include, and what a small number of seeds cannot show."""
    certainty = (
        f"The comparison has {problems} held-out problems and {seeds} seed{'s' if seeds > 1 else ''}. Intervals are of "
        f"95 %, over {'seeds and problems' if seeds > 1 else 'problems only'}, each by itself"
    )
    if others > 1:
        certainty += (
            f"; p-values are corrected for the {others} comparisons (Holm), and so are the intervals of differences "
            "from the first variant: they leave out 0 exactly where p is below 0.05."
        )
    else:
        certainty += "."
    least = 2.0 ** (1 - seeds)
    if seeds >= FEWEST_SEEDS and least >= SURE:
        certainty += (
            f" With {seeds} seeds they rest on differences being about normal: by their signs alone nothing is sure, "
            f"since all {seeds} agree by chance in {least:.1%} of cases."
        )
    return certainty


def numbers(contrast: Contrast) -> list[Number]:
    """Returns the three numbers on top of the page: the best variant, its lead, and how many runs were compared."""
    best, value = max(contrast.variants, key=lambda variant: variant.last.value), contrast.yardstick.value
    seeds = [len(variant.runs) for variant in contrast.variants]
    runs = f"{min(seeds)}" if min(seeds) == max(seeds) else f"{min(seeds)} to {max(seeds)}"
    first = Number(f"highest at the end: {best.name}", value(best.last.value), f"{value(best.first)} before training")
    return [
        first,
        _lead(contrast, best),
        Number(
            "runs compared", f"{sum(seeds)}", f"seeds of each variant: {runs}; {contrast.problems} held-out problems"
        ),
    ]


def _lead(contrast: Contrast, best: Variant) -> Number:
    """Says how far the best variant ended above the first one. If it is the first, above the one that comes next."""
    others, yardstick = [variant for variant in contrast.variants if variant.against], contrast.yardstick
    if not others:
        gain = best.last.value - best.first
        return Number(
            f"change, in {yardstick.change_unit}",
            yardstick.change(gain),
            "there is no other variant to compare it with",
        )
    other = best if best.against else max(others, key=lambda variant: variant.last.value)
    difference = other.against.difference
    ends = [difference.value, difference.low, difference.high]
    value, low, high = ends if best.against else (-ends[0], -ends[2], -ends[1])
    return Number(
        f"{'points' if yardstick.in_percent else 'reward'} above {contrast.base.name if best.against else other.name}",
        yardstick.change(value),
        f"95 % interval {yardstick.change(low)} to {yardstick.change(high)}, {probability(other.against.p)}"
        if other.against.telling
        else "too few seeds: another may differ",
    )


def samples(contrast: Contrast) -> list[dict[str, Any]]:
    """Returns the `NUM_SAMPLES` problems whose pass rates after training differ most between the variants.

    Each problem comes with one completion of every variant after training, and one of the first variant before.
    """
    rates = [variant.runs[0].rates(-1) for variant in contrast.variants]
    shared_problems = set(contrast.base.runs[0].rates(0)).intersection(*rates)
    spread = {name: max(r[name] for r in rates) - min(r[name] for r in rates) for name in shared_problems}
    problem_ids = sorted(spread, key=lambda name: (-spread[name], name))[:NUM_SAMPLES]
    return [_sample(contrast, name) for name in problem_ids]


def _sample(contrast: Contrast, name: str) -> dict[str, Any]:
    def row(run: Run, index: int) -> dict[str, Any]:
        return next(row for row in run.evaluations[index]["per_problem"] if row["problem_id"] == name)

    row_before = row(contrast.base.runs[0], 0)
    named_rows = [("before training", row_before)]
    named_rows += [(variant.name, row(variant.runs[0], -1)) for variant in contrast.variants]
    return {
        "score": "",
        "question": row_before["question"],
        "answer": row_before["answer"],
        "about": "",
        "rows": [
            {
                **{"graded": True, "judged": False, "correct": False},
                "facts": f"{writer}: {_score(row, contrast.yardstick)}; the first of them",
                "text": clean(row["completion"][:EXCERPT]),
            }
            for writer, row in named_rows
        ],
    }


def _score(row: Row, yardstick: Yardstick) -> str:
    if not yardstick.in_percent:
        return f"mean reward {yardstick.value(row['reward'])}"
    return f"{row['correct']} of {row['total']} right"
