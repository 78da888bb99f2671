"""This module says how long a round's completions are, and how many were cut off: right ones against wrong ones, by
source, and by how hard the prompt is.

    completions/length_p10, _p50, _p90                         percentiles of the length, in tokens
    completions/right/…, completions/wrong/…                   the mean and the same percentiles, of those completions
    source/NAME/length_p90, share                              the 90th percentile and the share of the completions of a
                                                               source of problems (`grpo.measure` gives its means)
    completions/by_pass_rate/none|some|most|all/…              mean length and truncated fraction of prompts of which
                                                               none, below half, half or more, or all were right
    completions/by_pass_rate/none|some|most|all/share          their share of the graded completions

Right and wrong completions, and pass rates, are those of groups that could be graded. A prompt's difficulty is its pass
rate in the same round. A truncated completion is hardly ever right, so truncation itself moves a prompt towards `none`.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from grpo.types import ScoredGroup
from grpo.types import metrics as m

PERCENTS = (10, 50, 90)
BANDS = ("none", "some", "most", "all")
"""These are the bands of a prompt's pass rate: 0, below one half, from one half on, and 1."""


class CompletionFacts(NamedTuple):
    """This row holds what the breakdown counts of one completion. `source` is "" where the problem names none.

    `right` is None and `band` is "" in a group that could not be graded.
    """

    length: int
    right: bool | None
    truncated: bool
    source: str
    band: str


def completion_facts(scored: ScoredGroup) -> list[CompletionFacts]:
    """Returns a `CompletionFacts` for each completion of a group but those that were given up at the deadline."""
    source, band = scored.group.prompt.problem.source, "" if scored.spoilt else band_of(*scored.count)
    return [
        CompletionFacts(len(completion.token_ids), grade.correct if band else None, completion.truncated, source, band)
        for completion, grade in zip(scored.group.completions, scored.grades, strict=True)
        if not completion.late
    ]


def band_of(correct: int, size: int) -> str:
    """Returns the band of a prompt that was answered rightly `correct` times out of `size`.

    >>> [band_of(correct, 4) for correct in range(5)]
    ['none', 'some', 'most', 'most', 'all']
    """
    if correct in (0, size):
        return "all" if correct else "none"
    return "some" if 2 * correct < size else "most"


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Returns the smallest value that at least `percent` % of the values do not exceed (nearest rank).

    >>> [percentile([1, 2, 3, 10], percent) for percent in (10, 50, 90)]
    [1, 2, 10]
    """
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def breakdown(facts: Sequence[CompletionFacts]) -> dict[str, float]:
    """Returns the metrics that the module's docstring lists, for a round's completions of all ranks together."""
    numbers = _percentiles("completions", facts)
    for name, right in (("right", True), ("wrong", False)):
        subset = [fact for fact in facts if fact.right == right]
        numbers |= _mean_length(f"completions/{name}", subset) | _percentiles(f"completions/{name}", subset)
    for source, subset in _divided(facts, lambda fact: fact.source).items():
        if source:
            numbers[f"{m.SOURCE}{source}/length_p90"] = percentile(sorted(fact.length for fact in subset), 90)
            numbers[f"{m.SOURCE}{source}/share"] = len(subset) / len(facts)
    graded = [fact for fact in facts if fact.band]
    for band, subset in _divided(graded, lambda fact: fact.band).items():
        prefix = f"{m.BY_PASS_RATE}{band}"
        numbers |= _mean_length(prefix, subset)
        numbers[f"{prefix}/truncated_fraction"] = sum(fact.truncated for fact in subset) / len(subset)
        numbers[f"{prefix}/share"] = len(subset) / len(graded)
    return {name: float(value) for name, value in numbers.items()}


def _divided(
    facts: Iterable[CompletionFacts], key: Callable[[CompletionFacts], str]
) -> dict[str, list[CompletionFacts]]:
    parts: dict[str, list[CompletionFacts]] = {}
    for fact in facts:
        parts.setdefault(key(fact), []).append(fact)
    return dict(sorted(parts.items()))


def _percentiles(prefix: str, facts: Sequence[CompletionFacts]) -> dict[str, float]:
    ordered = sorted(fact.length for fact in facts)
    return {f"{prefix}/length_p{percent}": percentile(ordered, percent) for percent in PERCENTS if ordered}


def _mean_length(prefix: str, facts: Sequence[CompletionFacts]) -> dict[str, float]:
    return {f"{prefix}/length_mean": sum(fact.length for fact in facts) / len(facts)} if facts else {}
