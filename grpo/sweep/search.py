"""This module implements `grpo sweep ... trials=N`: Optuna chooses values for arguments like `key=interval(a,b)`."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from rich.table import Table

from grpo.config import UserError
from grpo.config.errors import require
from grpo.config.folder import EVALUATIONS_FILE
from grpo.config.hydra import compose_config, launch_all
from grpo.config.sweep import SweepConfig
from grpo.config.sweep_words import Range, plain, ranges
from grpo.evaluation import held_out
from grpo.host.terminal import Terminal
from grpo.sweep.cell_process import run_cell
from grpo.sweep.cells import cells_of
from grpo.sweep.ledger import DONE, FAILED, RUNNING, Ledger, begin_ledger
from grpo.telemetry import read_ending, read_metrics

DIGITS = 4
"""The number of significant digits of the values of a trial."""
NOTHING = -math.inf
"""A failed run has this score. Mean rewards may be negative, so that 0 could be better than that of a run that went
well."""
STOPPED = "the search was stopped; the same command continues it"


def search(config: SweepConfig, words: Sequence[str], hydra: Sequence[str], command: Sequence[str]) -> int:
    """Searches the ranges in `words` for the settings with the best final score, by Optuna's TPE.

    A trial runs the first variant with each seed. Its score is the mean of `held_out.score` over the seeds, and a trial
    with a failed run is worse than all others. `config.batch` trials run at a time. Returns 0 when all trials have
    ended and one has a score, and 1 otherwise.

    The runs are cells of a ledger, and Optuna's sampler has a fixed seed. The same command therefore proposes the same
    trials again, and continues a killed search with the first trial that is not done.
    """
    space = {key: _distribution(key_range) for key, key_range in ranges([*words]).items()}
    if not space:
        raise UserError(
            "a search needs a range: give key=interval(1e-6,1e-4), key=tag(log,interval(...)), key=range(...) or "
            "key=a,b,c"
        )
    fixed = plain([*words])
    preset = next(iter(config.variants.values()), [])
    require(
        compose_config([*fixed, *preset]).evaluation.num_problems > 0,
        "a search needs the score of each trial: set evaluation.num_problems above 0",
    )
    optuna.logging.set_verbosity(logging.WARNING)
    study = optuna.create_study(
        direction="maximize", sampler=optuna.samplers.TPESampler(seed=0, constant_liar=config.batch > 1)
    )
    folder = Path(config.output_dir).absolute()
    print(f"{config.trials} trials of {config.seeds} runs over {', '.join(space)}, in {folder}", flush=True)
    scores: dict[str, float] = {}
    while len(scores) < config.trials:
        trials = [study.ask(space) for _ in range(min(config.batch, config.trials - len(scores)))]
        variants = {_name(trial): [*preset, *_overrides(trial.params)] for trial in trials}
        ledger = begin_ledger(folder, cells_of(replace(config, variants=variants), fixed), command)
        pending = [index for index in ledger.pending() if ledger.cells[index].variant in variants]
        try:
            if pending:
                launch_all(run_cell, pending, folder, [*hydra])
        except KeyboardInterrupt:
            print(STOPPED, flush=True)
            return 1
        for trial, name in zip(trials, variants, strict=True):
            value = _score(ledger, name)
            if value is None:
                print(STOPPED, flush=True)
                return 1
            study.tell(trial, value)
            scores[name] = value
    Terminal().print(search_table(scores))
    best = max(scores, key=lambda name: scores[name])
    if scores[best] == NOTHING:
        print(f"no trial has a score, since each has a failed run; its log lies in its folder in {folder}")
        return 1
    print(f"best: {' '.join(_overrides(study.best_params))} (score {scores[best]:.3f}, {best})")
    print(f"compare the trials with: grpo report {folder}")
    return 0


def _distribution(values: Range) -> BaseDistribution:
    if values.choices:
        return CategoricalDistribution(values.choices)
    kind = IntDistribution if values.whole else FloatDistribution
    step = {"step": values.step} if values.step and not values.log else {}
    return kind(values.low, values.high, log=values.log, **step)


def _name(trial: optuna.trial.Trial) -> str:
    values = " ".join(_overrides({key.rpartition(".")[2]: value for key, value in trial.params.items()}))
    return f"trial{trial.number:03d} {values}"


def _overrides(values: Mapping[str, Any]) -> list[str]:
    return [
        f"{key}={value:.{DIGITS}g}" if isinstance(value, float) else f"{key}={value}" for key, value in values.items()
    ]


def _score(ledger: Ledger, variant: str) -> float | None:
    """Returns the mean score of a variant's runs, or None when one of them is neither done nor failed.

    Raises `UserError` when another sweep is at one of them.
    """
    scores = []
    for cell in ledger.cells:
        if cell.variant != variant:
            continue
        state = ledger.state(cell).state
        require(
            state != RUNNING,
            f"another search is at {cell.name} in {ledger.folder}: continue when it has ended, or choose another "
            "output_dir",
        )
        if state not in (DONE, FAILED):
            return None
        scores.append(_score_of_run(ledger.path(cell)) if state == DONE else NOTHING)
    return sum(scores) / len(scores)


def _score_of_run(folder: Path) -> float:
    """Returns the score of a run's last evaluation. Raises `UserError` when it could not be graded."""
    ending, evaluations = read_ending(folder), read_metrics(folder / EVALUATIONS_FILE)
    is_last = evaluations and (ending is None or evaluations[-1]["step"] == ending.step)
    score = held_out.score(evaluations[-1]) if is_last else None
    if score is None:
        raise UserError(
            f"the last evaluation of {folder} could not be graded ({held_out.NOT_GRADED}), so the trial has no score: "
            f"remove {folder} to run it again"
        )
    return score


def search_table(scores: Mapping[str, float]) -> Table:
    """Returns a table of the trials and their scores, the best first."""
    table = Table("trial", "score")
    for name, value in sorted(scores.items(), key=lambda item: -item[1]):
        table.add_row(name, "failed" if value == NOTHING else f"{value:.3f}")
    return table
