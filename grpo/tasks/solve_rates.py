"""This module reads pass rates from a file of problems: those of `grpo solve-rates`, or Big-Math's of Llama-3.1-8B."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from grpo.config import UserError
from grpo.config.errors import require
from grpo.tasks.files import read_rows

# Big-Math's column of pass rates, and the number of samples behind each rate.
LLAMA_COLUMN, LLAMA_SAMPLES = "llama8b_solve_rate", 64
# `grpo solve-rates` writes this column, and the number of samples into a column of this name with this ending.
MEASURED_COLUMN, SAMPLES_ENDING = "solve_rate", "_samples"
# It writes these, too: the tokens of the prompt, and the mean tokens of a completion.
PROMPT_LENGTH, MEASURED_LENGTH = "prompt_tokens", "completion_tokens"

# Larger numbers of samples or tokens are mistakes.
MOST = 1e9


class PassRates(NamedTuple):
    """Pass rates hold the rate of each row that has one, how many rows lack one, and the samples behind a rate.

    `tokens` holds the mean lengths "prompt_tokens" and "completion_tokens", if the file names them.
    """

    rates: list[float]
    missing: int
    tried: int
    tokens: dict[str, float]


def read_solve_rates(path: Path, column: str = "") -> PassRates:
    """Reads the pass rates in `column` of a file of problems.

    Without a column, it reads the one that `grpo solve-rates` writes, or else Big-Math's. A rate has the samples that
    the file names, at least, or else those of Big-Math. Raises `UserError` when the file cannot be read, no row has a
    rate, or a rate is not between 0 and 1.
    """
    rows = read_rows(path, "the file of pass rates")
    if not column:
        column = MEASURED_COLUMN if any(MEASURED_COLUMN in row for row in rows) else LLAMA_COLUMN
    require(bool(rows), f"{path} has no rows")
    rates = [row[column] for row in rows if row.get(column) is not None]
    if not rates:
        columns = ", ".join(sorted({name for row in rows[:100] for name in row}))
        raise UserError(
            f"no row of {path} has a pass rate in the column {column!r}; its columns are: {columns}. "
            "Choose one with column=NAME"
        )
    for rate in rates:
        if not isinstance(rate, int | float | str) or not _is_share(rate):
            raise UserError(f"the column {column} holds {rate}, which is not a pass rate between 0 and 1")
    require(
        not any(isinstance(rate, bool) for rate in rates),
        f"the column {column} holds true and false, one answer each: a pass rate takes several, so give their share",
    )
    samples = [int(tried) for tried in _positive(rows, column + SAMPLES_ENDING)]
    lengths = {name: _positive(rows, name) for name in (PROMPT_LENGTH, MEASURED_LENGTH)}
    return PassRates(
        rates=[float(rate) for rate in rates],
        missing=len(rows) - len(rates),
        tried=min(samples, default=LLAMA_SAMPLES),
        tokens={name: fmean(counts) for name, counts in lengths.items() if counts},
    )


def _positive(rows: Sequence[Mapping[str, Any]], column: str) -> list[float]:
    """Returns the numbers in a column, of the rows that have one. Raises `UserError` for other values than numbers from
    1 to `MOST`."""
    numbers = []
    for value in (row[column] for row in rows if row.get(column)):
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = 0.0
        require(1 <= number <= MOST, f"the column {column} holds {value!r:.40}, which is no number from 1 to {MOST:g}")
        numbers.append(number)
    return numbers


def _is_share(value: float | str) -> bool:
    try:
        return 0 <= float(value) <= 1
    except ValueError:
        return False
