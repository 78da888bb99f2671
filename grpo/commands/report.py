"""This module implements `grpo report`, which reports on a run, or compares runs or the variants of a sweep."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo.commands.words import kind, paths_and_settings, positive, seconds, typed
from grpo.config import UserError
from grpo.config.errors import require
from grpo.config.folder import CHECKPOINTS, CONFIG_FILE, METRICS_FILE, MODEL_FOLDER, checkpoints_in, refuse_several
from grpo.config.start import named_by_start, run_name
from grpo.host.alive import working
from grpo.host.disk import require_writable
from grpo.host.terminal import Terminal
from grpo.sweep.ledger import DONE, FAILED, SWEEP_FILE, open_ledger
from grpo.sweep.short_names import short_names
from grpo.telemetry.ending import read_ending

if TYPE_CHECKING:
    from grpo.insight.logs.finished_runs import Run

USAGE = """usage: grpo report RUN [also=FORMATS]
       grpo report LOG [column=NAME scale=NUMBER] [also=FORMATS]
       grpo report SWEEP | RUN RUN ... [output=DIR] [watch=SECONDS] [also=FORMATS]

With one run, it writes report.html into the run's folder: whether the model learned, charts, a diagnosis and some
completions. It also prints the verdict, and the comparison of the first evaluation with the last one. The run may be
interrupted, failed or still going on, and the report says so.

With one log of another framework, such as TRL's trainer_state.json or its folder, it writes the page of
`grpo dynamics fit`: the curve, where it goes, and a diagnosis. column=NAME is its pass rate, and scale=NUMBER what that
column holds for a right answer. Where it has rewards and no pass rate, nothing is forecast.

With a sweep or several runs, it compares the variants of the sweep, or the runs. Runs whose names differ only by -seedN
are seeds of one variant. The first variant is the one that the others are compared with. Writes report.html
into the sweep's folder, or into DIR. watch=60 writes it again every minute until all runs of the sweep are done.

also=png also writes the charts as a picture beside the page, also=md the page as Markdown, and also=png,md both."""


_NAMED_SEED = re.compile(r"seed\d+$")


def run(words: Sequence[str]) -> int:
    """Writes the report of one run, or the comparison of a sweep or of several runs. Returns the exit code."""
    paths, settings = paths_and_settings(words)
    if not paths:
        raise UserError("grpo report needs the folder of a sweep, or of one or more runs (grpo report help)")
    if len(paths) == 1 and (paths[0].is_file() or _holds_a_log(paths[0])):
        return _of_log(paths[0], settings)
    for path in paths:
        require(not path.is_file(), f"{path} is a file, and runs are compared by their folders: give a log alone")
        require(path.is_dir(), f"there is no folder {path}")
    settings = typed(settings, output=Path, watch=seconds, also=formats)
    also = settings.pop("also", ())
    twice = [path for index, path in enumerate(paths) if path.resolve() in map(Path.resolve, paths[:index])]
    require(not twice, f"{', '.join(map(str, twice))} is given twice: name each run once")
    is_sweep = len(paths) == 1 and (paths[0] / SWEEP_FILE).exists()
    if not is_sweep and len(paths) < 2:
        return _of_run(paths[0], settings, also)
    output = settings.get("output", paths[0] if is_sweep else Path("."))
    require_writable(output, "output=")
    output.mkdir(parents=True, exist_ok=True)
    with working("loading what grpo report needs"):
        from grpo.insight.pages.contrast import contrast
        from grpo.insight.pages.contrast_page import write_contrast
    if not is_sweep:
        with working("comparing the runs"):
            write_contrast(contrast(_loaded(paths)), output, also=also)
        return 0
    while True:
        runs, notes, unfinished = of_sweep(paths[0])
        if runs:
            with working("comparing the runs"):
                write_contrast(contrast(runs), output, notes, also)
        elif "watch" not in settings:
            raise UserError(f"{paths[0]}: no run is done yet; {' '.join(notes)}")
        if "watch" not in settings or not unfinished:
            return 0
        time.sleep(settings["watch"])


formats = kind("png, md, or png,md", lambda word: word.split(","), lambda names: {*names} <= {"png", "md"})


def _holds_a_log(folder: Path) -> bool:
    """Tells whether a folder is no run or sweep of grpo and holds the log of TRL's Trainer, or TensorBoard's."""
    ours = (METRICS_FILE, CONFIG_FILE, SWEEP_FILE)
    is_ours = any((folder / name).exists() for name in ours)
    return not is_ours and any(next(folder.rglob(name), None) for name in ("trainer_state.json", "*tfevents*"))


def _of_log(log: Path, words: Sequence[str]) -> int:
    """Writes the page of another framework's log beside it."""
    settings = typed(words, also=formats, column=str, scale=positive)
    with working("analysing the log"):
        from grpo.insight.pages.dynamics import write_log

        write_log(log, **settings)
    return 0


def _of_run(folder: Path, settings: Mapping[str, Any], also: Sequence[str]) -> int:
    """Writes the report of one run into its folder."""
    require(not settings, f"a run's report is written into its own folder: leave out {', '.join(settings)}=")
    refuse_several(folder, f"; `grpo report {folder}/*` compares them")
    has_rounds = (folder / METRICS_FILE).exists()
    lost = "empty" if has_rounds and not (folder / METRICS_FILE).stat().st_size else "" if has_rounds else "gone"
    require(
        not lost or not checkpoints_in(folder / CHECKPOINTS),
        f"{folder} has checkpoints, and its {METRICS_FILE} is {lost}: restore that file from a copy",
    )
    if not has_rounds and (ending := read_ending(folder)):
        why = ending.why or f"it has no {METRICS_FILE}"
        raise UserError(f"the run in {folder} {ending.state} before its first round: {why}")
    require(
        has_rounds,
        f"{folder} is the folder of no sweep, and of no run that has finished a round: it has no {METRICS_FILE}",
    )
    with working("loading what grpo report needs"):
        from grpo.insight.pages.run_page import write_report
    model, console = folder / MODEL_FOLDER, Terminal()
    with console.at_once(), working("drawing the report"):
        write_report(folder, model if model.is_dir() else None, console, also)
    return 0


def of_sweep(folder: Path) -> tuple[list[Run], list[str], int]:
    """Returns a sweep's finished runs, notes about the others, and the number of runs that may still finish."""
    from grpo.insight.logs.finished_runs import load

    ledger = open_ledger(folder)
    states = {cell: ledger.state(cell) for cell in ledger.cells}
    done_cells = [cell for cell, state in states.items() if state.state == DONE]
    failures = [f"{cell.name} failed: {state.why}." for cell, state in states.items() if state.state == FAILED]
    unfinished_states = Counter(state.state for state in states.values() if state.state not in (DONE, FAILED))
    unfinished, counts = (
        sum(unfinished_states.values()),
        ", ".join(f"{number} {state}" for state, number in unfinished_states.items()),
    )
    notes = failures + ([f"{unfinished} of {len(states)} runs are not done ({counts})."] if unfinished else [])
    names = short_names(cell.variant for cell in ledger.cells)
    return [load(ledger.path(cell), names[cell.variant], cell.seed) for cell in done_cells], notes, unfinished


def _loaded(paths: Sequence[Path]) -> list[Run]:
    """Loads several runs. Runs named -seedN are seeds of one variant.

    So are runs whose names end in a number, and runs in folders that are named by their start, if nothing but the seed
    differs. Otherwise each of them is a variant.
    """
    from grpo.insight.logs.finished_runs import load

    runs = [load(path, _variant(path)) for path in paths]
    names = {run.variant for run in runs if not _NAMED_SEED.search(run.folder.resolve().name)}
    apart = {name for name in names if not _are_seeds([run for run in runs if run.variant == name])}
    return [replace(run, variant=run_name(run.folder)) if run.variant in apart else run for run in runs]


def _are_seeds(runs: Sequence[Run]) -> bool:
    """Says whether runs differ in their seeds only, and each has another seed."""
    from grpo.insight.logs.finished_runs import differing_keys

    seeds = {run.seed for run in runs}
    return len(seeds) == len(runs) and not differing_keys({str(run.folder): run.config for run in runs})


def _variant(path: Path) -> str:
    """Returns the name of a run's folder without its seed, or of the folder around it if its own is that of a start."""
    path = path.resolve()
    path = path.parent if named_by_start(path) else path
    return re.sub(r"-?(seed)?\d+$", "", path.name) or path.name
