"""This module implements `grpo reproduce`, which reproduces figures and tables of the papers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from grpo.commands.words import integers, typed
from grpo.config import UserError
from grpo.report.comparison import Reproduction, present
from grpo.reproduce import bandit, deep_threshold, identity, invariance, plane, slow_start
from grpo.reproduce.deep_threshold import Sweep
from grpo.tasks.solve_rates import read_solve_rates

USAGE = """usage: grpo reproduce WHAT [output_dir=runs/reproduce]

  identity        laws of σ and the 6,000-prompt run, arXiv:2607.00152
                  [rates=FILE] [column=llama8b_solve_rate]
  bandit          oscillation and the refresh-interval threshold, arXiv:2606.30789
  invariance      the effect of the group size on the mean curve, and on its noise
  plane           the two dials α and β: groups needed and gradient by difficulty, with the known methods marked
                  [rates=FILE] [column=llama8b_solve_rate]
  slow-start      whether inertia or gating explains the slow start of a curve
  deep-threshold  the threshold in a small transformer that this framework trains, about a minute per run; finished
                  runs are kept
                  [rate=1e-3] [steps=96] [intervals=1,4,8,16,32] [seeds=0,1] [objective=clip] [warmup=0]

Each takes up to a few minutes on a CPU. It ends with a table of the paper's values beside the reproduced ones."""

OUTPUT = "runs/reproduce"
KEYS = {
    "output_dir": str,
    "rates": Path,
    "column": str,
    "rate": float,
    "steps": int,
    "intervals": integers,
    "seeds": integers,
    "objective": str,
    "warmup": int,
}


def run(words: Sequence[str]) -> int:
    """Runs the reproduction in `PAPERS` that the first word names, and presents it. Returns the exit code."""
    name, *settings_words = words
    if name not in PAPERS:
        raise UserError(f"grpo reproduce has no {name!r}: choose one of {', '.join(PAPERS)} (grpo reproduce help)")
    settings = typed(settings_words, **KEYS)
    # A folder that cannot be made is told before anything is computed.
    folder = Path(settings.get("output_dir", OUTPUT))
    folder.mkdir(parents=True, exist_ok=True)
    present(PAPERS[name](settings), folder)
    return 0


def _identity(settings: dict[str, Any]) -> Reproduction:
    return identity.reproduce(_rates(settings))


def _rates(settings: dict[str, Any]) -> np.ndarray | None:
    """Returns the given pass rates, or None where none are given."""
    if "rates" not in settings:
        return None
    return np.array(read_solve_rates(settings["rates"], settings.get("column", "")).rates)


def _deep_threshold(settings: dict[str, Any]) -> Reproduction:
    names = ("rate", "steps", "objective", "intervals", "seeds", "warmup")
    options = {name: settings[name] for name in names if name in settings}
    sweep = Sweep(Path(settings.get("output_dir", OUTPUT)), **options)
    if 1 not in sweep.intervals:
        raise UserError("intervals must contain 1: deep-threshold measures the stiffness at τ = 1")
    return deep_threshold.reproduce(sweep)


PAPERS: dict[str, Callable[[dict[str, Any]], Reproduction]] = {
    "identity": _identity,
    "bandit": lambda settings: bandit.reproduce(),
    "invariance": lambda settings: invariance.reproduce(),
    "plane": lambda settings: plane.reproduce(_rates(settings)),
    "slow-start": lambda settings: slow_start.reproduce(),
    "deep-threshold": _deep_threshold,
}
