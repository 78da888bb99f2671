"""This module compares the variants of a sweep with the first variant.

Differences are paired by seed and held-out problem. Their intervals include the chance variation of seeds and problems.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from grpo.config import UserError
from grpo.config.errors import require
from grpo.dynamics.difficulty import Difficulty, fit_difficulty
from grpo.dynamics.sigma import gradient_mass, silent_rate
from grpo.evaluation.pass_rates import FEWEST_SEEDS, crossed_difference, geometric_ratio, holm, ratio_p_value
from grpo.insight.diagnosis.diagnostics import diagnose
from grpo.insight.diagnosis.findings import NOTE
from grpo.insight.logs.finished_runs import Run
from grpo.insight.logs.logs import counts_of, read_log
from grpo.insight.logs.run_log import RunLog
from grpo.insight.pages.yardstick import MEAN_REWARD, PASS_RATE, Yardstick
from grpo.types import Interval
from grpo.types import metrics as m

Array = NDArray[np.float64]

QUARTERS = ("hardest", "second", "third", "easiest")
# The level is the first variant's held-out result before training plus this share of its gain.
LEVEL_SHARE = 0.75
# A difference with a smaller p-value, corrected for the number of variants, counts as clear.
SURE = 0.05
EXTREMES = (0.0, 0.1, 0.9, 1.0)


@dataclass(frozen=True, slots=True)
class Against:
    """This type compares one variant with the first variant, on the seeds that both have.

    difference   the difference of the last held-out result, paired by problem
    p            the p-value of no difference, corrected for the number of variants
    higher, lower   the number of seeds with which this variant ended above and below the first
    seeds        the number of pairs of runs with the same seed
    tokens       the ratio of tokens sampled until the level; a run that never reached it counts with all its tokens
    tokens_p     the p-value of no difference in tokens, corrected for the number of variants
    quarters     the difference in the change of the result, for the problems of each quarter of difficulty
    """

    difference: Interval
    p: float
    higher: int
    lower: int
    seeds: int
    tokens: Interval
    tokens_p: float
    quarters: tuple[Interval, ...]

    @property
    def telling(self) -> bool:
        """Says whether there are enough shared seeds to conclude anything about other seeds."""
        return self.seeds >= FEWEST_SEEDS

    @property
    def clear(self) -> bool:
        return self.telling and self.p < SURE


@dataclass(frozen=True, slots=True)
class Variant:
    """A variant holds its runs and their results. Intervals are 95 % over seeds (t), without width below three seeds.

    first, last   held-out result before and after training; `pass_at` maps k to pass@k after training, if all have it
    arrived       the number of runs that reached the level
    quarters      the change of the result, for the problems of each quarter of difficulty
    silent, law   the share of silent groups, as observed, and as p^G + (1−p)^G predicts from the prompts' difficulties,
                  which are estimated from the same counts; NaN without counts of right completions
    extreme       the share of the gradient from prompts with pass rates below .1 or above .9, predicted from the dials
                  and these difficulties; NaN under a normalization that has no dials
    findings      finding of the diagnosis → the number of runs that have it
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
    findings: Mapping[str, int]
    against: Against | None = None


@dataclass(frozen=True, slots=True)
class Contrast:
    """A contrast holds all variants of a sweep. Each further variant is compared with the first one.

    level      the held-out result to which the variants' tokens are compared; ∞ where the first variant gained nothing
    problems   the number of held-out problems
    best       the name of the variant that ended highest
    rivals     the names of the variants that are not clearly below `best`, see `not_below`
    """

    variants: tuple[Variant, ...]
    level: float
    problems: int
    best: str
    rivals: tuple[str, ...]

    @property
    def base(self) -> Variant:
        """Returns the first variant, with which the others are compared."""
        return self.variants[0]

    @property
    def has_level(self) -> bool:
        return math.isfinite(self.level)

    @property
    def yardstick(self) -> Yardstick:
        """Returns what all runs are compared by: their pass@1 or mean reward on held-out problems, the result."""
        return self.base.runs[0].yardstick


def contrast(runs: Sequence[Run]) -> Contrast:
    """Compares the variants of `runs` with the first one, by their mean rewards if one of them can be compared by
    nothing else. Raises `UserError` when runs have different held-out problems or a variant shares no seed with the
    first."""
    if any(run.yardstick is MEAN_REWARD for run in runs):
        older = [run.folder for run in runs if any("mean_reward" not in row for row in run.evaluations)]
        require(
            not older,
            f"{older[0] if older else None} was written by a version that recorded no mean rewards: leave it out",
        )
        runs = [replace(run, yardstick=MEAN_REWARD) for run in runs]
    groups = {
        name: tuple(run for run in runs if run.variant == name) for name in dict.fromkeys(r.variant for r in runs)
    }
    for run in runs:
        if not run.asked(-1) == run.asked(0) == runs[0].asked(-1):
            raise UserError(
                f"{run.folder} and {runs[0].folder} were evaluated on other problems, so they cannot be compared: give "
                "runs with the same task.data and evaluation settings"
            )
    # A problem that could not be graded in one of the evaluations is left out of all.
    problems = sorted(set.intersection(*(set(run.rates(index)) for run in runs for index in (0, -1))))
    require(bool(problems), "no held-out problem was graded in the first and last evaluation of every run")
    quarters = _quarters(runs, problems)
    base, *further = groups.values()
    start, end = (float(np.mean([run.held_out[index] for run in base])) for index in (0, -1))
    level = start + LEVEL_SHARE * (end - start) if end > start else math.inf
    variants = [_variant(name, members, quarters, level) for name, members in groups.items()]
    pairs = [_pairs(base, members) for members in further]
    if not all(pairs):
        raise UserError(
            f"the variants {base[0].variant} and {further[pairs.index([])][0].variant} have no seed in common, so no "
            "runs can be paired: run both with the same seeds"
        )
    p_values = [_p_values(of_variant, problems, level) for of_variant in pairs]
    corrected = zip(*map(holm, zip(*p_values, strict=True)), strict=True)
    others = [
        replace(variant, against=_against(of_variant, problems, quarters, level, [*zip(ps, corrected_ps, strict=True)]))
        for variant, of_variant, ps, corrected_ps in zip(variants[1:], pairs, p_values, corrected, strict=True)
    ]
    best = max(variants, key=lambda variant: variant.last.value).name
    return Contrast((variants[0], *others), level, len(problems), best, not_below(groups, best, problems))


def over_seeds(values: Sequence[float], least: float, most: float) -> Interval:
    """Returns the mean over seeds with its 95 % interval (Student's t), cut to the possible range [least, most].

    With fewer than `FEWEST_SEEDS` values the interval has no width, since two values hardly show their spread.
    """
    mean = float(np.mean(values))
    half_width = float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)) if len(values) >= FEWEST_SEEDS else 0.0
    return Interval(mean, max(least, mean - half_width), min(most, mean + half_width))


def _possible(difference: Interval, yardstick: Yardstick) -> Interval:
    """Cuts the interval of a difference to what is possible, which is [−1, 1] for pass rates."""
    least, most = yardstick.change_bounds
    return replace(difference, low=max(least, difference.low), high=min(most, difference.high))


def _quarters(runs: Sequence[Run], problems: Sequence[str]) -> list[list[str]]:
    """Divides the problems into four parts by their pass rate before training, averaged over all runs.

    Ties are ordered by the problem's id.
    """
    first_rates = {name: np.mean([run.rates(0)[name] for run in runs]) for name in problems}
    ranked_problems = sorted(problems, key=lambda name: (first_rates[name], name))
    return [[str(name) for name in part] for part in np.array_split(ranked_problems, 4)]


def _change(run: Run, names: Sequence[str]) -> list[float]:
    first, last = run.rates(0), run.rates(-1)
    return [last[name] - first[name] for name in names]


def _variant(name: str, runs: tuple[Run, ...], quarters: Sequence[Sequence[str]], level: float) -> Variant:
    difficulty, silent, law = _silence(runs)
    logs = [read_log(run.folder) for run in runs]
    findings = Counter(
        name for log in logs for name in {finding.name for finding in diagnose(log) if finding.severity != NOTE}
    )
    estimates = [run.evaluations[-1]["pass@k"] for run in runs] if runs[0].yardstick is PASS_RATE else [{}]
    return Variant(
        name=name,
        runs=runs,
        first=float(np.mean([run.held_out[0] for run in runs])),
        last=over_seeds([float(run.held_out[-1]) for run in runs], *runs[0].yardstick.bounds),
        pass_at={
            k: float(np.mean([estimate[k]["value"] for estimate in estimates]))
            for k in estimates[0]
            if all(k in estimate for estimate in estimates)
        },
        arrived=sum(run.cost(level, "tokens")[1] for run in runs),
        quarters=tuple(
            over_seeds([float(np.mean(_change(run, names))) for run in runs], *runs[0].yardstick.change_bounds)
            for names in quarters
        ),
        silent=silent,
        law=law,
        extreme=_extreme(difficulty, logs[0]),
        findings=findings,
    )


def _extreme(difficulty: Difficulty, log: RunLog) -> float:
    """Returns the predicted share of the gradient from prompts with pass rates below .1 or above .9.

    The prediction uses the run's dials and the largest group size of its first round. It is NaN without dials, and
    without counts of right completions.
    """
    if log.group_dials is None or not log.counts:
        return float("nan")
    exponent, mean_exponent = log.group_dials
    size = max(size for _, size in log.counts[0])
    rates, shares = difficulty.pass_rates, difficulty.weights
    mass = gradient_mass(rates, shares, EXTREMES, exponent, group_size=size, mean_exponent=mean_exponent)
    return float(mass[0] + mass[-1])


def _silence(runs: Sequence[Run]) -> tuple[Difficulty, float, float]:
    """Returns the prompts' estimated difficulties, and the share of silent groups as observed and as predicted.

    Difficulties are estimated from the counts of all rounds together. The prediction is approximate, since it uses
    these same difficulties for every round. It is NaN where completions were not counted as right or wrong.
    """
    counts: Counter[tuple[int, int]] = Counter()
    for run in runs:
        for row in run.rows:
            counts.update(counts_of(row))
    difficulty = fit_difficulty(counts)
    total = sum(counts.values())
    if not total:
        return difficulty, float(np.mean([run.mean(m.SILENT) for run in runs])), float("nan")
    silent_share = sum(number for (correct, size), number in counts.items() if correct in (0, size)) / total
    sizes: Counter[int] = Counter()
    for (_, size), number in counts.items():
        sizes[size] += number
    law = sum(
        number * float(difficulty.weights @ silent_rate(difficulty.pass_rates, size)) for size, number in sizes.items()
    )
    return difficulty, silent_share, law / total


def not_below(groups: Mapping[str, Sequence[Run]], best: str, problems: Sequence[str]) -> tuple[str, ...]:
    """Returns the variants that are not clearly below the best one.

    The best is found among all variants by the same runs, so its comparisons count as all pairs (Holm 1979).
    `groups` maps the variants' names to their runs. A variant with fewer than `FEWEST_SEEDS` pairs is never clearly
    below.
    """
    others = [name for name in groups if name != best]
    cells = {name: _last_differences(_pairs(groups[name], groups[best]), problems) for name in others}
    p_values = [crossed_difference(cells[name])[1] if cells[name] else 1.0 for name in others]
    p_values = holm([min(1.0, p * len(groups) / 2) for p in p_values])
    return tuple(name for name, p in zip(others, p_values, strict=True) if p >= SURE or len(cells[name]) < FEWEST_SEEDS)


def _pairs(base: Sequence[Run], ours: Sequence[Run]) -> list[tuple[Run, Run]]:
    """Returns pairs (run of `base`, run of `ours`) with the same seed, each run in at most one."""
    sides = [[[run for run in runs if run.seed == seed] for runs in (base, ours)] for seed in {r.seed: 0 for r in base}]
    return [pair for old, new in sides for pair in zip(old, new, strict=False)]


def _last_differences(pairs: Sequence[tuple[Run, Run]], problems: Sequence[str]) -> list[list[float]]:
    """Returns the differences of the pass rates in the last evaluation, second run − first, [pairs, problems]."""
    return [[new.rates(-1)[name] - old.rates(-1)[name] for name in problems] for old, new in pairs]


def _p_values(pairs: Sequence[tuple[Run, Run]], problems: Sequence[str], level: float) -> tuple[float, float]:
    """Returns the p-values of no difference in the last result, and in the tokens spent until `level`."""
    spent = _tokens_spent(pairs, level)
    of_tokens = ratio_p_value(*spent) if min(min(spent)) > 0 else 1.0
    return crossed_difference(_last_differences(pairs, problems))[1], of_tokens


def _against(
    pairs: Sequence[tuple[Run, Run]],
    problems: Sequence[str],
    quarters: Sequence[Sequence[str]],
    level: float,
    p_values: Sequence[tuple[float, float]],
) -> Against:
    """Compares paired runs. `p_values` are those of the result and of the tokens, each with its corrected one.

    Intervals are so wide that they agree with corrected p-values. A p-value that the correction makes `factor` times
    as large is below `SURE` exactly where it was below `SURE` / `factor`, and that is where an interval of the level
    1 − `SURE` / `factor` leaves out "no difference".
    """
    levels = [_level(p, corrected) for p, corrected in p_values]
    cells, spent, yardstick = _last_differences(pairs, problems), _tokens_spent(pairs, level), pairs[0][0].yardstick
    ends = [sum(row) for row in cells]
    changes = [[np.subtract(_change(new, names), _change(old, names)) for old, new in pairs] for names in quarters]
    return Against(
        difference=_possible(crossed_difference(cells, levels[0])[0], yardstick),
        p=p_values[0][1],
        higher=sum(end > 0 for end in ends),
        lower=sum(end < 0 for end in ends),
        seeds=len(pairs),
        tokens=geometric_ratio(*spent, levels[1]) if min(min(spent)) > 0 else Interval(*[float("nan")] * 3),
        tokens_p=p_values[1][1],
        quarters=tuple(_possible(crossed_difference(of_quarter)[0], yardstick) for of_quarter in changes),
    )


def _tokens_spent(pairs: Sequence[tuple[Run, Run]], level: float) -> tuple[list[float], list[float]]:
    """Returns the tokens that the second runs of the pairs, and the first ones, spent until `level`."""
    first, second = ([run.cost(level, "tokens")[0] for run in side] for side in zip(*pairs, strict=True))
    return second, first


def _level(p: float, corrected_p: float) -> float:
    return 1 - SURE * p / corrected_p if corrected_p else 1 - SURE
