"""This module decides which problems of a set can be learned from, and says what is odd about them."""

import ast
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from grpo.config import TaskConfig, UserError
from grpo.config.errors import require
from grpo.tasks.columns import PICTURES, cell, columns_of
from grpo.tasks.grading import unparsable
from grpo.tasks.problem_selection import select
from grpo.tasks.prompt_encoding import filled, unfilled
from grpo.tasks.rewards import EXTRACTING, readable
from grpo.tasks.sources import listed, load_problems
from grpo.tasks.unit_tests import row_tests
from grpo.tasks.verification import UnparsableAnswer, spelled
from grpo.types import Problem

logger = logging.getLogger(__name__)

# The tests of this many rows are read before a run.
MOST_READ = 100
# Fewer problems than this may well have the same answer.
FEW = 9
# Columns of these names mostly hold the choices of a question.
CHOICES = ("choices", "options")
# An answer of this many words, none of them TeX, is a sentence.
SENTENCE = 8
# Python's and pandas's texts for a missing value.
MISSING = {"None", "nan", "NaN", "null", "<NA>", "NaT"}


@contextmanager
def without_warnings() -> Iterator[None]:
    """Keeps back warnings about problems, where the run gives them at another time."""
    room = logging.getLogger("grpo.tasks")
    before = room.level
    room.setLevel(logging.ERROR)
    try:
        yield
    finally:
        room.setLevel(before)


def usable_problems(config: TaskConfig, set_name: str = "") -> list[Problem]:
    """Returns the data's problems that are selected and whose answers the reward can read.

    With `set_name`, each problem gets that name as its source, and as a prefix of its id.
    """
    problems, report = load_problems(config.data, config.reward)
    if report.no_answers:
        logger.warning("task %s: problems have no answers, and no part of the reward compares with any", config.name)
    if report.unusable or report.repeated:
        logger.warning("task %s: left out of %s", config.name, report)
    # Columns that the template shows, such as choices, belong to a question.
    problems, left_out = select(problems, config.data.selection, partial(filled, config.prompt.template))
    if left_out.total:
        logger.warning("task %s: %s", config.name, left_out)
    if left_out.overlaps:
        pairs = tuple(f"{name} is {where}" for name, where in left_out.overlaps.items())
        logger.warning("task %s: questions of evaluation sets: %s", config.name, listed(pairs))
    unreadable = {
        problem.problem_id: problem.answer
        for problem in problems
        if not readable(problem.answer, config.reward.of(problem.source))
    }
    if len(unreadable) == len(problems) or (unreadable and config.data.bad_rows == "refuse"):
        raise UserError(f"{unparsable(unreadable)}; correct them, or choose other task.reward.parts.")
    if unreadable:
        logger.warning("task %s: left out %s", config.name, unparsable(unreadable))
    lacking = _lacking_columns(config, problems)
    if lacking:
        logger.warning(
            "task %s: left out %d problems without a column that task.prompt.template shows (%s)",
            config.name, len(lacking), listed(tuple(f"{name} has no {column}" for name, column in lacking.items())),
        )  # fmt: skip
    _require_sources(config, problems)
    _require_tests(config, problems)
    usable = [problem for problem in problems if problem.problem_id not in unreadable.keys() | lacking.keys()]
    require(bool(usable), "no problem has an answer and all columns that task.prompt.template shows: correct either")
    _report_odd(config, usable)
    if not set_name:
        return usable
    return [replace(problem, problem_id=f"{set_name}/{problem.problem_id}", source=set_name) for problem in usable]


def _is_long(answer: str) -> bool:
    """Tells whether an answer is a sentence or a JSON object."""
    return (len(answer.split()) >= SENTENCE and "\\" not in answer) or answer.startswith('{"')


def _report_odd(config: TaskConfig, usable: Sequence[Problem]) -> None:
    """Logs what is odd about the problems of a set, and hardly ever meant, though they can be learned from."""
    if contradictory := _contradictory(config, usable):
        logger.warning(
            "task %s: %d prompts come again with another answer (%s)",
            config.name, len(contradictory), listed(contradictory),
        )  # fmt: skip
    if len(usable) < FEW:
        return
    answers, sources = {problem.answer for problem in usable}, {problem.source for problem in usable}
    asked = {(problem.question, str(problem.messages)) for problem in usable}
    hidden = [
        name
        for name in CHOICES
        if all(isinstance(cell(problem.metadata, name), list | dict) for problem in usable)
        and not config.data.choices_column
        and f"{{{name}}}" not in config.prompt.template
        and all(re.fullmatch("[A-J]", answer) for answer in answers)
    ]
    missing = [problem.problem_id for problem in usable if problem.answer in MISSING]
    broken = [problem.problem_id for problem in usable if "\ufffd" in problem.question]
    names = [name for kind in PICTURES for name in (kind, f"{kind}s")]
    pictures = [name for name in names if all(problem.metadata.get(name) for problem in usable)]
    odd = {
        f"no model sees the column {', '.join(pictures)} here, since all read text only: leave out the problems that "
        "need it": bool(pictures),
        f"the answer of all {len(usable)} problems is {listed(tuple(answers))}: check task.data.answer_column": (
            len(answers) == 1 and all(answers)
        ),
        "most answers are numbers in words or with a decimal comma, and a model's 7 or 2.5 does not count as them: "
        "write them in digits, with a point": bool(EXTRACTING & {*config.reward.weights})
        and 2 * sum(map(spelled, answers)) > len(answers),
        "most answers are whole sentences or JSON, which no completion repeats: task.data.answer_pattern finds the "
        "part that counts, or name the column of the answer alone in task.data.answer_column": (
            bool(EXTRACTING & {*config.reward.weights}) and 2 * sum(map(_is_long, answers)) > len(answers)
        ),
        "no problem has a source in the column that task.data.source_column names: correct it, or leave it out": (
            bool(config.data.source_column) and not any(sources)
        ),
        f"{len(missing)} answers are texts such as None, by which Python and pandas write that there is none: leave "
        f"these rows out ({listed(tuple(missing))})": bool(missing) and len(missing) < len(usable),
        f"answers are letters, and the prompt does not show the column {''.join(hidden[:1])} with the choices: put its "
        "name in braces into task.prompt.template, unless the questions hold the choices": bool(hidden),
        "most answers are whole numbers with a point, such as 5.0, and the part exact compares texts, so a model's "
        "5 is wrong: use the part number": "exact" in config.reward.weights
        and 2 * sum(bool(re.fullmatch(r"-?\d+\.0", answer)) for answer in answers) > len(answers),
        "every question is a number alone: check task.data.question_column": (
            all(problem.question.isdecimal() for problem in usable)
        ),
        f"{len(broken)} questions hold U+FFFD, as text does that was decoded wrongly: write the file as UTF-8 "
        f"({listed(tuple(broken))})": bool(broken),
        f"there are {len(usable)} problems and {len(asked)} questions, and the others come again: set "
        "task.data.selection.deduplicate=true to keep one of each": 2 * len(asked) <= len(usable),
        f"task.data.source_column makes {len(sources)} sources of {len(usable)} problems, whose numbers tell little": (
            2 * len(sources) > len(usable)
        ),
    }
    for line in (line for line, is_so in odd.items() if is_so):
        logger.warning("task %s: %s", config.name, line)


def _lacking_columns(config: TaskConfig, problems: Sequence[Problem]) -> dict[str, str]:
    """Returns the ids of problems without a column whose name stands in the template's braces, each with that name.

    Raises `UserError` for a name that no problem has as a column, or that is the answers' column.
    """
    for name in unfilled(config.prompt.template, problems):
        if name == config.data.answer_column:
            raise UserError(f"task.prompt.template shows {{{name}}}, the column of the answers: take it out.")
        columns = ", ".join(["question", *columns_of(problem.metadata for problem in problems)])
        raise UserError(
            f"task.prompt.template has {{{name}}}, and no problem has a column {name!r}: name one of {columns}, or "
            f"write {{ {name} }} with blanks if it is to stay as it is."
        )
    names = unfilled(config.prompt.template, [])
    return {problem.problem_id: name for name in names for problem in problems if cell(problem.metadata, name) is None}


def _require_sources(config: TaskConfig, problems: Sequence[Problem]) -> None:
    """Raises `UserError` for a source in `reward.by_source` that no problem has."""
    sources = {problem.source for problem in problems}
    if unknown := config.reward.by_source.keys() - sources:
        raise UserError(
            f"task.reward.by_source: no problem has the source {listed(tuple(sorted(unknown)))}; there are "
            f"{listed(tuple(sorted(sources)))}."
        )


def _require_tests(config: TaskConfig, problems: Sequence[Problem]) -> None:
    """Raises `UserError` where programs are judged, and none of the first problems has tests that can be read."""
    judged = [problem for problem in problems if "code" in config.reward.of(problem.source).weights][:MOST_READ]
    reasons = []
    for problem in judged:
        try:
            tests = row_tests(problem.answer, problem.metadata)
            ast.parse(tests if isinstance(tests, str) else "")
            return
        except (UnparsableAnswer, SyntaxError) as error:
            reasons.append(str(error))
    if reasons:
        raise UserError(
            f"task.reward.parts has code, which runs a row's unit tests, and the first {len(reasons)} have none that "
            f"can be read ({reasons[0]}): choose another part, or data with tests"
        )


def _contradictory(config: TaskConfig, problems: Sequence[Problem]) -> tuple[str, ...]:
    """Returns the ids of problems that repeat an earlier problem's prompt with another answer."""
    answers: dict[str, str] = {}
    return tuple(
        problem.problem_id
        for problem in problems
        if len(problem.messages) < 2
        and answers.setdefault(filled(config.prompt.template, problem), problem.answer) != problem.answer
    )
