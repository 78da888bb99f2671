"""`grpo reproduce NAME`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from grpo.config import UserError
from grpo.report.comparison import Reproduction, present
from grpo.reproduce import bandit, identity, invariance, slow_start
from grpo.tasks.sources import read_rows

USAGE = """usage: grpo reproduce WHAT [output_dir=runs/reproduce]

  identity    laws of σ and the 6,000-prompt run, arXiv:2607.00152   [rates=FILE] [column=llama8b_solve_rate]
  bandit      oscillation and the refresh-interval threshold, arXiv:2606.30789
  invariance  what the group size changes of the mean curve, and of its noise
  slow-start  inertia against gating

Each takes up to a few minutes on a CPU and ends with a table of what is printed and what came out."""

KEYS = ("output_dir", "rates", "column")


def reproduce(arguments: Sequence[str]) -> int:
    """Runs one of `PAPERS`; its exit code."""
    if not arguments or arguments[0] in ("help", "-h", "--help"):
        print(USAGE)
        return 0
    name, *words = arguments
    if name not in PAPERS:
        raise UserError(f"grpo reproduce {name}: there are {', '.join(PAPERS)}")
    settings = dict(word.partition("=")[::2] for word in words)
    unknown = settings.keys() - set(KEYS)
    if unknown:
        raise UserError(f"unknown key {unknown.pop()!r}; there are: {', '.join(KEYS)}")
    present(PAPERS[name](settings), Path(settings.get("output_dir", "runs/reproduce")))
    return 0


def _identity(settings: dict[str, str]) -> Reproduction:
    if "rates" not in settings:
        return identity.reproduce()
    column = settings.get("column", "llama8b_solve_rate")
    rows = read_rows(Path(settings["rates"]), "rates")
    found = [float(row[column]) for row in rows if row.get(column) is not None]
    if not found or not all(0 <= rate <= 1 for rate in found):
        raise UserError(
            f"{settings['rates']} has no pass rates between 0 and 1 in {column!r}: name one with column=NAME"
        )
    return identity.reproduce(np.array(found))


PAPERS: dict[str, Callable[[dict[str, str]], Reproduction]] = {
    "identity": _identity,
    "bandit": lambda settings: bandit.reproduce(),
    "invariance": lambda settings: invariance.reproduce(),
    "slow-start": lambda settings: slow_start.reproduce(),
}
