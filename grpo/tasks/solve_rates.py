"""This module reads the pass rates that a data set brings along, such as Big-Math's column for Llama-3.1-8B."""

from __future__ import annotations

from pathlib import Path

from grpo.config import UserError
from grpo.tasks.files import read_rows

# Big-Math's column of pass rates, and the number of samples behind each rate.
LLAMA_COLUMN, LLAMA_SAMPLES = "llama8b_solve_rate", 64


def read_solve_rates(path: Path, column: str = LLAMA_COLUMN) -> tuple[list[float], int]:
    """Reads the pass rates in `column` of a file of problems. Returns the rates and the number of rows without one.

    Raises `UserError` when the file cannot be read, no row has a rate, or a rate is not between 0 and 1.
    """
    rows = read_rows(path, "the file of pass rates")
    rates = [row[column] for row in rows if row.get(column) is not None]
    if not rates:
        there = ", ".join(sorted({name for row in rows[:100] for name in row}))
        raise UserError(
            f"no row of {path} has a pass rate in the column {column!r}; its columns are: {there}. "
            "Choose one with column=NAME"
        )
    for rate in rates:
        if not isinstance(rate, int | float | str) or not _is_share(rate):
            raise UserError(f"the column {column} holds {rate}, which is not a pass rate between 0 and 1")
    return [float(rate) for rate in rates], len(rows) - len(rates)


def _is_share(value: float | str) -> bool:
    try:
        return 0 <= float(value) <= 1
    except ValueError:
        return False
