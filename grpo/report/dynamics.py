"""`grpo dynamics fit|forecast|diagnose|replay|plan`: what a run's curve says, in the terminal and as a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from grpo.config import UserError
from grpo.config.folder import DYNAMICS_PAGE_FILE, DYNAMICS_PLOT_FILE
from grpo.config.saved import from_dict
from grpo.dynamics.diagnostics import diagnose
from grpo.dynamics.difficulty import fit_difficulty
from grpo.dynamics.findings import Finding
from grpo.dynamics.forecast import forecast, steps_to_plateau
from grpo.dynamics.identify import FEWEST_POINTS, identify
from grpo.dynamics.planning import PlanRequest, propose
from grpo.dynamics.replay import agreement, replay, statistics_of
from grpo.dynamics.run_log import RunLog
from grpo.dynamics.scheduler import SCHEDULERS
from grpo.host.terminal import Terminal
from grpo.report import page
from grpo.report.curves import STYLE
from grpo.report.dynamics_panels import Dynamics, draw_reward, panels
from grpo.report.dynamics_tables import (
    LAW_COLUMNS,
    decisions_table,
    findings_table,
    interval_table,
    law_rows,
    laws_table,
    size_table,
    summary_lines,
)
from grpo.report.logs import counts_of, read_log, read_run, run_config

# Of a row of metrics, for the scheduler to decide on.
NEEDED_MEANS = ("prompts/length_mean", "completions/length_mean")
DOTS_PER_INCH = 160


def write_fit(path: Path, last_step: int | None = None, column: str | None = None) -> None:
    """Every law fitted to the log at `path`, the forecast until `last_step` (the run's own end by default), the
    diagnosis; printed, and drawn into a picture and a page beside the log."""
    console = Terminal()
    shown = analysed(read_log(path, column), path, last_step)
    findings = diagnose(shown.log)
    console.print(laws_table(shown.found))
    for line in summary_lines(shown.found, shown.ahead):
        console.print(line, soft_wrap=True)
    print_findings(findings, console)
    write_page(shown, findings, path if path.is_dir() else path.parent, console)


def write_forecast(path: Path, last_step: int | None = None, column: str | None = None) -> None:
    """Where the run goes, in words."""
    console = Terminal()
    shown = analysed(read_log(path, column), path, last_step)
    for line in summary_lines(shown.found, shown.ahead):
        console.print(line, soft_wrap=True)
    for share in (0.5, 0.1):
        steps = steps_to_plateau(shown.ahead, share)
        when = "not before this forecast ends" if steps is None else f"in {steps:.0f} steps"
        console.print(f"{1 - share:.0%} of the way to the plateau: {when}", soft_wrap=True)


def write_diagnosis(path: Path, column: str | None = None) -> None:
    """What is wrong, by which evidence, and what answers it."""
    print_findings(diagnose(read_log(path, column)), Terminal())


def write_replay(folder: Path, overrides: Sequence[str]) -> None:
    """What `dynamics=adaptive` would have decided on this run's facts, with its rules changed by `overrides`; as on
    one rank, so that prompts per step need not divide among several."""
    console = Terminal()
    config = from_dict(run_config(folder), overrides)
    was_adaptive = config.dynamics.name == "adaptive" and not overrides
    rows = read_run(folder)
    missing = [name for name in NEEDED_MEANS if name not in rows[0]]
    if missing:
        raise UserError(f"{folder} has no {missing[0]}, which decisions need: an earlier version wrote it")
    rounds = [statistics_of(row, counts_of(row), index) for index, row in enumerate(rows)]
    decisions = replay(SCHEDULERS["adaptive"](config, 1), rounds)
    console.print(decisions_table(decisions))
    if was_adaptive:
        same, of = agreement(decisions)
        console.print(f"the run's own scheduler, replayed: {same} of {of} plans are those that the run followed")
    else:
        console.print("the facts are those of the run: a decision is shown, not followed")


def write_plan(rates: Sequence[float], missing: int, tried: int, request: PlanRequest) -> None:
    """Group size, refresh interval and steps for problems with these pass rates, each from `tried` samples;
    `missing` further problems have none."""
    console = Terminal()
    counts = Counter((round(rate * tried), tried) for rate in rates)
    difficulty = fit_difficulty(counts)
    proposal = propose(difficulty, request)
    console.print(
        f"{len(rates):,} problems, mean pass rate {difficulty.mean:.2f}"
        + (f"; {missing:,} without a pass rate are left out" if missing else "")
    )
    console.print(size_table(proposal))
    console.print(interval_table(proposal))
    size = proposal.size
    console.print(
        f"proposed: dynamics.group_size={size.size} dynamics.refresh_interval={proposal.interval.interval} "
        f"dynamics.prompts_per_step={request.prompts_per_step} num_steps={size.steps}",
        soft_wrap=True,
    )
    console.print(f"G = {size.size}: {proposal.reason}", soft_wrap=True)


def analysed(log: RunLog, path: Path, last_step: int | None = None) -> Dynamics:
    """The log with its laws and forecast. `UserError` with too few rounds."""
    found = identify(log.history, log.momentum, log.exponent)
    if found is None:
        raise UserError(
            f"{path} has {len(log.history)} rounds; the dynamics need at least {FEWEST_POINTS} "
            "(of one curve: a run that went back to a checkpoint began another)"
        )
    return Dynamics(log, found, forecast(found, last_step or log.num_steps))


def write_page(shown: Dynamics, findings: Sequence[Finding], folder: Path, console: Terminal) -> None:
    """The picture and the page, into `folder`."""
    draw(shown, folder / DYNAMICS_PLOT_FILE)
    page.write_page(
        "dynamics.html",
        folder / DYNAMICS_PAGE_FILE,
        name=folder.resolve().name,
        log=shown.log,
        rounds=len(shown.log.history),
        summary=summary_lines(shown.found, shown.ahead),
        findings=findings,
        pictures=[page.picture(partial(panel, shown=shown)) for panel in panels(shown.log)],
        law_columns=LAW_COLUMNS,
        laws=law_rows(shown.found),
    )
    console.print(f"picture {folder / DYNAMICS_PLOT_FILE}\npage    {folder / DYNAMICS_PAGE_FILE}", soft_wrap=True)


def print_findings(findings: Sequence[Finding], console: Terminal) -> None:
    """The table, or that there is nothing."""
    console.print(findings_table(findings) if findings else "diagnosis: nothing is wrong that these checks can see")


def draw(shown: Dynamics, path: Path) -> None:
    """All panels in one PNG: the reward curve on top, the others below in pairs."""
    import matplotlib
    from matplotlib.figure import Figure

    others = [panel for panel in panels(shown.log) if panel is not draw_reward]
    rows = 1 + (len(others) + 1) // 2
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9, 3 * rows), dpi=DOTS_PER_INCH, layout="constrained")
        grid = figure.add_gridspec(rows, 2)
        draw_reward(figure.add_subplot(grid[0, :]), shown)
        for index, panel in enumerate(others):
            panel(figure.add_subplot(grid[1 + index // 2, index % 2]), shown)
        figure.savefig(path)
