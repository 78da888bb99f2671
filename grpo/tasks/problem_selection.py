"""This module selects problems by pass rate, source, domain, kind of answer and length, and holds some of them out.

It can also drop repeated questions, and questions that an evaluation set contains. A hash of its question decides
whether a problem is held out.
"""

import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from grpo.config import SelectionConfig, TaskConfig, UserError
from grpo.config.errors import require
from grpo.tasks.columns import cell, conversation
from grpo.tasks.solve_rates import LLAMA_COLUMN, MEASURED_COLUMN
from grpo.types import Problem

_NUMBER = r"[-+\u2212]?(?:\d{1,3}(?:,\d{3})+|\d+)"
_KINDS = {
    "integer": rf"{_NUMBER}",
    "decimal": rf"{_NUMBER}?\.\d+",
    "fraction": rf"{_NUMBER}/\d+|[-+]?\\[dt]?frac(?:\{{\d+\}}|\d)(?:\{{\d+\}}|\d)",
    "percent": rf"{_NUMBER}(?:\.\d+)?\\?%",
    "choice": r"\(?[A-J]\)?",
    "yes_no": r"(?i:yes|no|true|false)",
    "matrix": r".*\\begin\{.*matrix\}.*",
    "set": r"\\\{.*\\\}",
    "interval": r"[(\[].+,.+[)\]]",
    "equation": r"[^<>]*[^<>\\]=[^<>]*",
    "text": r"(?![^ ]*[\\^_])[A-Za-z][A-Za-z' -]{2,}",
}
_LATEX_SPACES = re.compile(r"\\[,;:! ]|~")
_ANSWER_KINDS = {name: re.compile(pattern, re.DOTALL) for name, pattern in _KINDS.items()}
OTHER = "expression"

ANSWER_TYPES = (*_KINDS, OTHER)
QUESTION_COLUMNS = ("problem", "question", "prompt")


def answer_type(answer: str) -> str:
    r"""Returns the kind of an answer by its form, one of `ANSWER_TYPES`. Tuples count as intervals: both look alike.

    >>> answer_type("1,250"), answer_type(r"\frac{3}{4}"), answer_type("$2\\sqrt{3}$"), answer_type("(0, 1]")
    ('integer', 'fraction', 'expression', 'interval')
    """
    bare = re.sub(r"\\text\{([^{}]*)\}|\$|\\[,! ]", lambda match: match.group(1) or "", answer).strip().rstrip(".")
    return next((name for name, pattern in _ANSWER_KINDS.items() if pattern.fullmatch(bare)), OTHER)


def normalized(text: str) -> str:
    """Returns a question's words and signs in lower case, with single spaces, without punctuation of sentences, braces
    and LaTeX's spacing.

    Two copies of a question have the same normalized text.
    """
    folded = _LATEX_SPACES.sub(" ", unicodedata.normalize("NFKC", text).casefold())
    return " ".join(re.findall(r"\w+|[^\w\s.,;:?'\"`“”‘’«»{}$\\]", folded))


@dataclass(frozen=True, slots=True)
class LeftOut:
    """This report says which problems a selection left out, and why.

    `considered` counts all problems. `reasons` maps each reason to the problems' ids, in the order of the checks.
    `overlaps` maps a problem's id to the evaluation file and row whose question it repeats.
    """

    considered: int
    reasons: dict[str, tuple[str, ...]]
    overlaps: dict[str, str]

    @property
    def total(self) -> int:
        """Returns the number of problems left out."""
        return sum(map(len, self.reasons.values()))

    def __str__(self) -> str:
        counts = ", ".join(f"{len(ids):,} {reason}" for reason, ids in self.reasons.items())
        return f"{self.considered - self.total:,} of {self.considered:,} problems taken; left out: {counts or 'none'}"


def select(
    problems: Sequence[Problem], config: SelectionConfig, asked: Callable[[Problem], str] = lambda one: one.question
) -> tuple[list[Problem], LeftOut]:
    """Returns the problems that pass every check, in their order, and a report of those left out. `asked` returns the
    words that ask a problem, by which a repeated one is known, such as its question with its choices.

    Raises `UserError` for a setting that does not suit the data set, and when no problem is left.
    """
    remaining, reasons = list(problems), {}
    overlaps: dict[str, str] = {}
    for reason, keep in _checks(config, remaining, overlaps, asked):
        kept, dropped = [], []
        for problem in remaining:
            (kept if keep(problem) else dropped).append(problem)
        if dropped:
            reasons[reason] = tuple(problem.problem_id for problem in dropped)
        remaining = kept
    left_out = LeftOut(len(problems), reasons, overlaps)
    if problems and not remaining:
        raise UserError(f"task.data.selection leaves no problem: {left_out}")
    return remaining, left_out


def solve_rate(problem: Problem, column: str) -> float | None:
    """Returns the problem's pass rate in `column`, or None when the cell is missing or empty.

    Raises `UserError` for a value that is not between 0 and 1.
    """
    value = problem.metadata.get(column)
    # pandas writes NaN for a missing number.
    if value is None or value == "" or value != value:
        return None
    try:
        rate = float(value)
    except (TypeError, ValueError):
        rate = -1.0
    if not 0.0 <= rate <= 1.0:
        raise UserError(f"{problem.problem_id}: {column} is {value!r}, which is not a pass rate between 0 and 1")
    return rate


def rated_column(problems: Sequence[Problem], column: str) -> str:
    """Returns the column that holds the pass rates: `column`, or that of `grpo solve-rates` if `column` is Big-Math's
    and no problem has a rate there.

    >>> rated_column([Problem("p", "1 + 1?", "2", {"llama8b_solve_rate": None, "solve_rate": 0.5})], LLAMA_COLUMN)
    'solve_rate'
    """
    if column != LLAMA_COLUMN or any(solve_rate(problem, column) is not None for problem in problems):
        return column
    return MEASURED_COLUMN if any(MEASURED_COLUMN in problem.metadata for problem in problems) else column


def _checks(
    config: SelectionConfig, problems: Sequence[Problem], overlaps: dict[str, str], asked: Callable[[Problem], str]
) -> Iterator[tuple[str, Callable[[Problem], bool]]]:
    """Yields the configured checks, cheap ones first, as pairs (reason to leave a problem out, test for passing)."""
    low, high = config.solve_rate
    column = rated_column(problems, config.solve_rate_column)
    if (low, high) != (0.0, 1.0) or config.without_solve_rate == "drop":
        _require_column(problems, column, "solve_rate_column")
        if problems and all(solve_rate(problem, column) is None for problem in problems):
            raise UserError(
                f"task.data.selection.solve_rate selects by the column {column}, which is empty in every row: measure "
                "pass rates by grpo solve-rates, or name another column in task.data.selection.solve_rate_column"
            )
        if config.without_solve_rate == "drop":
            yield "without a pass rate", lambda problem: solve_rate(problem, column) is not None
        yield (
            f"with a pass rate outside [{low:g}, {high:g}]",
            lambda problem: (rate := solve_rate(problem, column)) is None or low <= rate <= high,
        )
    if config.sources:
        if not any(problem.source for problem in problems):
            _require_column(problems, "source", "sources")
        _require_available(config.sources, chain.from_iterable(map(_sources, problems)), "sources")
        yield "from other sources", lambda problem: not {*config.sources}.isdisjoint(_sources(problem))
    if config.domains:
        _require_column(problems, "domain", "domains")
        paths = {path for problem in problems for path in _names(problem, "domain")}
        available = {part.strip() for path in paths for part in path.split("->")}
        unknown = [name for name in config.domains if not any(map(_within([name]), paths))]
        _require_available(unknown, available, "domains")
        yield "from other domains", lambda problem: any(map(_within(config.domains), _names(problem, "domain")))
    if config.answer_types:
        _require_available(config.answer_types, ANSWER_TYPES, "answer_types")
        yield "with other kinds of answers", lambda problem: answer_type(problem.answer) in config.answer_types
    if config.max_characters:
        yield (
            f"longer than {config.max_characters} characters",
            lambda problem: len(problem.question) <= config.max_characters,
        )
    if config.deduplicate:
        yield "with a repeated question", _without_repeats(asked)
    if config.evaluation_sets:
        find = _overlap(config)
        yield "with a question of an evaluation set", lambda problem: _has_no_overlap(problem, find, overlaps)


def _sources(problem: Problem) -> list[str]:
    """Returns the sources of a problem: that of task.data.source_column, or else those of the column `source`."""
    return [problem.source] if problem.source else _names(problem, "source")


def _without_repeats(asked: Callable[[Problem], str]) -> Callable[[Problem], bool]:
    """Returns a check that lets each question pass once, behind the same messages: it remembers those it has seen."""
    seen: set[str] = set()

    def new(problem: Problem) -> bool:
        earlier = (message["content"] for message in problem.messages[:-1])
        text = normalized("\n".join([*earlier, asked(problem)]))
        if text in seen:
            return False
        seen.add(text)
        return True

    return new


def _require_column(problems: Sequence[Problem], column: str, key: str) -> None:
    """Raises `UserError` unless some problem has `column`, which the setting `key` needs."""
    if problems and not any(column in problem.metadata for problem in problems):
        has = ", ".join(problems[0].metadata) or "no further column"
        remedies = {
            "sources": "name theirs in task.data.source_column",
            "solve_rate_column": "name theirs, or measure pass rates by grpo solve-rates",
        }
        remedy = remedies.get(key) or (f"rename one of them to {column}" if problems[0].metadata else "leave it out")
        raise UserError(f"task.data.selection.{key} needs a column {column!r}; the data set has {has}: {remedy}")


def _require_available(values: Iterable[str], available: Iterable[Any], key: str) -> None:
    """Raises `UserError` when the setting `key` wants a value that is not available."""
    choices = set(available)
    if unknown := [value for value in values if value not in choices]:
        listed = ", ".join(sorted(map(str, choices)))
        raise UserError(f"task.data.selection.{key}: {unknown[0]!r} is unknown; choose from {listed}.")


def _names(problem: Problem, column: str) -> list[str]:
    """Returns the names in a column, which holds one or several. Whatever is no text, such as a number, is read so."""
    value = problem.metadata.get(column)
    several = isinstance(value, Iterable) and not isinstance(value, str)
    return [str(name) for name in (value if several else [value]) if name is not None]


def _within(names: Sequence[str]) -> Callable[[str], bool]:
    """Returns a check of a domain's path, such as "Mathematics -> Algebra -> Prealgebra".

    A path passes when one of the `names` names is a part of it, or the beginning of it.
    """

    def part_of(domain: str) -> bool:
        parts = [part.strip().casefold() for part in domain.split("->")]
        return any(name.casefold() in parts or domain.casefold().startswith(name.casefold()) for name in names)

    return part_of


def _has_no_overlap(problem: Problem, find: Callable[[str], str | None], overlaps: dict[str, str]) -> bool:
    """Returns whether no evaluation set contains the problem's question. Adds an overlap to `overlaps`."""
    where = find(normalized(problem.question))
    if where is not None:
        overlaps[problem.problem_id] = where
    return where is None


def _overlap(config: SelectionConfig) -> Callable[[str], str | None]:
    """Returns a function that finds a normalized question in the evaluation sets.

    Two questions match when they are equal or share `ngram` words in a row. The function returns the file and row
    number of the evaluation set's question, or None.
    """
    from grpo.tasks.files import read_rows

    whole: dict[str, str] = {}
    grams: dict[tuple[str, ...], str] = {}
    for path in map(Path, config.evaluation_sets):
        rows = read_rows(path, "task.data.selection.evaluation_sets")
        column = next((name for name in QUESTION_COLUMNS if rows and name in rows[0]), None)
        if column is None:
            raise UserError(f"{path}: none of the columns {', '.join(QUESTION_COLUMNS)} holds its questions.")
        for number, row in enumerate(rows):
            _, question = conversation(cell(row, column))
            text = normalized(question)
            if text:
                whole.setdefault(text, f"{path.name}, row {number}")
            for gram in _grams(text, config.ngram):
                grams.setdefault(gram, f"{path.name}, row {number}")

    def find(text: str) -> str | None:
        shared = grams.keys() & _grams(text, config.ngram)
        return whole.get(text) or (min(grams[gram] for gram in shared) if shared else None)

    return find


def _grams(text: str, length: int) -> set[tuple[str, ...]]:
    """Returns every run of `length` successive words. A `length` of 0 returns none."""
    words = text.split()
    return set(zip(*(words[start:] for start in range(length)), strict=False)) if length else set()


def question_hash(question: str) -> float:
    """Returns a number in [0, 1) that depends on the question's words only, not on case, spacing or Unicode form."""
    normalized = " ".join(unicodedata.normalize("NFKC", question).casefold().split())
    digest = hashlib.blake2b(normalized.encode("utf-8", "surrogatepass"), digest_size=6).digest()
    return int.from_bytes(digest, "big") / 2**48


def split(problems: Sequence[Problem], held_out_fraction: float) -> tuple[list[Problem], list[Problem]]:
    """Returns (train, held out). A problem is held out when its question's hash lies below the fraction.

    No seed is involved, so a question is always on the same side, in every data set and however often it
    occurs. Training problems keep their order. Held-out ones are sorted by their hash, so the first n of
    them are the same for every fraction that holds out at least n.

    Raises `UserError` when the fraction is not in [0, 1), or when a side that was asked for is empty.
    """
    if not 0.0 <= held_out_fraction < 1.0:
        raise UserError(f"task.data.held_out_fraction is {held_out_fraction}; it must be at least 0 and below 1.")
    hashes = {problem.problem_id: question_hash(problem.question) for problem in problems}
    train = [problem for problem in problems if hashes[problem.problem_id] >= held_out_fraction]
    held_out = [problem for problem in problems if hashes[problem.problem_id] < held_out_fraction]
    if not train or (held_out_fraction > 0 and not held_out):
        distinct = len({*hashes.values()})
        equal = f" with {distinct} different question{'s' * (distinct > 1)}" if distinct < len(hashes) else ""
        raise UserError(
            f"task.data.held_out_fraction {held_out_fraction} leaves {len(train)} problems for training and "
            f"{len(held_out)} held out, of {len(problems)}{equal}: set it to 0, change it, or use more problems"
        )
    return train, sorted(held_out, key=lambda problem: (hashes[problem.problem_id], problem.problem_id))


def split_sets(config: TaskConfig, problems: Mapping[str, Sequence[Problem]]) -> dict[str, tuple[list[Problem], ...]]:
    """Returns (train, held out) of each set of a task by its name, as `split` does. No set trains on a question that
    another one holds out, although their shares may differ.

    Raises `UserError` as `split`, and when nothing of a set is left for training.
    """
    splits = {name: split(problems[name], of_set.data.held_out_fraction) for name, of_set in config.all_sets.items()}
    if len(splits) == 1:
        return splits
    held_out_anywhere = {question_hash(problem.question) for _, held_out in splits.values() for problem in held_out}
    for name, (train, held_out) in splits.items():
        kept = [problem for problem in train if question_hash(problem.question) not in held_out_anywhere]
        require(bool(kept), f"the set {name} has no problem but those that other sets hold out: give it others")
        splits[name] = kept, held_out
    return splits
