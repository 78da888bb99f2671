"""This module implements `grpo sweep`, which runs the cells (variant × seed) that are not done yet."""

import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from grpo.config import UserError
from grpo.config.complaints import refuse_misspelt
from grpo.config.errors import require
from grpo.config.flags import read_words
from grpo.config.hydra import compose_sweep, searched
from grpo.host.disk import require_folder
from grpo.host.terminal import Terminal
from grpo.sweep.cell_process import gpus_here, run_cells, side_by_side
from grpo.sweep.cells import Cell, cells_of
from grpo.sweep.ledger import DONE, FAILED, RUNNING, SWEEP_FILE, Ledger, begin_ledger, open_ledger
from grpo.sweep.short_names import short_names

USAGE = """usage: grpo sweep sweep=NAME [seeds=N] [budget=steps|samples|tokens|seconds amount=N] [output_dir=DIR]
                  [jobs=N] [command="srun grpo"] [--config-dir DIR] [key=value ...]

Runs every variant of configs/sweep/NAME.yaml (or of a file of your own), with seeds 0 to N−1. key=value overrides a key
of every run, and key=1,2 multiplies the variants. The same command again continues with the runs that are not done,
so the name of its folder (runs/sweep by default) holds no time. --config-dir DIR adds DIR/experiment/mine.yaml.
  grpo sweep sweep=normalization experiment=tiny seeds=5 output_dir=runs/dial
  grpo sweep sweep=papers experiment=tiny dynamics.refresh_interval=4 seeds=5 output_dir=runs/papers
  grpo sweep sweep=seeds experiment=tiny learner.learning_rate=1e-4,3e-4 jobs=2
Runs fill the GPUs of this machine, each with GPUs of its own; jobs=2 runs two at a time. On Slurm an array of jobs
shares the work in the same way:
  sbatch --array=1-8 --gpus=1 --wrap "grpo sweep sweep=normalization seeds=5 output_dir=runs/dial"
"""

OWN_KEYS = ("seeds", "budget", "amount", "jobs", "command", "output_dir")


def run(words: Sequence[str]) -> int:
    """Runs a sweep, and prints the state of all its runs. Returns 0 when every run is done, and 1 otherwise."""
    words = _without_flags(words)
    preset = [word.removeprefix("sweep=") for word in words if word.startswith("sweep=")]
    if len(preset) != 1:
        raise UserError("grpo sweep needs one sweep=NAME (grpo sweep help)")
    of_sweep = [word for word in words if word.partition("=")[0] in OWN_KEYS]
    odd = [word for word in of_sweep if word.startswith("output_dir=") and re.search(r"\$\{|^[^'\"]*,", word)]
    require(
        not odd,
        f"{''.join(odd[:1])}: a sweep has one folder, whose name stays the same, so that the same command goes on: "
        "name it without commas and ${…}",
    )
    config = compose_sweep(preset[0], of_sweep)
    of_runs = [word for word in words if word not in (*of_sweep, f"sweep={preset[0]}")]
    require(
        not any(word.startswith("variants") for word in of_runs),
        "variants stand in a file of yours, sweep=FILE.yaml, as variants: {NAME: [KEY=VALUE]}; a word KEY=1,2 makes a "
        "variant of each value",
    )
    refuse_misspelt(of_runs, OWN_KEYS)
    command = _started_by(config.command)
    folder, cells = Path(config.output_dir).absolute(), cells_of(config, of_runs)
    require_folder(folder)
    _refuse_others(folder, cells)
    ledger = begin_ledger(folder, cells, command)
    pending = ledger.pending()
    print(f"{len(ledger.cells)} runs, of which {len(pending)} are still to do, in {ledger.folder}", flush=True)
    if pending:
        try:
            cells = [ledger.cells[index] for index in pending]
            gpus = gpus_here() if config.jobs != 1 and not config.command else []
            jobs = config.jobs or side_by_side(cells, len(gpus))
            if jobs > max(1, config.jobs):
                print(f"{jobs} runs at a time share the {len(gpus)} GPUs of this machine", flush=True)
            run_cells(ledger, cells, jobs, gpus if jobs > 1 else [])
        except KeyboardInterrupt:
            print("stopped; run the same command again to continue", flush=True)
    Terminal().print(ledger_table(ledger))
    print(f"grpo report {ledger.folder} compares the variants", flush=True)
    states = [ledger.state(cell) for cell in ledger.cells]
    return 0 if all(state.state == DONE for state in states) else 1


def _started_by(command: str) -> list[str]:
    """Returns the words that start a run. Raises `UserError` for a program that is not here."""
    try:
        words = shlex.split(command) or [sys.executable, "-m", "grpo.cli"]
    except ValueError as error:
        raise UserError(f"command={command}: {error}: close it, or leave it out") from error
    require(bool(shutil.which(words[0])), f"command={command}: there is no program {words[0]} here: correct its name")
    return words


def _without_flags(words: Sequence[str]) -> list[str]:
    """Returns the words with the folder of --config-dir as one that every run reads."""
    require(not {"-m", "--multirun"} & {*words}, "grpo sweep runs several by itself: leave out -m")
    request = read_words(words)
    require(
        request.name == "train" and not request.show,
        "a sweep's own file is given as sweep=FILE. grpo sweep takes no configuration file and no --cfg: put your keys "
        "into DIR/experiment/mine.yaml, and write --config-dir DIR experiment=mine",
    )
    folders = [searched(request.directory)] if request.directory else []
    return [*request.overrides, *folders]


def _refuse_others(folder: Path, cells: Sequence[Cell]) -> None:
    """Raises `UserError` for the folder of a sweep with variants that the words of this one do not name.

    They would be run and compared too, although nobody asked for them. Further variants and seeds are welcome.
    """
    if not (folder / SWEEP_FILE).exists():
        return
    variants = {cell.variant for cell in cells}
    others = [*dict.fromkeys(cell.variant for cell in open_ledger(folder).cells if cell.variant not in variants)]
    require(
        not others,
        f"{folder} holds a sweep with other variants, such as {others[0] if others else ''!r}: choose another "
        "output_dir, or name its variants too",
    )


def ledger_table(ledger: Ledger) -> Table:
    """Makes a table with one line for each variant, and one for each failed run."""
    table = Table("variant", "done", "running", "failed", "to do", "minutes", title=str(ledger.folder.name))
    names = short_names(cell.variant for cell in ledger.cells)
    for variant in names:
        states = [ledger.state(cell) for cell in ledger.cells if cell.variant == variant]
        count = {name: sum(state.state == name for state in states) for name in (DONE, RUNNING, FAILED)}
        to_do = len(states) - sum(count.values())
        minutes = sum(state.seconds for state in states) / 60
        table.add_row(
            names[variant], *(str(count[name]) for name in (DONE, RUNNING, FAILED)), str(to_do), f"{minutes:.1f}"
        )
    for cell in ledger.cells:
        if (state := ledger.state(cell)).state == FAILED:
            table.add_section()
            table.add_row(cell.name, "", "", state.why, "", "")
    return table
