"""This module compares the evaluations before and after training, in tables.

An evaluation is one row of evaluations.jsonl: its step, and the result of `grpo.evaluation.held_out.evaluate`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from grpo.config import UserError
from grpo.evaluation.held_out import CONDITIONS, both_unjudged
from grpo.evaluation.pass_rates import Interval, paired_change, pass_at_k
from grpo.insight.pages.glossary import signed
from grpo.insight.pages.page import Block, Kind
from grpo.telemetry.json_lines import Row

Evaluation = Mapping[str, Any]

# A long completion is shown by this many characters of its head and tail, since the answer stands at the end.
_HEAD, _TAIL = 240, 160
# Completions of this many problems are shown.
NUM_SAMPLES = 4
# Two evaluations can be compared only when they have the same values of these.
_CONDITIONS = ("problems", *CONDITIONS)


def before_and_after(evaluations: Sequence[Evaluation]) -> list[Block]:
    """Returns tables of the first and the last evaluation of a run: completions, and pass@k with paired changes.

    Returns none of fewer than two. Raises `UserError` when they are not comparable, see `check_comparable`.
    """
    if len(evaluations) < 2:
        return []
    before, after = evaluations[0], evaluations[-1]
    samples = samples_rows(before["per_problem"], after["per_problem"], NUM_SAMPLES, both_unjudged(before, after))
    return [
        Block(Kind.TABLE, samples, "Completions before and after", texts=range(3)),
        Block(Kind.TABLE, summary_rows(before, after), "Held-out problems", f"{conditions(before, after)}."),
        *_of_suite(before.get("suite", {}), after.get("suite", {})),
    ]


def _of_suite(before: Mapping[str, Evaluation], after: Mapping[str, Evaluation]) -> Iterator[Block]:
    """Yields a table of each set of the suite. Leaves out sets whose evaluations are not comparable."""
    for name in (name for name in after if name in before):
        with suppress(UserError):
            of_set = summary_rows(before[name], after[name])
            yield Block(Kind.TABLE, of_set, f"{name}, of evaluation.suite", f"{conditions(before[name], after[name])}.")


def samples_rows(
    rows_before: Sequence[Row], rows_after: Sequence[Row], limit: int | None = None, unjudged: bool = False
) -> list[list[str]]:
    """Returns a table of each problem's first completion before and after, in the order of `rows_before`.

    `rows_before` and `rows_after` are rows of `per_problem`. Problems in only one of them are left out, and the first
    `limit` others are shown. Long texts are shown without their middle. Above each completion stands how many samples
    of the problem were correct, or their mean reward where the evaluations are `unjudged`.
    """
    return [
        ["problem", "before", "after"],
        *(
            [
                "\n→ ".join(_excerpt(text) for text in (old["question"], old["answer"]) if text),
                *(f"{_score(row, unjudged)}, the first:\n{_completion(row['completion'])}" for row in (old, new)),
            ]
            for old, new in islice(pairs_of(rows_before, rows_after), limit)
        ),
    ]


def summary_rows(before: Evaluation, after: Evaluation) -> list[list[str]]:
    """Returns a table of pass@k before and after with 95 % intervals, and of the paired change in percentage points."""
    check_comparable(before, after)
    pairs = list(pairs_of(before["per_problem"], after["per_problem"]))
    rows = [["", f"step {before['step']}", f"step {after['step']}", "change"]]
    if both_unjudged(before, after):
        old, new = before["mean_reward"], after["mean_reward"]
        rows.append(["mean reward", f"{old:.3g}", f"{new:.3g}", signed(new - old, 2)])
        return rows + _size_rows(before, after)
    for k in sorted(set(before["pass@k"]) & set(after["pass@k"]), key=int):
        rates = [[pass_at_k(row["total"], row["correct"], int(k)) for row in side] for side in zip(*pairs, strict=True)]
        cells = [_percent(Interval(**side["pass@k"][k])) for side in (before, after)]
        rows.append([f"pass@{k}", *cells, _points(paired_change(*rates).interval)])
    return [*rows, *_whole_rows(before, after, pairs), *_size_rows(before, after)]


def _size_rows(before: Evaluation, after: Evaluation) -> list[list[str]]:
    """Returns the cells of what evaluations measure besides rewards: truncation, length, and what was left out."""
    old, new = before["truncated_fraction"], after["truncated_fraction"]
    rows = [["cut off", f"{old:.1%}", f"{new:.1%}", f"{signed(100 * (new - old))} points"]]
    old, new = before["mean_length"], after["mean_length"]
    digits = 0 if max(old, new) >= 100 else 1
    rows.append(["mean length, tokens", f"{old:.{digits}f}", f"{new:.{digits}f}", signed(new - old, digits)])
    old, new = (side.get("ungraded", 0) for side in (before, after))
    if old or new:
        rows.append(["problems not graded, left out", f"{old}", f"{new}", signed(new - old, 0)])
    return rows


def _whole_rows(before: Evaluation, after: Evaluation, pairs: Sequence[tuple[Row, Row]]) -> Iterator[list[str]]:
    """Yields the cells of measures that a problem passes or fails: its most frequent answer, and greedy decoding.

    Left out are measures that an evaluation lacks, and the most frequent of a single answer.
    """
    samples = after["samples_per_problem"]
    for name, measure, of_problem in ((f"maj@{samples}", "maj@k", "majority"), ("greedy", "greedy", "greedy")):
        if measure in before and measure in after and (measure != "maj@k" or samples > 1):
            # The greedy completion of a problem may lack a grade though its other completions have one.
            complete_pairs = [pair for pair in pairs if all(of_problem in row for row in pair)]
            rates = [[float(row[of_problem]) for row in side] for side in zip(*complete_pairs, strict=True)]
            change = _points(paired_change(*rates).interval) if complete_pairs else ""
            yield [name, *(_percent(Interval(**side[measure])) for side in (before, after)), change]


def check_comparable(before: Evaluation, after: Evaluation) -> None:
    """Raises `UserError` when two evaluations asked different problems, graded none in common, or differ in
    `_CONDITIONS`."""
    for name, (old, new) in unlike([before, after]).items():
        raise UserError(
            f"the evaluations differ in {name} ({old} and {new}): evaluate both with the same evaluation settings"
        )
    if not _same_problems(before, after):
        raise UserError("the evaluations asked different problems: evaluate both with the same task.data")
    if not any(pairs_of(before["per_problem"], after["per_problem"])):
        raise UserError("no problem was graded in both evaluations: evaluate again when the reward server answers")


def _same_problems(before: Evaluation, after: Evaluation) -> bool:
    """Tells whether two evaluations asked the same questions and took the same answers for right ones.

    Problems without questions and answers are known by their ids alone.
    """
    old, new = ({row["problem_id"]: row for row in asked(side)} for side in (before, after))
    return old.keys() == new.keys() and all(
        None in (texts := (old[name].get(text), new[name].get(text))) or texts[0] == texts[1]
        for name in old
        for text in ("question", "answer")
    )


def asked(evaluation: Evaluation) -> list[Row]:
    """Returns the rows of all problems that an evaluation asked, those that were graded first."""
    return [*evaluation["per_problem"], *evaluation.get("ungraded_problems", ())]


def comparable(evaluations: Sequence[Evaluation]) -> tuple[list[Evaluation], list[str]]:
    """Returns those evaluations of a run that can be compared with its last one, and a sentence on the others, if any.

    Others come about when a run is resumed with other problems, or with other settings of the evaluation.
    """
    comparable_evaluations, reason = [], ""
    for evaluation in evaluations:
        try:
            check_comparable(evaluation, evaluations[-1])
            comparable_evaluations.append(evaluation)
        except UserError as error:
            reason = str(error).partition(":")[0]
    left_out = len(evaluations) - len(comparable_evaluations)
    if not left_out:
        return comparable_evaluations, []
    left_out_words = f"{left_out} earlier evaluations are" if left_out > 1 else "1 earlier evaluation is"
    return comparable_evaluations, [f"{left_out_words} left out, since {reason}."]


def unlike(evaluations: Sequence[Evaluation]) -> dict[str, list[Any]]:
    """Returns the `_CONDITIONS` in which evaluations differ, each with its values in the order of the evaluations.

    Conditions that one of them lacks are left out.
    """
    conditions_of = {name: [evaluation.get(name) for evaluation in evaluations] for name in _CONDITIONS}
    return {name: values for name, values in conditions_of.items() if None not in values and len(set(values)) > 1}


def pairs_of(
    rows_before: Sequence[Mapping[str, Any]], rows_after: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Yields pairs (before, after) of rows of the same problem, in the order of `rows_before`."""
    by_id = {row["problem_id"]: row for row in rows_after}
    return ((row, by_id[row["problem_id"]]) for row in rows_before if row["problem_id"] in by_id)


def conditions(before: Evaluation, after: Evaluation) -> str:
    """Says how many problems two evaluations asked and both graded, how many samples each had, their temperature, and
    what the intervals are."""
    num_asked, num_graded = after["problems"], len([*pairs_of(before["per_problem"], after["per_problem"])])
    problems = f"{num_asked}" if num_graded == num_asked else f"{num_graded} graded of {num_asked}"
    samples = after["samples_per_problem"]
    return (
        f"{problems} problem{'s' * (num_asked != 1)} × {samples} sample{'s' * (samples != 1)}, "
        f"temperature {after['temperature']:g}; 95 % intervals"
    )


def _percent(interval: Interval) -> str:
    return f"{interval.value:.1%} [{interval.low:.1%}, {interval.high:.1%}]"


def _points(interval: Interval) -> str:
    """Formats a change in percentage points, with its interval unless that has no width."""
    value = f"{signed(100 * interval.value)} points"
    if interval.low == interval.high:
        return value
    return f"{value} [{signed(100 * interval.low)}, {signed(100 * interval.high)}]"


def _score(row: Mapping[str, Any], unjudged: bool) -> str:
    """Says how many samples of a problem are right, or what they earn on average if nothing says which are."""
    return f"mean reward {row['reward']:.3g}" if unjudged else f"{row['correct']} of {row['total']} correct"


def _completion(text: str) -> str:
    return _excerpt(text) if text.strip() else "(blank)"


def _excerpt(text: str) -> str:
    """Shortens a text to `_HEAD` + `_TAIL` characters, and replaces characters that would control a terminal."""
    excerpt = text if len(text) <= _HEAD + _TAIL else f"{text[:_HEAD]} … {text[-_TAIL:]}"
    return "".join(letter if letter == "\n" or letter.isprintable() else "�" for letter in excerpt)
