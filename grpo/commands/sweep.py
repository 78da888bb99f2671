"""`grpo sweep`: runs the cells that are not done yet, and shows how all of them stand."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from grpo.config import UserError
from grpo.config.hydra import compose_sweep, launch_all
from grpo.host.terminal import Terminal
from grpo.sweep.cell_process import run_cell
from grpo.sweep.cells import cells_of
from grpo.sweep.ledger import DONE, FAILED, RUNNING, Ledger, begin_ledger

USAGE = """usage: grpo sweep sweep=NAME [seeds=N] [budget=steps|samples|tokens|seconds amount=N] [output_dir=DIR]
                  [command="python -m grpo.cli launch"] [hydra/launcher=joblib ...] [trials=N [batch=N]] [key=value ...]

Every variant of configs/sweep/NAME.yaml (or of a file of your own), with seeds 0 to N−1; key=value are overrides of
every run, key=1,2 multiplies the variants. The same command again goes on with what is not done.
  grpo sweep sweep=normalization experiment=tiny seeds=5 output_dir=runs/dial
  grpo sweep sweep=seeds experiment=tiny learner.learning_rate=1e-4,3e-4 hydra/launcher=joblib
With trials=N, Optuna searches the keys that are given a range:
  grpo sweep sweep=seeds experiment=tiny seeds=1 trials=20 'learner.learning_rate=tag(log,interval(1e-5,1e-2))'"""

OWN_KEYS = ("seeds", "budget", "amount", "trials", "batch", "command", "output_dir")


def run(words: Sequence[str]) -> int:
    """Runs a sweep; 0 when every cell is done, 1 otherwise."""
    preset = [word.removeprefix("sweep=") for word in words if word.startswith("sweep=")]
    if len(preset) != 1:
        raise UserError("grpo sweep needs one sweep=NAME (grpo sweep help)")
    own = [word for word in words if word.partition("=")[0] in OWN_KEYS]
    hydra = [word for word in words if word.startswith(("hydra.", "hydra/"))]
    config = compose_sweep(preset[0], own)
    of_runs = [word for word in words if word not in (*own, *hydra, f"sweep={preset[0]}")]
    command = shlex.split(config.command) or [sys.executable, "-m", "grpo.cli"]
    if config.trials:
        from grpo.sweep.search import search

        return search(config, of_runs, hydra, command)
    ledger = begin_ledger(Path(config.output_dir).absolute(), cells_of(config, of_runs), command)
    pending = ledger.pending()
    print(f"{len(ledger.cells)} runs, {len(pending)} of them to be done, in {ledger.folder}", flush=True)
    if pending:
        try:
            launch_all(run_cell, pending, ledger.folder, hydra)
        except KeyboardInterrupt:
            print("stopped; the same command goes on", flush=True)
    Terminal().print(ledger_table(ledger))
    states = [ledger.state(cell) for cell in ledger.cells]
    return 0 if all(state.state == DONE for state in states) else 1


def ledger_table(ledger: Ledger) -> Table:
    """A line a variant, and one for each run that failed."""
    table = Table("variant", "done", "running", "failed", "to do", "minutes", title=str(ledger.folder.name))
    for variant in dict.fromkeys(cell.variant for cell in ledger.cells):
        states = [ledger.state(cell) for cell in ledger.cells if cell.variant == variant]
        count = {name: sum(state.state == name for state in states) for name in (DONE, RUNNING, FAILED)}
        rest = len(states) - sum(count.values())
        minutes = sum(state.seconds for state in states) / 60
        table.add_row(variant, *(str(count[name]) for name in (DONE, RUNNING, FAILED)), str(rest), f"{minutes:.1f}")
    for cell in ledger.cells:
        if (state := ledger.state(cell)).state == FAILED:
            table.add_section()
            table.add_row(cell.name, "", "", state.why, "", "")
    return table
