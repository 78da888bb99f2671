"""This module writes what `grpo dynamics fit|forecast|diagnose|replay` shows, in the terminal and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from grpo.config import UserError
from grpo.config.errors import require
from grpo.config.folder import DYNAMICS_PAGE_FILE, DYNAMICS_PLOT_FILE
from grpo.config.ranges import check_values
from grpo.config.saved import from_dict
from grpo.config.start import run_name
from grpo.config.validate import check_batch
from grpo.dynamics.forecast import forecast
from grpo.dynamics.history import FEWEST_POINTS
from grpo.dynamics.replay import agreement, replay, statistics_of
from grpo.dynamics.scheduler import SCHEDULERS
from grpo.host.terminal import Terminal
from grpo.insight.diagnosis.diagnostics import diagnose, unchecked
from grpo.insight.diagnosis.findings import Finding
from grpo.insight.logs.foreign_names import in_words_of
from grpo.insight.logs.logs import counts_of, read_log, read_plans, run_config
from grpo.insight.logs.run_log import RunLog
from grpo.insight.pages import page
from grpo.insight.pages.dynamics_panels import Dynamics, panels
from grpo.insight.pages.dynamics_tables import (
    decisions_table,
    findings_table,
    forecast_line,
    forecast_numbers,
    held_out_lines,
    way_table,
)
from grpo.insight.pages.glossary import meanings
from grpo.insight.pages.style import sheet
from grpo.insight.pages.verdict import nothing_found, outlook_lines, unchecked_lines, verdict_lines
from grpo.types import metrics as m

# A replay of the scheduler needs these metrics of each round.
NEEDED_MEANS = (m.PROMPT_LENGTH, m.LENGTH)
# No forecast reaches further ahead than this many lengths of its log, since it takes time in proportion.
MOST_LENGTHS = 1000
# The width of the picture, and the height of each of its rows.
SHEET_INCHES = (9.0, 3.1)


def write_fit(path: Path, last_step: int | None = None, column: str | None = None, scale: float = 1.0) -> None:
    """Reports the forecast and the diagnosis of the log at `path`.

    The forecast goes to `last_step`, by default to the log's `horizon`. The report is printed, and written beside the
    log as a picture and a page. `column` and `scale` are explained at `logs.read_log`.
    """
    console = Terminal()
    analysis = analysed(read_log(path, column, scale), path, last_step)
    findings = advised(analysis.log)
    for line in (*analysis.log.notes, forecast_line(analysis.ahead)):
        console.print(line, soft_wrap=True)
    print_findings(findings, analysis.log, console)
    write_page(analysis, findings, path if path.is_dir() else path.parent, console)


def write_forecast(path: Path, last_step: int | None = None, column: str | None = None, scale: float = 1.0) -> None:
    """Prints the forecast of the reward curve, in words and a table, and that of held-out evaluations if possible."""
    console = Terminal()
    analysis = analysed(read_log(path, column, scale), path, last_step)
    held_out = held_out_lines(analysis.log, analysis.ahead.steps[-1])
    for line in (*analysis.log.notes, forecast_line(analysis.ahead), *held_out):
        console.print(line, soft_wrap=True)
    console.print(way_table(analysis.ahead))


def write_diagnosis(path: Path, column: str | None = None, scale: float = 1.0) -> None:
    """Prints the diagnosis: where the run stands, each finding with evidence and remedy, and what was not checked."""
    console, log = Terminal(), read_log(path, column, scale)
    for line in (*log.notes, *outlook_lines(log)):
        console.print(line, soft_wrap=True)
    print_findings(advised(log), log, console)
    for line in unchecked_lines(unchecked(log)):
        console.print(line, soft_wrap=True)


def write_replay(folder: Path, overrides: Sequence[str]) -> None:
    """Prints what `dynamics=adaptive` would have decided after each round of a finished run.

    `overrides` change the scheduler's settings. It decides for the number of learner ranks in the run's `hardware`.
    """
    console = Terminal()
    config = from_dict(run_config(folder), overrides)
    check_values(config, "dynamics.")
    ranks = config.hardware.ranks
    check_batch(config, ranks)
    was_adaptive = config.dynamics.name == "adaptive" and not overrides
    rows = read_plans(folder)
    missing_means = [name for name in NEEDED_MEANS if name not in rows[0]]
    if missing_means:
        raise UserError(
            f"the metrics of {folder} lack {missing_means[0]}, which the decisions need: they were written by an "
            "earlier version, so a replay is not possible"
        )
    rounds = [
        statistics_of(row, counts_of(row), counts_of(row, m.FIRST_COUNTS), index) for index, row in enumerate(rows)
    ]
    decisions = replay(SCHEDULERS["adaptive"](config, ranks), rounds)
    console.print(decisions_table(decisions))
    if ranks > 1:
        console.print(f"decided for {ranks} learner ranks, among which the prompts of a step are shared out evenly")
    if was_adaptive:
        num_same, total = agreement(decisions)
        console.print(
            f"the run's own scheduler was replayed: {num_same} of {total} plans are those that the run followed",
            soft_wrap=True,
        )
    else:
        console.print(
            "each decision is made on what the run measured, so no round shows the effect of an earlier decision",
            soft_wrap=True,
        )


def analysed(log: RunLog, path: Path, last_step: int | None = None) -> Dynamics:
    """Forecasts the reward curve of a log.

    Raises `UserError` when the log has no pass rate or too few rounds.
    """
    if not len(log.history) and len(log[m.PASS_RATE]):
        raise UserError(f"{path} has too few rounds to fit: the dynamics need at least {FEWEST_POINTS}")
    if not len(log.history):
        raise UserError(
            f"{path} has no pass rate to fit: name the column with column=NAME, and its scale with scale=NUMBER"
        )
    if len(log.history) < FEWEST_POINTS:
        raise UserError(
            f"{path} has {len(log.history)} rounds; the dynamics need at least {FEWEST_POINTS} "
            "(after a run went back to a checkpoint, only the rounds since then count)"
        )
    end = log.steps_taken
    require(
        last_step is None or last_step > end,
        f"last_step={last_step} does not lie after the last step of {path}, which is {end:g}: give a later one",
    )
    most = end + MOST_LENGTHS * (end - float(log.history.ends[0]))
    require(
        last_step is None or last_step <= most,
        f"last_step={last_step} lies more than {MOST_LENGTHS} times as far ahead as {path} is long, which no log can "
        f"foretell: give at most {most:.0f}",
    )
    if last_step:
        # The words beside the forecast, such as whether going on is worth it, are of the same steps.
        log = replace(log, num_steps=last_step)
    return Dynamics(log, forecast(log.history, last_step or log.horizon).numbered(log.history))


def advised(log: RunLog) -> list[Finding]:
    """Returns the findings of the diagnosis, with advice in the terms of the framework that wrote the log."""

    def translated(finding: Finding) -> Finding:
        evidence, remedy = (in_words_of(log.framework, text) for text in (finding.evidence, finding.remedy))
        return replace(finding, evidence=evidence, remedy=remedy)

    return [translated(finding) for finding in diagnose(log)]


def write_page(analysis: Dynamics, findings: Sequence[Finding], folder: Path, console: Terminal) -> None:
    """Writes the picture and the page into `folder`, and prints their paths."""
    drawings = [partial(panel, analysis=analysis) for panel in panels(analysis)]
    sheet(drawings, folder / DYNAMICS_PLOT_FILE, SHEET_INCHES, columns=2, first_wide=True)
    lines, mood = verdict_lines(analysis.log)
    page.write_page(
        "dynamics.html",
        folder / DYNAMICS_PAGE_FILE,
        name=run_name(folder),
        verdict=[*map(page.sentence, lines)],
        mood=mood,
        numbers=forecast_numbers(analysis.ahead),
        log=analysis.log,
        notes=[*map(page.sentence, analysis.log.notes)],
        rounds=f"{len(analysis.log.history):,}",
        summary=[*map(page.sentence, held_out_lines(analysis.log, analysis.ahead.steps[-1]))],
        findings=findings,
        nothing=page.sentence(nothing_found(analysis.log)),
        pictures=page.pictures(drawings),
        meanings=meanings(
            *("pass rate", "percentage point", "round", "group", "silent group", "τ", "entropy"),
        ),
    )
    console.print(f"picture {folder / DYNAMICS_PLOT_FILE}\npage    {folder / DYNAMICS_PAGE_FILE}", soft_wrap=True)


def print_findings(findings: Sequence[Finding], log: RunLog, console: Terminal) -> None:
    """Prints the table of findings, or a line that there are none."""
    if findings:
        console.print(findings_table(findings))
    else:
        console.print(f"diagnosis: {nothing_found(log)}", soft_wrap=True)
