"""`grpo dynamics`: the laws fitted to a run's reward curve, and where it goes, as a table and a picture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from grpo.config import UserError
from grpo.dynamics.forecast import Forecast, forecast, phases
from grpo.dynamics.history import history_of
from grpo.dynamics.identify import FEWEST_POINTS, Identification, LawFit, identify
from grpo.dynamics.laws import History
from grpo.report.curves import STYLE
from grpo.telemetry import COUNTS, read_metrics

PLOT_FILE = "dynamics.png"


def write_dynamics(output: Path, last_step: int | None = None, console: Console | None = None) -> None:
    """Fits every law to the run in `output`, prints the table and the forecast until `last_step` (the run's own
    number of steps by default), and draws both. `UserError` without a run or with too few rounds."""
    console = console or Console()
    config = run_config(output)
    history = read_history(output / "metrics.jsonl")
    found = identify(history, momentum=config["learner"]["betas"][0], exponent=config["normalization"]["exponent"])
    if found is None:
        raise UserError(f"{output} has {len(history)} rounds; the dynamics need at least {FEWEST_POINTS}")
    ahead = forecast(found, last_step or config["num_steps"])
    console.print(laws_table(found))
    for line in summary_lines(found, ahead):
        console.print(line, soft_wrap=True)
    plot_dynamics(found, ahead, output / PLOT_FILE)
    console.print(f"picture  {output / PLOT_FILE}", soft_wrap=True)


def run_config(output: Path) -> Mapping[str, Any]:
    """The configuration that a run wrote beside its metrics."""
    path = output / "config.json"
    if not path.exists():
        raise UserError(f"there is no {path}: give the output_dir of a run")
    return json.loads(path.read_text())


def read_history(path: Path) -> History:
    """The reward curve in a metrics.jsonl."""
    rows = [row for row in read_metrics(path) if row.get(COUNTS)]
    if not rows:
        raise UserError(f"{path} has no {COUNTS}: nothing to fit")
    return history_of(
        (row["step"], round(row["plan/refresh_interval"]), {(k, size): groups for k, size, groups in row[COUNTS]})
        for row in rows
    )


def laws_table(found: Identification) -> Table:
    """One row a law, best first: its constants, how well it fits, how much it is supported."""
    table = Table(title="Laws of the reward curve", title_justify="left")
    for name in ("law", "constants", "χ²/points", "R²", "misfit p", "pattern p", "AICc weight"):
        table.add_column(name, justify="left" if name in ("law", "constants") else "right")
    for fit in found.fits:
        table.add_row(*_row(fit), f"{found.weights[fit.law.name]:.2f}")
    return table


def _row(fit: LawFit) -> Sequence[str]:
    constants = ", ".join(f"{name} {value:.3g}" for name, value in fit.parameters.items())
    ratio = f"{fit.chi_square:.0f}/{len(fit.history)}"
    return fit.law.name, constants, ratio, f"{fit.r_squared:.2f}", f"{fit.misfit_p:.2g}", f"{fit.pattern_p:.2g}"


def summary_lines(found: Identification, ahead: Forecast) -> list[str]:
    """What it comes to, in words."""
    lines = [found.reason]
    if found.identified:
        lines.append(f"damping ratio ζ {found.damping_ratio}, stiffness κ {found.stiffness} per step (95 %)")
    lines.append(
        f"forecast for step {ahead.steps[-1]:.0f}: pass rate {ahead.value[-1]:.2f} "
        f"[{ahead.low[-1]:.2f}, {ahead.high[-1]:.2f}], gain from now {ahead.gain.value:+.2f} "
        f"[{ahead.gain.low:+.2f}, {ahead.gain.high:+.2f}] (90 %)"
    )
    parts = phases(found)
    lines.append(
        f"phases: slow start until step {parts.rise:.0f}, plateau from step {parts.plateau:.0f}"
        if parts
        else "phases not identified"
    )
    return lines


def plot_dynamics(found: Identification, ahead: Forecast, path: Path) -> None:
    """Pass rate of each round with its error, the best law, and the forecast with its interval."""
    import matplotlib
    import numpy as np
    from matplotlib.figure import Figure

    best = found.fits[0]
    history = best.history
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.0, 3.6), dpi=200, layout="constrained")
        axes = figure.add_subplot()
        axes.errorbar(
            history.steps, history.values, yerr=history.errors, fmt=".", color="0.55", linewidth=0.6, label="measured"
        )
        steps = np.linspace(0, history.steps[-1], 300)
        intervals = np.interp(steps, history.steps, history.intervals)
        axes.plot(steps, best.predict(steps, np.round(intervals)), color="#0072B2", label=f"{best.law.name} law")
        axes.fill_between(ahead.steps, ahead.low, ahead.high, color="#D55E00", alpha=0.2, linewidth=0)
        axes.plot(ahead.steps, ahead.value, "--", color="#D55E00", label="forecast, 90 % interval")
        axes.set_xlabel("optimizer step")
        axes.set_ylabel("pass rate")
        axes.set_ylim(0, 1)
        axes.legend(loc="lower right")
        axes.set_title(found.reason)
        figure.savefig(path)
