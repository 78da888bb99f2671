"""This module makes a `RunLog` of another framework's log.

A reward need not be a pass rate. The pass rate is the column that the caller names. Otherwise it is a column with a
known name and values in [0, 1], or a part of the reward whose name says that it grades answers. If the log has held-out
scores and no reward, the scores are the pass rate. A log without any pass rate keeps its rewards and other metrics.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo.config import UserError
from grpo.config.errors import require
from grpo.dynamics.history import NO_HISTORY, history_of_values
from grpo.insight.diagnosis.reward_parts import SMOOTHED
from grpo.insight.logs.foreign_columns import (
    LARGEST,
    TWO_COUNTS,
    Column,
    are_averaged,
    impossible,
    once_each,
    series_of,
    times_logged,
    translated,
)
from grpo.insight.logs.foreign_names import (
    IN_REWARDS,
    NO_SCORE,
    TOTAL,
    TRL,
    framework_of,
    held_out_scores,
    our_name,
    own_name,
)
from grpo.insight.logs.foreign_rows import OF_RUN, ForeignRows, read_rows
from grpo.insight.logs.run_log import NOTHING, RunLog, Series
from grpo.types import metrics as m

OTHER_TRAINING = {
    "preference training": {"rewards/chosen", "rewards/rejected"},
    "a reward model's training": {"accuracy", "margin", "mean_reward"},
}
"""These trainings are known by columns that all their logs have."""
# A part of the reward whose name matches grades answers, so it may be the pass rate.
# A part that grades the form does not.
GRADES = re.compile(r"^(?!.*(?<![a-z])format).*(accura|correct|solve|success|pass|ground_truth)")
SURELY_GRADES = re.compile("accura|answer")
FEWEST_ROWS = 3
# These columns hold the least reward of a round.
LEAST = {"critic/score/min", "critic/rewards/min", "rewards/min", "reward_min", "reward/min"}
# So few of a column's values may be slips.
SELDOM = 0.05
# A column whose name matches may be a reward, so it is named first.
_REWARD = re.compile(r"(?i)^(?!.*(std|min|max|length)).*(reward|score|acc|pass|solve)")
# Rewards that vary by less than this share of what right and wrong answers would, in at least so many rows, are parts.
OF_ANSWERS, FEWEST_GRADED = 0.2, 20
PARTIAL = (
    "its rewards are no mere 0 and 1, by their spread or the least of them, so they are parts of a point, and none of "
    "its values means that problems are solved"
)
# A note names at most this many columns.
NAMED = 12


class Table(NamedTuple):
    """A table holds the columns of a log: as they are, as series, as series by our names, and with notes on them."""

    columns: Mapping[str, Column]
    own_series: Mapping[str, Series]
    series: Mapping[str, Series]
    notes: Sequence[str]


def read_foreign(path: Path, column: str | None, scale: float) -> RunLog:
    """Reads another framework's log. See `logs.read_log` for the arguments."""
    log = read_rows(Path(path), column)
    steps = np.array(log.columns.steps)
    own_columns, own_series, series, notes = _table(path, log)
    if column:
        rate_name, note = column.rsplit(OF_RUN, 1)[-1], f"{column} is the pass rate"
        rates = _named(path, rate_name, own_series, series, scale)
    else:
        rate_name, scale = _pass_rate_column(series)
        rates, note = series.get(rate_name, NOTHING), _note(rate_name, scale, own_series)
    # A reward that is always 0 beside right answers was never filled in. Nothing says that no answer is rewarded.
    unfilled = m.REWARD in series and rates.values.any() and not series[m.REWARD].values.any()
    if unfilled:
        shown = own_name(rate_name, own_series)
        notes = [*notes, f"{own_name(m.REWARD, own_series)} is always 0, although {shown} is not, so it is left out"]
    # The tables call verl's scores "pass_rate", even scores beyond [0, 1]. The pass rate found above replaces them.
    replaced = {m.PASS_RATE, m.REWARD} if unfilled else {m.PASS_RATE}
    other_series = {name: values for name, values in series.items() if name not in replaced}
    # A round was sampled one step before it was logged. An evaluation has the step of its policy.
    interval, our_rate_name = 1, our_name(rate_name)
    part = our_rate_name.removeprefix(m.PART) if m.PART in our_rate_name else ""
    all_scores = held_out_scores(series, part, scale)
    if not rate_name and _goes_below_0(series):
        # Held-out rewards are then no shares of right answers either.
        all_scores = {name: one for name, one in all_scores.items() if not IN_REWARDS.search(name)}
    name, scores = next(iter(all_scores.items()), ("", NOTHING))
    names = _listed([*all_scores])
    several = f"the held-out scores are those of {name}, the first of {names}" if names != name else ""
    if name and not rate_name and m.REWARD not in series:
        note = f"the log has held-out scores only: {name} is taken for the pass rate"
        rates, scores, interval = scores, NOTHING, 0
    rates = Series(rates.steps, np.clip(rates.values / scale, 0, 1))
    partial = _is_partial(rates, _spread(our_rate_name, series), scale) or _pays_for_wrong(series, scale)
    last = max(int(one.steps[-1]) for one in series.values())
    of_rates = own_columns.get(rate_name, own_columns.get(own_name(rate_name, own_columns)))
    framework = framework_of(own_series)
    # TRL logs a KL only where its coefficient is above 0. It does not log how high it is.
    has_kl = framework == TRL and m.REFERENCE_KL in series
    return RunLog(
        history=history_of_values(rates.steps, rates.values, interval) if len(rates) >= FEWEST_ROWS else NO_HISTORY,
        series={**other_series, m.PASS_RATE: rates} if len(rates) else other_series,
        held_out=scores,
        partial=partial,
        num_steps=max(log.max_steps, last),
        framework=framework,
        settings={"objective.kl.coefficient": math.inf} if has_kl else {},
        notes=[*notes, *filter(None, (several, note, PARTIAL if partial else "", _ends_early(steps, of_rates, rates)))],
    )


def _table(path: Path, log: ForeignRows) -> Table:
    """Makes series of a log's columns. Raises `UserError` where none has numbers, or for another kind of training."""
    steps, own_columns = np.array(log.columns.steps), log.columns.named()
    if not len(steps):
        raise UserError(
            f'{path} has no rows with a step: give a log whose rows have a "step" of 0 or more (or a "global_step", '
            '"_step" or "iteration"), or rename the column that counts them'
        )
    own_series = series_of(steps, own_columns)
    often = _logged_often(own_series)
    own_series = {name: once_each(one) for name, one in own_series.items()}
    series = {name: once_each(one) for name, one in series_of(steps, translated(own_columns, len(steps))).items()}
    if not series:
        alone = "write each number in a column of its own, not as text, in a list or within another column"
        remedy = "all are NaN, as after a broken step" if own_columns else alone
        raise UserError(f"{path} has no finite numbers beside its steps: {'; '.join([*log.texts, remedy])}")
    _refuse_other_training(path, own_series)
    wrong = impossible(series)
    left_out = _left_out(steps, own_columns, TWO_COUNTS in log.notes)
    notes = [*log.notes, *log.texts, *often, *left_out, *_untaken(wrong, own_series)]
    return Table(own_columns, own_series, {name: one for name, one in series.items() if name not in wrong}, notes)


def _logged_often(series: Mapping[str, Series]) -> list[str]:
    """Names the columns of rewards that have each of their values several times. Epochs and rates do anyway."""
    rewards = [name for name in series if _REWARD.search(name) or our_name(name).startswith(m.PART)]
    often = {name: times for name in rewards if (times := times_logged(series[name].values)) > 1}
    by_times = {times: [name for name in often if often[name] == times] for times in often.values()}
    said = "each value of {} stands there {} times and is read once"
    return [said.format(_listed(names), times) for times, names in by_times.items()]


def _ends_early(steps: NDArray[np.float64], column: Column | None, rates: Series) -> str:
    """Says that the last cells of the pass rate's column hold no number, or returns ""."""
    if column is None or not len(rates):
        return ""
    last, no_number = rates.steps[-1], ~(np.abs(column.values) <= LARGEST)
    later = int((no_number & (steps[column.rows] > last)).sum())
    return f"the last {later} values of the pass rate are no numbers: its curve ends at step {last:g}" if later else ""


def _refuse_other_training(path: Path, columns: Iterable[str]) -> None:
    """Raises UserError for the log of a training that samples no completions."""
    for kind, names in OTHER_TRAINING.items():
        require(
            not names <= {*columns},
            f"{path} is the log of {kind} ({', '.join(sorted(names))}), which samples and rewards no completions: give "
            "the log of GRPO or another such training",
        )


def _untaken(wrong: Mapping[str, str], columns: Iterable[str]) -> list[str]:
    """Says which columns are left out because of values that they cannot have. `wrong` has them by our names."""
    known_as = {our_name(name): name for name in columns}
    return [f"{known_as.get(name, name)} {why}, so it is left out" for name, why in wrong.items()]


def _left_out(steps: NDArray[np.float64], columns: Mapping[str, Column], two_counts: bool) -> list[str]:
    """Says what of the rows is not read: all of one step but the last, infinite numbers, columns without numbers, and
    numbers beyond ±`LARGEST`. With `two_counts`, the rows of a step are those of a rollout's optimizer steps."""
    notes = []
    if len(steps) >= FEWEST_ROWS and (steps == steps[0]).all():
        notes.append(f"all {len(steps)} rows have the step {steps[0]:g}, so the last one alone counts: number the rows")
    often = [
        name for name, column in columns.items() if are_averaged(np.unique(steps[column.rows], False, False, True)[1])
    ]
    if often:
        several = "steps have several rows, as those of several ranks"
        several = "rollouts have several optimizer steps" if two_counts else several
        notes.append(f"most {several}: the means of {_listed(often)} are read")
    infinite = {name: int(np.isinf(column.values).sum()) for name, column in columns.items()}
    notes += [f"{number} infinite values of {name} are left out" for name, number in infinite.items() if number]
    empty = [name for name, column in columns.items() if not np.isfinite(column.values).any()]
    notes += [f"{', '.join(empty)} of the log hold no finite number"] if empty else []
    numbers = {
        name: int((np.isfinite(column.values) & (np.abs(column.values) > LARGEST)).sum())
        for name, column in columns.items()
    }
    columns_named = ", ".join(name for name, number in numbers.items() if number)
    left_out = sum(numbers.values())
    notes += [f"{left_out} values beyond ±{LARGEST:g} are left out, of {columns_named}"] if left_out else []
    return notes


def _named(
    path: Path, name: str, own_series: Mapping[str, Series], series: Mapping[str, Series], scale: float
) -> Series:
    """Returns the column that the caller named, by the log's own name or by ours.

    Raises `UserError` when there is none, or its values leave [0, `scale`].
    """
    if name not in own_series and name not in series:
        raise UserError(
            f"{path} has no column {name} with numbers; those that have some are: {', '.join(sorted(own_series))}. "
            "Choose the one with the pass rate by column=NAME"
        )
    require(not _is_loss(name), f"column={name} is a loss by its name: choose another one")
    require(
        not (meaning := _other_meaning(name)),
        f"column={name} is no pass rate by its name, but: {meaning}; choose another column, or rename that one",
    )
    rates = own_series.get(name, series.get(name, NOTHING))
    if not _is_rate(rates, scale):
        raise UserError(
            f"{name} of {path} goes from {rates.values.min():g} to {rates.values.max():g}, beyond [0, {scale:g}]: "
            "give its value for a right answer by scale=NUMBER, or choose another column"
        )
    return rates


def _is_loss(name: str) -> bool:
    return "loss" in re.split("[^a-z]+", name.lower())


def _other_meaning(name: str) -> str:
    """Returns the meaning of a column that has one and is no pass rate, or ""."""
    known = m.TABLE.get(our_name(name))
    return known.meaning if known and known.name not in (m.PASS_RATE, m.REWARD) else ""


def _note(rate_name: str, scale: float, own_series: Mapping[str, Series]) -> str:
    """Says which column is taken for the pass rate. The note is empty for a column that is called `pass_rate`."""
    if rate_name in own_series and rate_name == m.PASS_RATE:
        return ""
    if not rate_name and (odd := _odd_values(own_series)):
        return odd
    if not rate_name and m.PASS_RATE in own_series and own_series[m.PASS_RATE].values.min() >= 0:
        most = own_series[m.PASS_RATE].values.max()
        scale_hint = 100 if most <= 100 else math.ceil(most)
        return (
            f"{m.PASS_RATE} goes up to {most:g}, so it is left out: column={m.PASS_RATE} scale={scale_hint} takes "
            f"{scale_hint} for 1"
        )
    if not rate_name:
        others = [name for name in own_series if not (_is_loss(name) or _other_meaning(name))]
        rewards = [name for name in others if _REWARD.search(name)]
        # Counters and clocks are no candidates, as in a log of supervised training.
        possible = rewards or [name for name in others if not NO_SCORE.fullmatch(name)]
        names = _listed(sorted(possible, key=lambda name: ("reward" not in name, name)))
        left_out = "no column is a pass rate, so what needs one is left out"
        return f"{left_out}: column=NAME scale=NUMBER names one of {names}" if names else left_out
    known_as = own_name(rate_name, own_series)
    formula = f"{known_as} ÷ {scale:g}" if scale != 1 else known_as
    return f"{formula} is taken for the pass rate: column=NAME scale=NUMBER names another"


def _odd_values(own_series: Mapping[str, Series]) -> str:
    """Names a column of rewards in which a few values alone lie outside 0 to 1, or returns ""."""
    for name, rewards in own_series.items():
        odd = np.flatnonzero((rewards.values < -SMOOTHED) | (rewards.values > 1 + SMOOTHED))
        if our_name(name) in (m.REWARD, m.PASS_RATE) and 0 < len(odd) <= SELDOM * len(rewards):
            return (
                f"{name} would be taken for the pass rate, and {len(odd)} of its {len(rewards)} values lie outside 0 "
                f"to 1, such as {rewards.values[odd[0]]:g} at step {rewards.steps[odd[0]]:g}: correct them or take "
                f"them out, or name its value for a right answer by column={name} scale=NUMBER"
            )
    return ""


def _listed(names: Sequence[str]) -> str:
    """Names the first of several columns."""
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def _pass_rate_column(series: Mapping[str, Series]) -> tuple[str, float]:
    """Finds the column of pass rates, and its value for a right answer. Returns ("", 1) if there is none."""
    parts = [name for name in series if name.startswith(m.PART)]
    if _goes_below_0(series):
        return "", 1.0
    for name in (m.PASS_RATE, m.REWARD):
        if name in series and _is_rate(series[name], 1.0) and (name == m.PASS_RATE or len(parts) < 2):
            return name, 1.0
    for name in sorted(parts, key=lambda name: not SURELY_GRADES.search(name)):
        spread = series.get(f"rewards/{name.removeprefix(m.PART)}/std", NOTHING)
        if GRADES.search(name) and (right_grade := _right_answer(series[name], spread)):
            return name, right_grade
    if m.REWARD in series and _is_rate(series[m.REWARD], 1.0):
        return m.REWARD, 1.0
    return "", 1.0


def _goes_below_0(series: Mapping[str, Series]) -> bool:
    """Tells whether single rewards are negative. Rewards of −1 and 1 have means within 0 to 1, too."""
    return any(len(series[name]) and series[name].values.min() < -SMOOTHED for name in LEAST & series.keys())


def _right_answer(series: Series, spread: Series) -> float | None:
    """Estimates what a right answer earns: the least whole number, 1 or more, that no value exceeds.

    Values may exceed it by the share `SMOOTHED`. If grades are 0 or s, their mean m and standard deviation σ, which is
    the `spread`, give s = m + σ²/m; the number is then at least the median of that, if it is nearly whole. Returns None
    if a value is negative (by more than that), or none is above 0.
    """
    right_grade = float(max(math.ceil(series.values.max() / (1 + SMOOTHED)), 1))
    if len(spread) == len(series) and (series.values > 0).any():
        means, spreads = (one.values[series.values > 0] for one in (series, spread))
        grade = float(np.median(means + spreads**2 / means))
        if abs(grade - round(grade)) <= 2 * SMOOTHED:
            right_grade = float(max(right_grade, round(grade)))
    return right_grade if series.values.max() > 0 and _is_rate(series, right_grade) else None


def _spread(rate_name: str, series: Mapping[str, Series]) -> Series:
    """Returns the standard deviation of all completions' rewards in a step, which TRL logs for each part."""
    parts = [name for name in series if name.startswith(m.PART)]
    name = parts[0] if rate_name == m.REWARD and len(parts) == 1 else rate_name
    part = TOTAL if name == m.REWARD else name
    own = f"rewards/{part.removeprefix(m.PART)}/std"
    return series.get(own, series.get(f"train/{own}", NOTHING))


def _pays_for_wrong(series: Mapping[str, Series], scale: float) -> bool:
    """Tells whether even the least reward of most steps is a part of a point, as what a wrong answer in the right form
    gets."""
    least = (float(np.median(series[name].values)) / scale for name in LEAST & series.keys())
    return any(SMOOTHED < one < 1 - SMOOTHED for one in least)


def _is_partial(rates: Series, spread: Series, scale: float) -> bool:
    """Tells whether single answers get parts of a point.

    Right and wrong answers of pass rate p have the variance p(1 − p), within steps and from step to step. A row is the
    mean of all steps since the row before.
    """
    if len(rates) < FEWEST_GRADED or len(spread) != len(rates):
        return False
    steps_per_row = float(np.median(np.diff(rates.steps)))
    between = steps_per_row * history_of_values(rates.steps, rates.values).errors[0] ** 2
    within = float(np.mean((spread.values / scale) ** 2))
    return bool(within + between < OF_ANSWERS * np.mean(rates.values * (1 - rates.values)))


def _is_rate(series: Series, scale: float) -> bool:
    """Tells whether the values lie in [0, scale], give or take `SMOOTHED` · scale."""
    slack = SMOOTHED * scale
    return bool(series.values.min() >= -slack and series.values.max() <= scale + slack)
