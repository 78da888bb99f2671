"""This module judges in plain words whether a run's model learned, how certain that is, and what the run cost. It also
says which checks of the diagnosis a log allows.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from grpo.config import UserError
from grpo.dynamics.forecast import Forecast, forecast
from grpo.evaluation.held_out import both_unjudged, points_gained
from grpo.evaluation.pass_rates import FEWEST_PROBLEMS, PairedChange, holm, paired_change
from grpo.insight.diagnosis.diagnostics import CHECKS, unchecked
from grpo.insight.diagnosis.evidence import FEWEST_ROUNDS, change, window_length
from grpo.insight.diagnosis.findings import CRITICAL, DiagnosisRule, Finding
from grpo.insight.diagnosis.progress import harder_prompts, reward_hacking, with_known_prompts
from grpo.insight.diagnosis.setbacks import lost
from grpo.insight.logs.foreign_names import in_words_of
from grpo.insight.logs.logs import costs
from grpo.insight.logs.run_log import NOTHING, RunLog, Series
from grpo.insight.pages.glossary import duration, signed
from grpo.insight.pages.page import Number
from grpo.insight.pages.summary import check_comparable, pairs_of
from grpo.telemetry.json_lines import Row
from grpo.types import Interval
from grpo.types import metrics as m

GOOD, UNSURE, BAD = "good", "unsure", "bad"
SURE = 0.05
MORE_PROBLEMS = "Raise evaluation.num_problems, or task.data.held_out_fraction where no more problems are held out."
# Above this pass rate problems count as solved.
SOLVED = DiagnosisRule().finished
# An unclear change of the pass rate with a wider interval than this is reported as possible luck, without the interval.
TELLS_NOTHING = 0.5
# Advice for a run with this verdict in which the checks found nothing. {} is half the width of the change's interval.
ADVICE = {
    UNSURE: "a change of less than {} could be luck here: go on, or raise dynamics.prompts_per_step",
    BAD: "go back to the checkpoint of the best evaluation, and go on with half of learner.learning_rate",
}
# The pace of a run is that of this many of the last rounds.
RECENT = 50
# The line on a log's missing columns names at most this many of them.
MOST_NEEDS = 4


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """A verdict holds its sentences, their mood (`GOOD`, `UNSURE` or `BAD`), and the numbers that matter most."""

    lines: Sequence[str]
    mood: str
    numbers: Sequence[Number]


def judge(metrics: Sequence[Row], evaluations: Sequence[Row], findings: Sequence[Finding] = ()) -> RunVerdict:
    """Judges a run by its first and last held-out evaluation, or by its training rounds if there are no two of them.

    `metrics` and `evaluations` are the rows of metrics.jsonl and evaluations.jsonl. A critical finding of the diagnosis
    is named as the cause where the run did not learn.
    """
    spent_numbers = [_spent(metrics), *_energy(metrics, evaluations)]
    causes = [f"The cause: {_lower(finding.meaning)}" for finding in findings if finding.severity == CRITICAL][:1]
    if not any(row.get(m.GRADIENT_NORM, 1.0) for row in metrics):
        lines = ["Nothing was learned: no optimizer step changed the weights.", *causes]
        return RunVerdict(lines, BAD, [*_training_numbers(metrics), *spent_numbers])
    if len(evaluations) > 1 and evaluations[0]["step"] < evaluations[-1]["step"]:
        verdict = _by_held_out(evaluations[0], evaluations[-1], metrics, bool(causes))
    else:
        verdict = _by_training(metrics)
    first, *others = verdict.lines
    lines = [first, *(causes if verdict.mood != GOOD else []), *others]
    return RunVerdict(lines, verdict.mood, [*verdict.numbers, *spent_numbers])


def _by_held_out(before: Row, after: Row, metrics: Sequence[Row], has_failed: bool) -> RunVerdict:
    """Judges a run by the held-out problems' pass rates before and after training, in pairs, or by their mean rewards
    where nothing says which completions are right.

    A run that has failed for a known reason is not said to have changed by chance.
    """
    values, unjudged = _values(before, after), both_unjudged(before, after)
    change, count = paired_change(*values), len(values[0])
    gain = change.interval
    which = (
        "the graded held-out problems" if before.get("ungraded") or after.get("ungraded") else "the held-out problems"
    )
    is_last = not metrics or after["step"] >= metrics[-1]["step"]
    when = f"after step {before['step']:,}" if before["step"] else "before training"
    if unjudged:
        verb = "now earns" if is_last else "earned"
        old, new = (f"{side['mean_reward']:.3g}" for side in (before, after))
        outcome = f"{verb} a mean reward of {new} on {which}; {when} it was {old}"
    else:
        verb = "now solves" if is_last else "solved"
        old, new = (f"{side['pass@1']['value']:.1%}" for side in (before, after))
        outcome = f"{verb} {new} of {which} at the first try; {when} it was {old}"
    last_evaluation = "" if is_last else f" The last evaluation was after step {after['step']:,}."
    if change.p < SURE:
        mood = GOOD if gain.value > 0 else BAD
        lines = [f"The model {'learned' if gain.value > 0 else 'got worse'}: it {outcome}.{last_evaluation}"]
    else:
        mood = BAD if has_failed else UNSURE
        luck = " Chance alone may explain the difference." if gain.value and not has_failed else ""
        lines = [f"No clear change: the model {outcome}.{luck}{last_evaluation}"]
        if count < FEWEST_PROBLEMS:
            problems_are = "1 problem is" if count == 1 else f"{count} problems are"
            lines.append(f"{problems_are} too few to say more. {MORE_PROBLEMS}")
    lines.append(
        f"Of {count} problem{'s' * (count != 1)} {change.better} got better and {change.worse} worse "
        f"(randomization test, {probability(change.p)}). This is one run, and another seed may come out differently. "
        "The command “grpo sweep sweep=seeds” shows by how much."
    )
    suite = _by_suite(before.get("suite", {}), after.get("suite", {}))
    sentences, moods = [sentence for sentence, _ in suite], [of_set for _, of_set in suite if of_set != UNSURE]
    if mood == UNSURE and moods:
        # A set of the user's own tells more than a few held-out problems.
        lines, mood = [*sentences, *lines], moods[0]
    else:
        lines += sentences
    return RunVerdict(lines, mood, [*_held_out_numbers(after, old, new, gain, unjudged)])


def _values(before: Row, after: Row) -> list[list[float]]:
    """Returns the results of two evaluations on the problems that both graded: pass rates, or rewards where nothing
    says which completions are right. Raises `UserError` when the evaluations cannot be compared."""
    check_comparable(before, after)
    unjudged = both_unjudged(before, after)
    return [
        [row["reward"] if unjudged else row["correct"] / row["total"] for row in side]
        for side in zip(*pairs_of(before["per_problem"], after["per_problem"]), strict=True)
    ]


def _by_suite(before: Mapping[str, Row], after: Mapping[str, Row]) -> list[tuple[str, str]]:
    """Returns a sentence on each set of evaluation.suite that was evaluated alike before and after, and its mood.

    The sets' p-values are corrected for their number (Holm 1979). Sets that clearly changed come first.
    """
    changes = {}
    for name in (name for name in after if name in before):
        with suppress(UserError):
            changes[name] = paired_change(*_values(before[name], after[name]))
    corrected = holm([change.p for change in changes.values()])
    judged = [
        _of_set(name, before[name], after[name], changes[name], p) for name, p in zip(changes, corrected, strict=True)
    ]
    return sorted(judged, key=lambda one: one[1] == UNSURE)


def _of_set(name: str, before: Row, after: Row, change: PairedChange, p: float) -> tuple[str, str]:
    """Returns the sentence on one set of evaluation.suite, and its mood."""
    count, unjudged = len(_values(before, after)[0]), both_unjudged(before, after)
    mood = UNSURE if p >= SURE else GOOD if change.interval.value > 0 else BAD
    verb = {GOOD: "learned", BAD: "got worse", UNSURE: "did not clearly change"}[mood]
    new, old = (
        f"{side['mean_reward']:.3g}" if unjudged else f"{side['pass@1']['value']:.1%}" for side in (after, before)
    )
    does, when = (f"earns a mean reward of {new} on", "") if unjudged else (f"solves {new} of the", " at the first try")
    return (
        f"On {name} the model {verb}: it {does} {count} problems{when}; before it was {old} ({change.better} got "
        f"better and {change.worse} worse, {probability(p)}).",
        mood,
    )


def _held_out_numbers(after: Row, old: str, new: str, gain: Interval, unjudged: bool) -> Iterator[Number]:
    """Yields what the last evaluation measured, and by how much that differs from the first one."""
    step = f"after step {after['step']:,}"
    if unjudged:
        yield Number(f"held-out mean reward {step}", new, f"{old} before")
        yield Number("change of the mean reward", signed(gain.value, 2))
    else:
        low, high = (f"{after['pass@1'][end]:.1%}" for end in ("low", "high"))
        yield Number(f"held-out pass@1 {step}", new, f"95 % interval {low} to {high}; {old} before")
        yield Number("change, in percentage points", signed(100 * gain.value), _reach(gain))


def _by_training(metrics: Sequence[Row]) -> RunVerdict:
    """Judges a run by the change of its pass rate in training, or of its mean reward if no pass rate was logged."""
    name = m.PASS_RATE if any(m.PASS_RATE in row for row in metrics) else m.REWARD
    what = "pass rate" if name == m.PASS_RATE else "reward"
    points = [(row["step"], row[name]) for row in metrics if name in row]
    series = Series(*np.array(points, float).T) if points else NOTHING
    shift, numbers = change(series), _training_numbers(metrics)
    if shift is None:
        lines = [
            f"Too early to say: {len(series)} round{'s' * (len(series) != 1)}, and {2 * FEWEST_ROUNDS} are needed to "
            "tell a trend from luck."
        ]
        return RunVerdict(lines, UNSURE, numbers)
    sentences = {
        GOOD: f"The model learns: its {what} in training rose",
        BAD: f"The model gets worse: its {what} in training fell",
        UNSURE: f"No clear change yet: the {what} in training moved",
    }
    mood = GOOD if shift.low > 0 else BAD if shift.high < 0 else UNSURE
    low, high = f"{shift.low:+.3f}", f"{shift.high:+.3f}"
    interval = f" (99 % interval {low} to {high})" if low != high else ""
    lines = [
        f"{sentences[mood]} by {shift.value:+.3f}{interval}.",
        "There are no two evaluations on held-out problems, so the run may have memorized what it was trained on.",
    ]
    return RunVerdict(lines, mood, numbers)


def _training_numbers(metrics: Sequence[Row]) -> list[Number]:
    """Returns the mean pass rate and the mean reward of the last quarter of the rounds, if they were measured."""
    last_rows = metrics[-max(1, len(metrics) // 4) :]
    numbers = []
    for name, label, form in (
        (m.PASS_RATE, "pass rate in training", "{:.1%}"),
        (m.REWARD, "mean reward", "{:.3f}"),
    ):
        values = [row[name] for row in last_rows if name in row]
        if values:
            note = f"mean of the last {len(values)} of {len(metrics)} rounds"
            numbers.append(Number(label, form.format(sum(values) / len(values)), note))
    return numbers


def _energy(metrics: Sequence[Row], evaluations: Sequence[Row]) -> list[Number]:
    """Returns the energy of all rounds, if the learner's machines count it, or of those in which they did."""
    counted = [row for row in metrics if m.ROUND_ENERGY in row]
    kwh, every = sum(row[m.ROUND_ENERGY] for row in counted) / 3.6e6, len(counted) == len(metrics)
    tokens, points = costs(counted)["tokens"].sum(), points_gained(evaluations) if every else 0.0
    shares = [f"{3.6e6 * kwh / tokens:.2g} J a token"] if tokens else []
    shares += [f"{kwh / points:.2g} kWh a point of pass@1"] if points else []
    note = ", ".join([*shares, "by the counters of GPUs and processors"])
    of = "all" if every else f"{len(counted)} of {len(metrics)}"
    return [Number(f"energy of {of} rounds", f"{kwh:.3g} kWh", note)] if kwh else []


def _spent(metrics: Sequence[Row]) -> Number:
    total = {unit: values.sum() for unit, values in costs(metrics).items()}
    step = metrics[-1]["step"] if metrics else 0
    note = f"{step:,} optimizer steps, {total['samples']:,.0f} completions, {total['tokens']:,.0f} tokens"
    return Number("time of all rounds", duration(total["seconds"]), note)


def left(metrics: Sequence[Row], num_steps: int) -> list[Number]:
    """Returns the time up to `num_steps` at the pace of the last rounds, with tokens, money, energy and the expected
    gain."""
    rows = metrics[-RECENT:]
    steps = sum(row.get(m.INTERVAL, 1) for row in rows)
    if not rows or num_steps <= rows[-1]["step"]:
        return []
    more, total = (num_steps - rows[-1]["step"]) / steps, {unit: values.sum() for unit, values in costs(rows).items()}
    money, joules = (sum(row.get(name, 0.0) for row in rows) for name in (m.ROUND_COST, m.ROUND_ENERGY))
    notes = [f"{total['tokens'] * more:,.0f} tokens"]
    notes += [f"{money * more:.2f} of money"] if money else []
    notes += [f"{joules * more / 3.6e6:.2g} kWh"] if joules else []
    gains = [row for row in rows if m.EXPECTED_GAIN in row]
    notes += [f"pass rate {signed(100 * gains[-1][m.EXPECTED_GAIN])} points, as forecast"] if gains else []
    return [Number(f"left until step {num_steps:,}", duration(total["seconds"] * more), ", ".join(notes))]


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def probability(p: float) -> str:
    """Formats a p-value.

    >>> probability(0.0412), probability(1e-9)
    ('p = 0.041', 'p < 0.001')
    """
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"


def _reach(interval: Interval) -> str:
    if interval.low == interval.high:
        return "every problem changed by as much" if interval.value else "no problem changed"
    return f"95 % interval {signed(100 * interval.low)} to {signed(100 * interval.high)}"


def verdict_lines(log: RunLog) -> tuple[list[str], str]:
    """Returns a verdict on a run, how far its pass rate (or else its reward) moved, and the forecast of the pass rate,
    in sentences, and their mood: `GOOD`, `BAD` or `UNSURE`."""
    name = m.PASS_RATE if len(log[m.PASS_RATE]) else m.REWARD
    log = with_known_prompts(log, DiagnosisRule())
    series, shift = log[name], change(log[name])
    what = "pass rate" if name == m.PASS_RATE else "reward"
    if not len(series):
        return ["the log has neither pass rates nor rewards"], UNSURE
    if shift is None:
        num_needed = 2 * FEWEST_ROUNDS
        rounds_are = "1 round is" if len(series) == 1 else f"{len(series)} rounds are"
        trend = f"{rounds_are} too few to tell a trend of the {what} from luck, and {num_needed} are needed"
        return [f"too early to say: {trend}"], UNSURE
    now = float(np.mean(series.values[-window_length(len(series)) :]))
    mood, judgement = _judged(log, shift, now)
    lines = [f"{judgement}; {_course(what, len(series), shift, now, mood)}"]
    if loss := lost(log, DiagnosisRule()):
        lately = float(np.mean(series.values[-FEWEST_ROUNDS:]))
        is_now = f"{lately:.1%}" if name == m.PASS_RATE else f"{lately:.3g}"
        lines = [f"{judgement}: {loss}; the {what} is {is_now} now"]
    if len(log.history) >= FEWEST_ROUNDS:
        ahead = forecast(log.history, log.horizon).numbered(log.history)
        lines.append(
            f"if training goes on, the pass rate at step {ahead.steps[-1]:,.0f} will be between {ahead.low[-1]:.1%} "
            f"and {ahead.high[-1]:.1%} (with 90 % certainty){guess(ahead)}"
        )
    return lines, mood


def _course(what: str, rounds: int, shift: Interval, now: float, mood: str) -> str:
    """Says from which value to which a pass rate or reward went, with the 99 % interval of the change.

    Both values are means of `window_length(rounds)` rounds.
    """
    levels, moves = (now - shift.value, now), (shift.value, shift.low, shift.high)
    if what == "pass rate":
        start, is_now = (f"{level:.1%}" for level in levels)
        gain, low, high = (signed(100 * move) for move in moves)
        gain += " points"
    else:
        start, is_now = (f"{level:.3g}" for level in levels)
        gain, low, high = (f"{move:+.3g}" for move in moves)
    certainty = f", with 99 % certainty between {low} and {high}"
    if low == high:
        certainty = "" if shift.value else ", the same in every round"
    if what == "pass rate" and mood == UNSURE and shift.high - shift.low > TELLS_NOTHING:
        certainty = ", which may be luck: the rounds are too few, or differ too much, to say more"
    window = window_length(rounds)
    return (
        f"the {what} went from {start} in the first {window:,} rounds to {is_now} in the last {window:,} of {rounds:,} "
        f"(a change of {gain}{certainty})"
    )


def _judged(log: RunLog, shift: Interval, now: float) -> tuple[str, str]:
    """Returns the mood and the first words of the verdict.

    `shift` is the change of the pass rate, or else of the reward, and `now` its latest value.
    """
    rule, has_pass_rate = DiagnosisRule(), len(log[m.PASS_RATE]) > 0 and not log.partial
    if reward_hacking(log, rule):
        return BAD, "training gets better, and held-out problems do not"
    if has_pass_rate and now > SOLVED:
        return GOOD, "the problems are solved"
    if lost(log, rule):
        return BAD, "much of what the model could do is lost"
    if harder_prompts(log, rule):
        return UNSURE, "the prompts get harder, and held-out problems are solved as well as before"
    if shift.low > 0:
        return GOOD, "learning"
    return (BAD, "getting worse") if shift.high < 0 else (UNSURE, "no clear change yet")


def nothing_found(log: RunLog) -> str:
    """Says that the checks found no problem and how many could be made, with advice where the verdict is not good."""
    checks_not_made, (_, mood) = unchecked(log), verdict_lines(log)
    outcome = "the checks found no problem"
    if len(checks_not_made) == len(CHECKS):
        return f"none of {len(CHECKS)} checks could be made, since the log lacks the columns that they need"
    if checks_not_made:
        outcome = (
            f"{len(CHECKS) - len(checks_not_made)} of {len(CHECKS)} checks could be made, and they found no problem"
        )
    if 0 < len(log[m.PASS_RATE]) < FEWEST_ROUNDS:
        outcome += f", but most need {FEWEST_ROUNDS} rounds and more, and the log has {len(log[m.PASS_RATE])}"
    shift = change(log[m.PASS_RATE] if len(log[m.PASS_RATE]) else log[m.REWARD])
    if shift is None or mood not in ADVICE or harder_prompts(log, DiagnosisRule()):
        return outcome
    reach = (shift.high - shift.low) / 2
    advice = ADVICE[mood].format(f"{100 * reach:.1f} points" if len(log[m.PASS_RATE]) else f"{reach:.2g}")
    return f"{outcome}; {in_words_of(log.framework, advice)}"


def unchecked_lines(missing: Mapping[str, str]) -> list[str]:
    """Says which columns the log lacks for checks, those that the most checks need first.

    `missing` maps a check that was not made to what it lacks.
    """
    needs = [words for words, _ in Counter(missing.values()).most_common()]
    if not needs:
        return []
    columns_lacked, more = needs[:MOST_NEEDS], len(needs) - MOST_NEEDS
    if more > 0:
        columns_lacked = [*columns_lacked, f"{more} more column{'s' if more > 1 else ''}"]
    columns_lacked = [", ".join(columns_lacked[:-1]), columns_lacked[-1]] if len(columns_lacked) > 1 else columns_lacked
    verb = "needs" if len(missing) == 1 else "need"
    return [f"{len(missing)} of {len(CHECKS)} checks {verb} what the log lacks: {' and '.join(columns_lacked)}"]


def guess(ahead: Forecast) -> str:
    """Says from where on a forecast lies further ahead than its log is long, in words that follow those of the
    forecast, or "" if it nowhere does."""
    if ahead.guess_from is None:
        return ""
    return f"; from step {ahead.guess_from:,.0f} on it reaches further ahead than the log is long and is mostly a guess"
