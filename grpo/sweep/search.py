"""`grpo sweep ... trials=N`: Optuna chooses the values of `key=interval(a,b)` words, one trial after another."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from rich.table import Table

from grpo.config import UserError
from grpo.config.folder import EVALUATIONS_FILE
from grpo.config.hydra import Range, launch_all, plain, ranges
from grpo.config.sweep import SweepConfig
from grpo.evaluation import held_out
from grpo.host.terminal import Terminal
from grpo.sweep.cell_process import run_cell
from grpo.sweep.cells import cells_of
from grpo.sweep.ledger import DONE, FAILED, Ledger, begin_ledger
from grpo.telemetry import read_metrics

DIGITS = 4
"""Significant digits of a value that is tried."""


def search(config: SweepConfig, words: Sequence[str], hydra: Sequence[str], command: Sequence[str]) -> int:
    """Maximizes the last score (`held_out.score`, the mean over seeds) of the first variant over `ranges(words)` by
    Optuna's TPE, `config.batch` trials at a time; 0 when all trials have ended. A run that fails scores 0.

    The trials are cells of a ledger, and the sampler's seed is fixed: the same command again asks for the same trials,
    so one that was killed goes on with the first that is not done.
    """
    space = {key: _distribution(each) for key, each in ranges([*words]).items()}
    if not space:
        raise UserError("a search needs a range: key=interval(1e-6,1e-4), tag(log,interval(...)), range(...) or a,b,c")
    fixed = plain([*words])
    optuna.logging.set_verbosity(logging.WARNING)
    study = optuna.create_study(
        direction="maximize", sampler=optuna.samplers.TPESampler(seed=0, constant_liar=config.batch > 1)
    )
    folder, preset = Path(config.output_dir).absolute(), next(iter(config.variants.values()), [])
    print(f"{config.trials} trials of {config.seeds} runs over {', '.join(space)}, in {folder}", flush=True)
    found: dict[str, float] = {}
    while len(found) < config.trials:
        asked = [study.ask(space) for _ in range(min(config.batch, config.trials - len(found)))]
        variants = {_name(trial): [*preset, *_overrides(trial.params)] for trial in asked}
        ledger = begin_ledger(folder, cells_of(replace(config, variants=variants), fixed), command)
        pending = [index for index in ledger.pending() if ledger.cells[index].variant in variants]
        if pending:
            launch_all(run_cell, pending, folder, [*hydra])
        for trial, name in zip(asked, variants, strict=True):
            value = _score(ledger, name)
            if value is None:
                print("stopped; the same command goes on", flush=True)
                return 1
            study.tell(trial, value)
            found[name] = value
    Terminal().print(search_table(found))
    best = max(found, key=lambda name: found[name])
    print(f"best: {' '.join(_overrides(study.best_params))} ({found[best]:.3f}, {best}); grpo report {folder}")
    return 0


def _distribution(each: Range) -> BaseDistribution:
    if each.choices:
        return CategoricalDistribution(each.choices)
    kind = IntDistribution if each.whole else FloatDistribution
    return kind(each.low, each.high, log=each.log, **({"step": each.step} if each.step and not each.log else {}))


def _name(trial: optuna.trial.Trial) -> str:
    values = " ".join(_overrides({key.rpartition(".")[2]: value for key, value in trial.params.items()}))
    return f"trial{trial.number:03d} {values}"


def _overrides(values: Mapping[str, Any]) -> list[str]:
    return [
        f"{key}={value:.{DIGITS}g}" if isinstance(value, float) else f"{key}={value}" for key, value in values.items()
    ]


def _score(ledger: Ledger, variant: str) -> float | None:
    """None where a run was stopped."""
    scores = []
    for cell in ledger.cells:
        if cell.variant != variant:
            continue
        state = ledger.state(cell).state
        if state not in (DONE, FAILED):
            return None
        scores.append(held_out.score(read_metrics(ledger.path(cell) / EVALUATIONS_FILE)[-1]) if state == DONE else 0.0)
    return sum(scores) / len(scores)


def search_table(found: Mapping[str, float]) -> Table:
    """The trials, the best first."""
    table = Table("trial", "score")
    for name, value in sorted(found.items(), key=lambda item: -item[1]):
        table.add_row(name, f"{value:.3f}")
    return table
