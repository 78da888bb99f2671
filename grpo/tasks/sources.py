"""This module loads problems from a file, the hub, a reasoning_gym generator, or plain arithmetic."""

import difflib
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grpo.config import DataConfig, RewardConfig, UserError
from grpo.config.errors import require
from grpo.tasks.arithmetic import arithmetic_problems
from grpo.tasks.columns import (
    PICTURES,
    Row,
    cell,
    columns_of,
    conversation,
    foreign_format,
    is_structured,
    kind_of,
    letter_of,
    likely,
    other_parts,
    text_of,
    whole,
)
from grpo.tasks.files import read_rows, rows_of
from grpo.tasks.procedural import procedural_problems
from grpo.tasks.rewards import EXTRACTING, needing_answers
from grpo.types import Problem

logger = logging.getLogger(__name__)

NUM_LISTED = 5
MAX_SOURCES = 64
# Names are a slip of each other from this similarity on, by `difflib`.
NEARLY = 0.8


@dataclass(frozen=True, slots=True)
class SourceReport:
    """This report lists the rows of a source that did not become problems.

    `unusable` holds the ids of rows without a usable question or answer; `repeated` holds the ids of a
    generator's repeated questions. `first` shows the question and answer of the first row that cannot be used, and
    `lacking` names a column that it lacks, in a file whose rows have different ones.
    `no_answers` says why the problems have no answers, if they have none.
    """

    num_rows: int
    unusable: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()
    first: str = ""
    lacking: str = ""
    no_answers: str = ""

    def __str__(self) -> str:
        parts = [f"{self.num_rows} rows"]
        if self.unusable:
            parts.append(f"{len(self.unusable)} without a usable question or answer ({listed(self.unusable)})")
        if self.repeated:
            parts.append(f"{len(self.repeated)} repeated questions ({listed(self.repeated)})")
        return parts[0] + (": " if parts[1:] else "") + " and ".join(parts[1:]) + self.lacking


def load_problems(data: DataConfig, reward: RewardConfig | None = None) -> tuple[list[Problem], SourceReport]:
    """Loads a source's problems in the source's order. Returns the problems and a report of the rows left out.

    Data may lack the column of answers if no part of `reward` needs an answer. Without `reward`, they may not.

    Every column that is neither question nor answer goes into a problem's metadata. Ids come from
    `id_column`; without one they are ``"<file or data set>-<row>"``, with rows counted from 0.

    Raises `UserError` for a source that is missing, unreadable or empty, and for an id that occurs twice.
    """
    if data.source not in SOURCES:
        raise UserError(f"task.data.source is {data.source!r}; choose one of {', '.join(SOURCES)}.")
    problems, report = SOURCES[data.source](data)
    if not problems and data.answer_column and reward and not _part_in_need(data, reward):
        # Answers that nobody reads may be empty, as verl's are for a model that judges.
        problems, report = SOURCES[data.source](replace(data, answer_column=None))
    if report.no_answers:
        _require_no_need(report.no_answers, data, reward)
    if not problems:
        raise UserError(
            f"no usable problem in {data.path or data.source}: {report}; check task.data.question_column and "
            "task.data.answer_column"
            + (", task.data.answer_pattern" if data.answer_pattern else "")
            + (", and task.data.choices_column." if data.choices_column else ".")
            + report.first
        )
    _require_bare_answers(problems, data, reward)
    compared = not reward or any(part.name in EXTRACTING for of in _rewards(reward) for part in of.parts)
    require(
        not compared or not any(isinstance(problem.cell, list | dict) for problem in problems),
        f"{data.path}: answers are lists or mappings, which parts of the reward that come with grpo cannot compare: "
        "use a function of your own alone, which gets them as they are, or name another task.data.answer_column",
    )
    if report.unusable and data.bad_rows == "refuse":
        raise UserError(f"{data.path}: {report}; correct them or set task.data.bad_rows=skip.{report.first}")
    ids = set()
    for problem in problems:
        if problem.problem_id in ids:
            raise UserError(f"{data.path}: the id {problem.problem_id!r} occurs twice; ids must be unique.")
        ids.add(problem.problem_id)
    return problems, report


def _require_bare_answers(problems: Sequence[Problem], data: DataConfig, reward: RewardConfig | None) -> None:
    """Raises `UserError` where most answers are whole solutions as GSM8K has them, and a part compares with them."""
    compared = reward and not data.answer_pattern and any(part.name in EXTRACTING for part in reward.parts)
    if compared and sum("\n####" in problem.answer for problem in problems) > len(problems) / 2:
        raise UserError(
            f"{data.path}: the answers are solutions that end in '#### …', as GSM8K's do: set "
            "task.data.answer_pattern='#### (.*)'"
        )


def _require_no_need(why: str, data: DataConfig, reward: RewardConfig | None) -> None:
    """Raises `UserError` if a part of the reward, or of one source's reward, needs the answers that are not there."""
    part = _part_in_need(data, reward) if reward else ""
    if part or not reward:
        needed_by = f"the reward part {part!r} needs" if part else "the reward needs"
        raise UserError(
            f"{why}, and {needed_by} an answer: name the answers' column, or choose task.reward.parts that need none, "
            "such as a function f(completions, **columns)."
        )


def _part_in_need(data: DataConfig, reward: RewardConfig) -> str:
    """Returns the first part of a reward, or of one source's reward, that needs answers, or ""."""
    name = (data.answer_column or "").rpartition(".")[2]
    return next(filter(None, (needing_answers(of_source, name) for of_source in _rewards(reward))), "")


def _rewards(reward: RewardConfig) -> list[RewardConfig]:
    """Returns a reward and those of its sources."""
    return [reward, *map(reward.of, reward.by_source)]


def listed(ids: tuple[str, ...]) -> str:
    """Joins the first few ids with commas, for a message."""
    return ", ".join(ids[:NUM_LISTED]) + (", …" if len(ids) > NUM_LISTED else "")


def _from_file(data: DataConfig) -> tuple[list[Problem], SourceReport]:
    path = Path(data.path)
    if data.split != DataConfig.split:
        logger.warning("task.data.split=%s is not read: splits are those of the hub, and %s has none", data.split, path)
    return _problems_of_rows(read_rows(path, "task.data.path")[: data.limit or None], path.stem, data)


def _from_hub(data: DataConfig) -> tuple[list[Problem], SourceReport]:
    from datasets import load_dataset

    if not data.path or not data.split:
        raise UserError('task.data.source=hub needs task.data.path ("owner/name") and task.data.split.')
    require(not Path(data.path).is_file(), f"task.data.path={data.path} is a file here: set task.data.source=file")
    name = "/".join(data.path.rstrip("/").split("/")[-2:])
    require("://" not in data.path, f"task.data.path={data.path} is an address: give the data set's name, {name}")
    try:
        dataset = load_dataset(data.path, data.subset or None, split=data.split)
    except Exception as error:  # several packages raise a dozen kinds, all of which mean that the set cannot be loaded
        raise UserError(f"data set {data.path!r} {_hub_failure(error)}") from error
    dataset = dataset.select(range(min(data.limit or len(dataset), len(dataset))))
    return _problems_of_rows(rows_of(dataset.with_format("arrow")[:]), Path(data.path).name, data)


def _hub_failure(error: Exception) -> str:
    """Returns a message about why the hub's data set cannot be loaded, and what to do."""
    from datasets.exceptions import DatasetNotFoundError

    text = str(error)
    if isinstance(error, DatasetNotFoundError) and "gated" in text:
        return "is gated: accept its terms on its hub page, then log in with `hf auth login`."
    if isinstance(error, DatasetNotFoundError):
        return "was not found on the hub: check task.data.path, or log in if it is private."
    if isinstance(error, ConnectionError):
        return (
            "is not in the cache, and the hub cannot be reached (no network, or HF_HUB_OFFLINE=1): go online once, or "
            "use a local file with task.data.source=file."
        )
    cause = (text.splitlines() or [type(error).__name__])[0]
    return f"cannot be loaded: {cause} Check task.data.subset and task.data.split."


def _from_reasoning_gym(data: DataConfig) -> tuple[list[Problem], SourceReport]:
    problems, repeated = procedural_problems(data.path, data.options, data.size, data.seed)
    return problems, SourceReport(num_rows=data.size, repeated=repeated)


def _from_arithmetic(data: DataConfig) -> tuple[list[Problem], SourceReport]:
    problems = arithmetic_problems(data.options, data.size, data.seed)
    return problems, SourceReport(num_rows=len(problems))


SOURCES: dict[str, Callable[[DataConfig], tuple[list[Problem], SourceReport]]] = {
    "file": _from_file,
    "hub": _from_hub,
    "reasoning_gym": _from_reasoning_gym,
    "arithmetic": _from_arithmetic,
}


def _problems_of_rows(rows: list[dict[str, Any]], stem: str, data: DataConfig) -> tuple[list[Problem], SourceReport]:
    """Makes a problem of each row by the configured columns; rows without an id are named after `stem`."""
    if not rows:
        raise UserError(f"{data.path} has no rows.")
    columns = columns_of(rows)
    require(bool(columns), f"the rows of {data.path} are empty: each needs columns for its question and answer.")
    for key in ("question_column", "id_column", "choices_column", "source_column"):
        name = getattr(data, key)
        if name not in columns and (name or key == "question_column"):
            raise UserError(f"{_lacking(data, key, columns)}.")
    answered = data.answer_column and data.answer_column in columns
    no_answers = "" if answered else _lacking(data, "answer_column", columns)
    # A name that is nearly a column's is a slip, also where nothing needs answers.
    slip = no_answers and difflib.get_close_matches(data.answer_column or "", columns, cutoff=NEARLY)
    meant = "" if "; perhaps " in no_answers else f"; perhaps task.data.answer_column={''.join(slip[:1])} is meant"
    require(not slip, f"{no_answers}{meant}.")
    if data.question_column == data.answer_column:
        raise UserError(
            f"task.data.question_column and answer_column both name {data.answer_column!r}: name two columns."
        )
    pattern = _answer_pattern(data.answer_pattern)
    answers = [None if no_answers else cell(row, data.answer_column) for row in rows]
    with_choices = zip(answers, (cell(row, data.choices_column) for row in rows), strict=True)
    kind = kind_of(with_choices) if data.choices_column and not data.answer_pattern else ""
    problems, unusable, first, lacking = [], [], "", ""
    for index, (row, own_answer) in enumerate(zip(rows, answers, strict=True)):
        # A column without a name, such as the index that pandas writes, is not the ids' when none is named.
        row_id = (text_of(cell(row, data.id_column)) if data.id_column else "") or f"{stem}-{index}"
        messages, question = conversation(cell(row, data.question_column))
        match = pattern.search(text_of(own_answer))
        answer = (match.group(1) or "").strip() if match else ""
        structured, made = is_structured(own_answer), data.answer_pattern or data.choices_column
        typed = own_answer if not made and (structured or isinstance(own_answer, int | float)) else None
        answer = json.dumps(typed, ensure_ascii=False, default=str) if structured and not made else answer
        if data.choices_column:
            answer = letter_of(answer, cell(row, data.choices_column), kind)
        texts = (question, answer, *(message["content"] for message in messages))
        if not question or not (answer or no_answers) or not all(map(whole, texts)) or _picture(row, question):
            unusable.append(row_id)
            first, lacking = first or _shown(row, own_answer, data), lacking or _lacking_cell(row, data)
            continue
        used = {data.question_column, data.answer_column, data.id_column}
        metadata = {name: value for name, value in row.items() if name not in used}
        source = text_of(cell(row, data.source_column)) if data.source_column else ""
        problems.append(Problem(row_id, question, answer, metadata, messages, source, typed))
    if len(sources := {problem.source for problem in problems}) > MAX_SOURCES:
        raise UserError(
            f"task.data.source_column={data.source_column!r} has {len(sources)} values, and each would get numbers of "
            f"its own; name a column with at most {MAX_SOURCES}."
        )
    return problems, SourceReport(len(rows), tuple(unusable), first=first, lacking=lacking, no_answers=no_answers)


def _lacking(data: DataConfig, key: str, columns: Sequence[str]) -> str:
    """Returns a message about a column that the data lack, with the columns that they have."""
    name = getattr(data, key)
    hint = foreign_format(columns, data.question_column, data.answer_column) or likely(columns, key)
    outer, _, inner = (name or "").partition(".")
    if inner and outer in columns:
        nested = [name for name in columns if name.startswith(f"{outer}.")]
        holds = f"it has {', '.join(nested)}" if nested else "its cells have no columns of their own, as text has none"
        hint = f", and nothing within {outer} is {inner}: {holds}"
    if not hint and data.path.endswith((".csv", ".tsv")):
        hint = "; the first line of a table names its columns"
    lack = f"{data.path} has no column {name!r} (task.data.{key})" if name else f"task.data.{key} names no column"
    return f"{lack}; {data.path if not name else 'it'} has {', '.join(columns)}{hint}"


def _lacking_cell(row: Row, data: DataConfig) -> str:
    """Names the column that a row lacks and others of its file have, or returns ""."""
    names = {key: (getattr(data, key) or "").partition(".")[0] for key in ("question_column", "answer_column")}
    lacks = [f"{name!r} (task.data.{key})" for key, name in names.items() if name and name not in row]
    return f"; the first has {', '.join(row)} and no column {lacks[0]}: name columns alike in all rows" if lacks else ""


def _picture(row: Row, question: str) -> str:
    """Returns the mark by which a question shows what lies in a column of that name, as verl's data do, or ""."""
    marks = (mark for mark in PICTURES if f"<{mark}>" in question)
    return next((f"<{mark}>" for mark in marks if row.get(mark) or row.get(f"{mark}s")), "")


def _shown(row: Row, answer: Any, data: DataConfig) -> str:
    """Returns a message with the question and answer of an unusable row, and the forms that can be used."""
    question = cell(row, data.question_column)
    first = question[0] if isinstance(question, list) and question else None
    if isinstance(first, Mapping) and not {"role", "content"} <= first.keys():
        return f" The first has a message with {' and '.join(map(str, first))}: messages have role and content."
    last = question[-1].get("role") if isinstance(first, Mapping) and isinstance(question[-1], Mapping) else "user"
    if last != "user":
        return f" The first has a conversation that ends with a message of the role {last}: its last one is the user's."
    if isinstance(question, str) and question.lstrip().startswith(("[{'", '[{"')):
        return " The first has a conversation that is no JSON, such as Python's own notation: write it by json.dumps."
    if other := other_parts(cell(row, data.question_column)):
        return f" The first has a prompt with parts of the type {' and '.join(other)}; models read text only here."
    if mark := _picture(row, conversation(cell(row, data.question_column))[1]):
        return f" The first has {mark} in its prompt, and a column that holds it; models read text only here."
    if data.choices_column and conversation(cell(row, data.question_column))[1] and text_of(answer):
        return (
            f" The first has the answer {answer!r:.80} and the choices {cell(row, data.choices_column)!r:.80}; choices "
            "are a list of two or more, and an answer is the label, the text, the letter or the index of one that "
            "stands there once."
        )
    return (
        f" The first has the question {cell(row, data.question_column)!r:.80} and the answer {answer!r:.80}; "
        "a question is text, or chat messages that end with the user's, and an answer is text or a number, true or "
        "false, without halves of characters (U+D800 to U+DFFF)."
    )


def _answer_pattern(text: str) -> re.Pattern[str]:
    try:
        pattern = re.compile(text or r"(?s)(.*)")
    except re.error as error:
        raise UserError(f"task.data.answer_pattern {text!r} is not a valid regular expression: {error}.") from error
    if pattern.groups != 1:
        raise UserError(f"task.data.answer_pattern {text!r} has {pattern.groups} groups; it needs exactly one.")
    return pattern
