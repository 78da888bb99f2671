"""`grpo reproduce NAME`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from grpo.config import UserError
from grpo.report.comparison import Reproduction, present
from grpo.reproduce import bandit, deep_threshold, identity, invariance, slow_start
from grpo.reproduce.deep_threshold import Sweep
from grpo.tasks.sources import read_rows

USAGE = """usage: grpo reproduce WHAT [output_dir=runs/reproduce]

  identity    laws of σ and the 6,000-prompt run, arXiv:2607.00152   [rates=FILE] [column=llama8b_solve_rate]
  bandit      oscillation and the refresh-interval threshold, arXiv:2606.30789
  invariance  what the group size changes of the mean curve, and of its noise
  slow-start  inertia against gating
  deep-threshold  the threshold in a small transformer that this framework trains   [rate=1e-3] [steps=96]
              [intervals=1,4,8,16,32] [seeds=0,1] [objective=clip]; about a minute a run, finished runs are kept

Each takes up to a few minutes on a CPU and ends with a table of what is printed and what came out."""

OUTPUT = "runs/reproduce"
KEYS = ("output_dir", "rates", "column", "rate", "steps", "intervals", "seeds", "objective")


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
    present(PAPERS[name](settings), Path(settings.get("output_dir", OUTPUT)))
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


def _deep_threshold(settings: dict[str, str]) -> Reproduction:
    plain = Sweep(Path(settings.get("output_dir", OUTPUT)))
    try:
        given = {
            "rate": float(settings.get("rate", plain.rate)),
            "steps": int(settings.get("steps", plain.steps)),
            "objective": settings.get("objective", plain.objective),
        }
        for name in ("intervals", "seeds"):
            if name in settings:
                given[name] = tuple(int(each) for each in settings[name].split(","))
    except ValueError as error:
        raise UserError(f"deep-threshold: {error}") from error
    if 1 not in given.get("intervals", (1,)):
        raise UserError("deep-threshold needs τ = 1 among its intervals: the stiffness is measured there")
    return deep_threshold.reproduce(replace(plain, **given))


PAPERS: dict[str, Callable[[dict[str, str]], Reproduction]] = {
    "identity": _identity,
    "bandit": lambda settings: bandit.reproduce(),
    "invariance": lambda settings: invariance.reproduce(),
    "slow-start": lambda settings: slow_start.reproduce(),
    "deep-threshold": _deep_threshold,
}
