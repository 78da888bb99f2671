"""Variants of a run against the first of them: paired by seed and problem, with the luck of both in the intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from grpo.config import UserError
from grpo.dynamics.diagnostics import diagnose
from grpo.dynamics.difficulty import Difficulty, fit_difficulty
from grpo.dynamics.findings import NOTE
from grpo.dynamics.identify import FEWEST_POINTS, identify
from grpo.dynamics.identity import gradient_mass, silent_rate
from grpo.evaluation.pass_rates import crossed_difference, geometric_ratio, holm
from grpo.report.logs import counts_of, read_log
from grpo.report.runs import Run
from grpo.types import Interval

Array = NDArray[np.float64]

QUARTERS = ("hardest", "second", "third", "easiest")
# Of the gain that the first variant makes: what "reaching its level" means.
LEVEL_SHARE = 0.75
EXTREMES = (0.0, 0.1, 0.9, 1.0)


@dataclass(frozen=True, slots=True)
class Against:
    """A variant against the first, on the seeds that both have. `p` is corrected for the number of variants.

    difference   of last held-out pass@1, of the same problems
    tokens       ratio of tokens until the level; `arrived` of its runs got there, the others count with all they spent
    quarters     difference of the change, for the problems of each quarter of difficulty
    """

    difference: Interval
    p: float
    tokens: Interval
    quarters: tuple[Interval, ...]


@dataclass(frozen=True, slots=True)
class Variant:
    """What the runs of one variant came to. Intervals are over seeds (95 %, t); of one run, none.

    silent, law   silent share of groups, observed and p^G + (1−p)^G by the difficulties behind the same counts
    extreme       share of the gradient from prompts below .1 and above .9, by α and those difficulties
    laws          which law of the reward curve was best, how often
    findings      what the diagnosis found, in how many runs
    """

    name: str
    runs: tuple[Run, ...]
    first: float
    last: Interval
    pass_at: Mapping[str, float]
    arrived: int
    quarters: tuple[Interval, ...]
    silent: float
    law: float
    extreme: float
    laws: Mapping[str, int]
    findings: Mapping[str, int]
    against: Against | None = None


@dataclass(frozen=True, slots=True)
class Contrast:
    """All variants, the first the one that the others are compared with; `level` is of held-out pass@1."""

    variants: tuple[Variant, ...]
    level: float
    problems: int

    @property
    def base(self) -> Variant:
        return self.variants[0]


def contrast(runs: Sequence[Run]) -> Contrast:
    """Compares the runs' variants. Raises `UserError` when they were not evaluated on the same problems."""
    groups = {
        name: tuple(run for run in runs if run.variant == name) for name in dict.fromkeys(r.variant for r in runs)
    }
    problems = sorted(runs[0].rates(-1))
    for run in runs:
        if sorted(run.rates(-1)) != problems or sorted(run.rates(0)) != problems:
            raise UserError(f"{run.folder} was evaluated on other problems than {runs[0].folder}: not comparable")
    quarters = _quarters(runs, problems)
    base = next(iter(groups.values()))
    start, end = (float(np.mean([run.held_out[index] for run in base])) for index in (0, -1))
    level = start + LEVEL_SHARE * (end - start)
    variants = [_variant(name, members, quarters, level) for name, members in groups.items()]
    compared = [_against(base, members, problems, quarters, level) for members in [*groups.values()][1:]]
    corrected = holm([each.p for each in compared]) if compared else []
    against = [replace(each, p=p) for each, p in zip(compared, corrected, strict=True)]
    others = [replace(variant, against=each) for variant, each in zip(variants[1:], against, strict=True)]
    return Contrast((variants[0], *others), level, len(problems))


def over_seeds(values: Sequence[float]) -> Interval:
    """Mean with its 95 % interval (t); of one value, that value."""
    mean = float(np.mean(values))
    half = float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)) if len(values) > 1 else 0.0
    return Interval(mean, mean - half, mean + half)


def _quarters(runs: Sequence[Run], problems: Sequence[str]) -> list[list[str]]:
    """Problems by their pass rate before training, in all runs together: ties by their name."""
    before = {name: np.mean([run.rates(0)[name] for run in runs]) for name in problems}
    ranked = sorted(problems, key=lambda name: (before[name], name))
    return [[str(name) for name in part] for part in np.array_split(ranked, 4)]


def _change(run: Run, names: Sequence[str]) -> list[float]:
    first, last = run.rates(0), run.rates(-1)
    return [last[name] - first[name] for name in names]


def _variant(name: str, runs: tuple[Run, ...], quarters: Sequence[Sequence[str]], level: float) -> Variant:
    difficulty, silent, law = _silence(runs)
    exponent = runs[0].config["normalization"]["exponent"]
    mass = gradient_mass(difficulty.pass_rates, difficulty.weights, EXTREMES, exponent)
    logs = [read_log(run.folder) for run in runs]
    found = [identify(log.history, log.momentum, log.exponent) for log in logs if len(log.history) >= FEWEST_POINTS]
    findings = Counter(
        each for log in logs for each in {finding.name for finding in diagnose(log) if finding.severity != NOTE}
    )
    ks = runs[0].evaluations[-1]["pass@k"]
    return Variant(
        name=name,
        runs=runs,
        first=float(np.mean([run.held_out[0] for run in runs])),
        last=over_seeds([float(run.held_out[-1]) for run in runs]),
        pass_at={k: float(np.mean([run.evaluations[-1]["pass@k"][k]["value"] for run in runs])) for k in ks},
        arrived=sum(run.cost(level, "tokens")[1] for run in runs),
        quarters=tuple(over_seeds([float(np.mean(_change(run, names))) for run in runs]) for names in quarters),
        silent=silent,
        law=law,
        extreme=float(mass[0] + mass[-1]),
        laws=Counter(each.fits[0].law.name for each in found),
        findings=findings,
    )


def _silence(runs: Sequence[Run]) -> tuple[Difficulty, float, float]:
    """The difficulties behind the counts of all rounds; silent share of groups, observed and by them. The law is for
    the difficulties of the whole run, as if drawn anew in each round."""
    counts: Counter[tuple[int, int]] = Counter()
    for run in runs:
        for row in run.rows:
            counts.update(counts_of(row))
    difficulty = fit_difficulty(counts)
    total = sum(counts.values())
    silent = sum(number for (correct, size), number in counts.items() if correct in (0, size)) / total
    sizes: Counter[int] = Counter()
    for (_, size), number in counts.items():
        sizes[size] += number
    law = sum(
        number * float(difficulty.weights @ silent_rate(difficulty.pass_rates, size)) for size, number in sizes.items()
    )
    return difficulty, silent, law / total


def _against(
    base: Sequence[Run], ours: Sequence[Run], problems: Sequence[str], quarters: Sequence[Sequence[str]], level: float
) -> Against:
    pairs = [(old, new) for old in base for new in ours if old.seed == new.seed]
    if not pairs:
        raise UserError(f"{base[0].variant} and {ours[0].variant} have no seed in common: nothing is paired")
    last = [[new.rates(-1)[name] - old.rates(-1)[name] for name in problems] for old, new in pairs]
    difference, p = crossed_difference(last)
    by_quarter = tuple(
        crossed_difference([np.subtract(_change(new, names), _change(old, names)) for old, new in pairs])[0]
        for names in quarters
    )
    costs = [(new.cost(level, "tokens")[0], old.cost(level, "tokens")[0]) for old, new in pairs]
    tokens = geometric_ratio(*zip(*costs, strict=True)) if all(min(pair) > 0 for pair in costs) else _unknown()
    return Against(difference, p, tokens, by_quarter)


def _unknown() -> Interval:
    return Interval(float("nan"), float("nan"), float("nan"))
