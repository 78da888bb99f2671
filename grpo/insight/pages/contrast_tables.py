"""This module makes the tables of a comparison of variants, as rows of text below a header row."""

from typing import Any

from grpo.insight.logs.finished_runs import differing_keys
from grpo.insight.pages.contrast import QUARTERS, Contrast, Variant
from grpo.types import Interval
from grpo.types import metrics as m

# Meaning of the columns of each table.
CAPTIONS = {
    "Results": (
        "Pass rates and mean rewards are those of held-out problems. “Minus” is the difference at the end, for pass "
        "rates in percentage points. “Seeds higher” counts the seeds with which a variant ended above the first. p is "
        "the probability of so large a difference by chance, corrected for the number of variants (Holm); fewer than "
        "three seeds have none. “Reached” counts the runs that made three quarters of the first variant's gain, "
        "if it has one. “Tokens to there” are the sampled tokens until then, read off straight lines between "
        "evaluations, as a multiple of the first variant's. "
        "“≥” says that not every run got there."
    ),
    "Learned, by difficulty before training": (
        "Each cell is the change of the pass rate in percentage points, or of the mean reward, on a quarter of the "
        "problems."
    ),
    "How the runs went": (
        "In a silent group all G completions have the same reward, so nothing is learned from it. If each prompt has "
        "the pass rate p, a share of p^G + (1−p)^G of the groups is silent. Where the gradient comes from is known for "
        "the dials' normalization only. In brackets is the number of runs."
    ),
    "Settings that differ": "All other keys are the same in all variants.",
}


def results(contrast: Contrast) -> list[tuple[str, ...]]:
    """Returns the table of results: a header, and a row per variant."""
    yardstick = contrast.yardstick
    ks = sorted({int(k) for variant in contrast.variants for k in variant.pass_at if int(k) > 1})
    rows = [
        (
            *("variant", "seeds", f"{yardstick.name} before", "after"),
            *(f"minus {contrast.base.name}", "seeds higher", "p", *(f"pass@{k}" for k in ks)),
            f"reached {yardstick.value(contrast.level)}" if contrast.has_level else "reached",
            f"tokens to there, ÷ {contrast.base.name}",
        )
    ]
    for variant in contrast.variants:
        against = variant.against
        rows.append(
            (
                variant.name,
                str(len(variant.runs)),
                yardstick.value(variant.first),
                yardstick.values(variant.last),
                yardstick.changes(against.difference) if against else "",
                f"{against.higher} of {against.seeds}" if against else "",
                f"{against.p:.2g}" if against and against.telling else "",
                *(f"{variant.pass_at[str(k)]:.1%}" if str(k) in variant.pass_at else "" for k in ks),
                *((f"{variant.arrived} of {len(variant.runs)}", _tokens(variant)) if contrast.has_level else ("", "")),
            )
        )
    return rows


def by_quarter(contrast: Contrast) -> list[tuple[str, ...]]:
    """Returns the table of each variant's change of the result on each quarter of the problems, and its difference
    from the first variant's."""
    changes = contrast.yardstick.changes
    rows = [("variant", *QUARTERS, *(f"{name}, minus {contrast.base.name}" for name in QUARTERS))]
    for variant in contrast.variants:
        against = variant.against.quarters if variant.against else ()
        rows.append(
            (
                variant.name,
                *map(changes, variant.quarters),
                *(map(changes, against) if against else [""] * len(QUARTERS)),
            )
        )
    return rows


def health(contrast: Contrast) -> list[tuple[str, ...]]:
    """Returns the table of how training went: silent groups observed and predicted, the gradient on extreme prompts,
    entropy, length, and the diagnosis."""
    rows = [
        (
            *("variant", "silent groups", "predicted by p^G + (1−p)^G", "gradient from p < 0.1 or > 0.9"),
            *("entropy, last quarter", "length, last quarter", "diagnosis"),
        )
    ]
    for variant in contrast.variants:
        rows.append(
            (
                variant.name,
                *("" if share != share else f"{share:.1%}" for share in (variant.silent, variant.law, variant.extreme)),
                _late(variant, m.ENTROPY, 2),
                _late(variant, m.LENGTH, 1),
                _counted(variant.findings) or "nothing found",
            )
        )
    return rows


def settings(contrast: Contrast) -> list[tuple[str, ...]]:
    """Returns the table of the keys in which the variants' configurations differ."""
    configs = {variant.name: variant.runs[0].config for variant in contrast.variants}
    values_by_key = differing_keys(configs)
    return [("key", *configs), *((key, *map(str, values)) for key, values in values_by_key.items())]


def _late(variant: Variant, name: str, digits: int) -> str:
    values = [run.late(name) for run in variant.runs]
    mean = sum(values) / len(values)
    return "" if mean != mean else f"{mean:.{digits}f}"


def _counted(names: Any) -> str:
    return ", ".join(f"{name} ({number})" for name, number in sorted(names.items(), key=lambda item: -item[1]))


def _tokens(variant: Variant) -> str:
    """Formats the ratio of a variant's tokens to the first variant's, after "≥" when not all runs reached the level."""
    if variant.against is None:
        return "1"
    return ("" if variant.arrived == len(variant.runs) else "≥ ") + ratio(variant.against.tokens)


def ratio(interval: Interval) -> str:
    if interval.low == interval.high:
        return f"{interval.value:.2f}"
    return "" if interval.value != interval.value else f"{interval.value:.2f} [{interval.low:.2f}, {interval.high:.2f}]"
