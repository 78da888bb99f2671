"""Pass rates that a data set brings along, as Big-Math's column of Llama-3.1-8B's."""

from __future__ import annotations

from pathlib import Path

from grpo.config import UserError
from grpo.tasks.sources import read_rows

# Big-Math's column, and the samples behind each of its rates.
COLUMN, SAMPLES = "llama8b_solve_rate", 64


def read_solve_rates(path: Path, column: str = COLUMN) -> tuple[list[float], int]:
    """The pass rates in `column` of a file of problems, and how many rows have none.

    Raises `UserError` when the file cannot be read, no row has one, or one is no share between 0 and 1.
    """
    rows = read_rows(path, "the file of pass rates")
    given = [row[column] for row in rows if row.get(column) is not None]
    if not given:
        there = ", ".join(sorted({name for row in rows[:100] for name in row}))
        raise UserError(f"no row has a pass rate in {column!r}; there are: {there}. Name one with column=NAME")
    for each in given:
        if not isinstance(each, int | float | str) or not _is_share(each):
            raise UserError(f"{column} holds {each}, which is no pass rate between 0 and 1")
    return [float(each) for each in given], len(rows) - len(given)


def _is_share(value: float | str) -> bool:
    try:
        return 0 <= float(value) <= 1
    except ValueError:
        return False
