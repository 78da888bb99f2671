"""This module reads the cells of a row: nested columns, chat messages, and the choices of a question."""

import math
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from grpo.config.plain_json import parse_json

Row = Mapping[str, Any]
_WRITTEN_MESSAGES = re.compile(r"""\s*\[\s*\{\s*["'](role|content)["']\s*:""")
_HALF = re.compile("[\ud800-\udfff]")


def cell(row: Row, column: str) -> Any:
    """Returns a row's cell in a column, or None when there is none. A dot in the name leads into a nested column.

    >>> cell({"reward_model": {"ground_truth": "7"}}, "reward_model.ground_truth")
    '7'
    """
    if column in row:
        return row[column]
    outer, dot, inner = column.partition(".")
    inside = row.get(outer) if dot else None
    return cell(inside, inner) if isinstance(inside, Mapping) else None


def whole(text: str) -> bool:
    r"""Tells whether a text consists of whole characters. Scraped text has halves of them, which no tokenizer reads.

    >>> whole("ünï"), whole("\ud800 broken")
    (True, False)
    """
    return not _HALF.search(text)


def columns_of(rows: Iterable[Row]) -> list[str]:
    """Returns the names of all columns in the order in which they first occur, nested ones with their dots."""
    names: dict[str, None] = {}
    for row in rows:
        for name, value in row.items():
            names[name] = None
            if isinstance(value, Mapping):
                names |= {f"{name}.{inner}": None for inner in columns_of([value])}
    return list(names)


def text_of(value: Any) -> str:
    """Returns a text, finite number or truth value as stripped text, and "" for any other cell.

    A truth value becomes "true" or "false". A list with one entry counts as that entry.

    >>> text_of([" 7 "]), text_of(True), text_of(None)
    ('7', 'true', '')
    """
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Decimal):
        return format(value, "f") if value.is_finite() else ""
    finite = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    return str(value) if finite else ""


def is_structured(value: Any) -> bool:
    """Tells whether an answer's cell is a list of several entries, or a mapping, which is no text.

    >>> is_structured(["0", "0.0"]), is_structured({"a": 1}), is_structured(["7"]), is_structured([])
    (True, True, False, False)
    """
    return bool(value) and isinstance(value, dict | list) and not text_of(value)


def conversation(value: Any) -> tuple[tuple[Mapping[str, str], ...], str]:
    """Splits a question cell into its chat messages and its question, which is the last message's text.

    A cell of plain text has no messages. In a list of chat messages, the last one must be the user's, and each content
    must be text or a list of text parts. The list may be written as JSON, as tables of text have it. For anything else
    the question is "", which marks the row as unusable.
    """
    if isinstance(value, str) and _WRITTEN_MESSAGES.match(value):
        try:
            value = parse_json(value)
        except ValueError:  # what Python prints of messages is no JSON
            return (), ""
    if not (isinstance(value, list) and value and isinstance(value[0], Mapping)):
        return (), text_of(value)
    messages = [_message(message) for message in value]
    if None in messages or messages[-1]["role"] != "user":
        return (), ""
    return tuple(messages), messages[-1]["content"].strip()


def other_parts(value: Any) -> list[str]:
    """Returns the types of all parts of a cell's chat messages that are not text, such as images.

    >>> other_parts([{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]}])
    ['image']
    """
    messages = [message for message in value if isinstance(message, Mapping)] if isinstance(value, list) else []
    contents = [message.get("content") for message in messages]
    parts = [part for content in contents if isinstance(content, list) for part in content if isinstance(part, Mapping)]
    return sorted({str(part.get("type")) for part in parts if part.get("type") != "text"})


def _message(message: Any) -> dict[str, str] | None:
    """Returns a chat message with its content as one text, or None for anything that is no message of text.

    Text parts are joined without a separator, as chat templates write them.
    """
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        return None
    content = message.get("content")
    if isinstance(content, list):
        texts = [part.get("text") if isinstance(part, Mapping) else part for part in content]
        content = None if other_parts([message]) or not all(isinstance(text, str) for text in texts) else "".join(texts)
    return {"role": message["role"], "content": content} if isinstance(content, str) else None


def written(value: Any) -> str:
    """Returns a cell as text for a prompt. A list of a question's choices becomes one lettered line per choice, and a
    list of a program's tests its lines.

    A mapping whose "text" is a list is read as that list, since ARC and similar data sets write choices so.

    >>> print(written(["red", "blue"]))
    A. red
    B. blue
    """
    if options := _options(value):
        if all(text_of(option).startswith("assert") for option in options):
            return "\n".join(map(text_of, options))
        return "\n".join(f"{letter}. {text_of(option)}" for letter, option in zip(LETTERS, options, strict=False))
    return text_of(value)


LETTERS = string.ascii_uppercase
"""The choices of a question have these letters, in this order."""


def letter_of(answer: str, choices: Any, kind: str = "") -> str:
    """Returns the letter of the right choice. The answer is the choice's label (ARC), its text, its letter or its
    index, and is looked for in this order. `kind` ("letter", "index" or "place") says what comes before the text.

    Returns "" for any other answer, and where the right choice stands there twice, so that two letters are right.

    >>> letter_of("1", ["red", "blue"]), letter_of("red", ["red", "blue"]), letter_of("b", ["red", "blue"])
    ('B', 'A', 'B')
    >>> letter_of("A", ["red", "red", "blue"]), letter_of("C", ["red", "red", "blue"])
    ('', 'C')
    >>> letter_of("1", {"text": ["red", "blue"], "label": ["1", "2"]}), letter_of("1", ["1", "0"], kind="index")
    ('A', 'B')
    """
    options = _options(choices)
    ways = {
        "text": ([text_of(option) for option in options], answer),
        "letter": ([*LETTERS], answer.upper()),
        "index": ([str(index) for index in range(len(options))], answer),
        "place": ([str(place) for place in range(1, len(options) + 1)], answer),
    }
    in_order = [kind, "text", "letter", "index"]
    named = [(_labels(choices), answer), *(ways[way] for way in in_order if way)]
    places = [names.index(name) for names, name in named if name and name in names]
    if not places or places[0] >= min(len(options), len(LETTERS)):
        return ""
    return LETTERS[places[0]] if options.count(options[places[0]]) == 1 else ""


def kind_of(answers: Iterable[tuple[Any, Any]]) -> str:
    """Returns what all answers, of pairs (answer, choices), are. They are "letter" as in MMLU-Pro, "index" as in MMLU,
    which are whole numbers among choices of text, or "place": such numbers from 1 on, the last place among them. "" is
    anything else. Rows without an answer do not count.

    >>> kind_of([("B", ["O", "A", "B"])]), kind_of([(1, ["3", "1"])]), kind_of([("B", ["A", "B"]), ("AB", ["A", "AB"])])
    ('letter', 'index', '')
    >>> kind_of([(1, ["red", "blue"]), (2, ["red", "blue"])]), kind_of([("2", ["red", "blue"])])
    ('place', 'place')
    """
    kinds, has_last = {"letter", "index", "place"}, False
    for answer, choices in answers:
        options = _options(choices)
        if isinstance(answer, str) and answer.strip():
            fitting = {"letter"} if answer.strip().upper() in [*LETTERS[: len(options)]] else set()
        elif type(answer) is int and all(isinstance(option, str) for option in options):
            fitting = {"index"} if 0 <= answer < len(options) else set()
        else:
            fitting = set() if answer is not None else kinds
        place = text_of(answer)
        if place.isdecimal() and place not in map(text_of, options) and 1 <= int(place) <= len(options):
            fitting, has_last = fitting | {"place"}, has_last or int(place) == len(options)
        kinds = kinds & fitting
    kinds -= {"place"} if "index" in kinds or not has_last else set()
    return kinds.pop() if len(kinds) == 1 else ""


def _labels(choices: Any) -> Sequence[str]:
    """Returns the labels of a question's choices, such as A to D or 1 to 4, or none."""
    labels = choices.get("label") if isinstance(choices, Mapping) else None
    texts = [text_of(label) for label in labels] if isinstance(labels, list) else []
    return texts if len(texts) == len(_options(choices)) == len({*texts}) else ()


def _options(value: Any) -> Sequence[Any]:
    options = value.get("text") if isinstance(value, Mapping) else value
    return options if isinstance(options, list) and len(options) > 1 else ()


def foreign_format(columns: Sequence[str], question_column: str, answer_column: str | None) -> str:
    """Returns a hint at the task config that reads a file with TRL's or verl's columns, or at what to write in place of
    ShareGPT's, or "" for other columns."""
    if "conversations" in columns:
        return (
            "; ShareGPT's conversations are not read: write the question as text, or as messages with role and content"
        )
    verls = "reward_model.ground_truth"
    if "prompt" not in columns or (question_column == "prompt" and (verls not in columns or answer_column == verls)):
        return ""
    name, format_name = ("verl", "verl's") if verls in columns else ("trl", "TRL's")
    return f"; these look like {format_name} columns, which task={name} reads"


PICTURES = ("image", "video", "audio")
"""Columns of these names, or of these with an s, hold what models do not read here."""

_QUESTIONS = ("question", "problem", "prompt", "query", "instruction", "input")
_ANSWERS = ("answer", "solution", "ground_truth", "label", "target", "output", "response", "completion")


def likely(columns: Sequence[str], key: str) -> str:
    """Returns a hint at the column that was probably meant by a setting that names no existing column, or "".

    >>> likely(["Question", "label"], "question_column")
    '; perhaps task.data.question_column=Question is meant'
    """
    usual = {"question_column": _QUESTIONS, "answer_column": _ANSWERS}.get(key, ())
    by_name = {name.strip().lower(): name for name in reversed(columns)}
    near = next((by_name[name] for name in usual if name in by_name), "")
    near = near if near == near.strip() else f'"{near}"'
    return f"; perhaps task.data.{key}={near} is meant" if near else ""
