"""This module reads pass rates from a file of problems: those of `grpo solve-rates`, or Big-Math's of Llama-3.1-8B."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from grpo.config import UserError
from grpo.tasks.files import read_rows

# Big-Math's column of pass rates, and the number of samples behind each rate.
LLAMA_COLUMN, LLAMA_SAMPLES = "llama8b_solve_rate", 64
# `grpo solve-rates` writes this column, and the number of samples into a column of this name with this ending.
MEASURED_COLUMN, SAMPLES_ENDING = "solve_rate", "_samples"
# It writes these, too: the tokens of the prompt, and the mean tokens of a completion.
PROMPT_LENGTH, MEASURED_LENGTH = "prompt_tokens", "completion_tokens"


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
    samples = [int(tried) for row in rows if (tried := row.get(column + SAMPLES_ENDING))]
    lengths = {name: [row[name] for row in rows if row.get(name)] for name in (PROMPT_LENGTH, MEASURED_LENGTH)}
    return PassRates(
        rates=[float(rate) for rate in rates],
        missing=len(rows) - len(rates),
        tried=min(samples, default=LLAMA_SAMPLES),
        tokens={name: fmean(counts) for name, counts in lengths.items() if counts},
    )


def _is_share(value: float | str) -> bool:
    try:
        return 0 <= float(value) <= 1
    except ValueError:
        return False
