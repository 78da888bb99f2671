"""This module makes what `grpo dynamics fit|forecast|diagnose|replay` shows."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from grpo.config import UserError
from grpo.config.errors import require
from grpo.config.folder import DYNAMICS_PAGE_FILE
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
from grpo.insight.diagnosis.findings import DiagnosisRule, Finding
from grpo.insight.diagnosis.progress import reward_ended
from grpo.insight.logs.foreign_names import OURS, in_words_of
from grpo.insight.logs.logs import counts_of, read_log, read_plans, run_config
from grpo.insight.logs.run_log import RunLog
from grpo.insight.pages.curves import Curves, panels_of
from grpo.insight.pages.dynamics_panels import Dynamics, panels
from grpo.insight.pages.dynamics_tables import (
    decisions_rows,
    forecast_line,
    forecast_numbers,
    held_out_lines,
    law_rows,
    way_rows,
)
from grpo.insight.pages.page import PAGE, TERMINAL, Block, Kind, Page, publish, show
from grpo.insight.pages.small_charts import small_charts
from grpo.insight.pages.verdict import UNSURE, nothing_found, unchecked_lines, verdict_lines
from grpo.insight.plans.own_law import Law, fit_law
from grpo.types import metrics as m

# No forecast reaches further ahead than this many lengths of its log, since it takes time in proportion.
MOST_LENGTHS = 1000


def write_fit(
    path: Path,
    last_step: int | None = None,
    column: str | None = None,
    scale: float = 1.0,
    also: Collection[str] = (),
    law: Sequence[Law] = (),
) -> None:
    """Reports the forecast and the diagnosis of the log at `path`.

    The forecast goes to `last_step`, by default to the log's `horizon`. The report is printed, and written as a page
    and in the formats of `also`, with the fits of each `law`: into the run's folder, or beside a log that is a file,
    under its name. `column` and `scale` are explained at `logs.read_log`.
    """
    analysis = analysed(read_log(path, column, scale), path, last_step, law)
    publish(dynamics_page(analysis, advised(analysis.log), path), _page_of(path), Terminal(), also)


def write_log(path: Path, column: str | None = None, scale: float = 1.0, also: Collection[str] = ()) -> None:
    """Reports on another framework's log as `write_fit` does, without a forecast if it has rewards and no pass rate."""
    log = read_log(path, column, scale)
    is_rewarded = not len(log[m.PASS_RATE]) and len(log[m.REWARD]) > 1
    analysis = Dynamics(log) if is_rewarded else analysed(log, path)
    publish(dynamics_page(analysis, advised(log), path), _page_of(path), Terminal(), also)


def _page_of(log: Path) -> Path:
    return log / DYNAMICS_PAGE_FILE if log.is_dir() else log.with_name(f"{log.stem}_{DYNAMICS_PAGE_FILE}")


def write_forecast(
    path: Path, last_step: int | None = None, column: str | None = None, scale: float = 1.0, law: Sequence[Law] = ()
) -> None:
    """Prints the forecast of the reward curve, in words and a table, that of held-out evaluations if possible, and the
    fits of each `law`."""
    analysis = analysed(read_log(path, column, scale), path, last_step, law)
    held_out = held_out_lines(analysis.log, analysis.ahead.steps[-1])
    ended = reward_ended(analysis.log, DiagnosisRule())
    begins = [f"the forecast begins where the rewards end: {ended.evidence}; {ended.remedy}"] if ended else []
    lines = [*analysis.log.notes, *begins, forecast_line(analysis.ahead), *held_out]
    _print(
        Block(Kind.TABLE, way_rows(analysis.ahead), "Forecast (90 % intervals)", texts=()),
        _laws(analysis),
        Block(Kind.LINES, lines),
    )


def write_diagnosis(path: Path, column: str | None = None, scale: float = 1.0) -> None:
    """Prints the diagnosis: where the run stands, each finding with evidence and remedy, and what was not checked."""
    log = read_log(path, column, scale)
    (verdict, *more), _ = verdict_lines(log)
    findings = advised(log)
    longest = max((len(series) for series in log.series.values()), default=0)
    require(bool(findings) or longest > 1, f"{path} has one row, which shows nothing yet: ask again after more rounds")
    _print(
        Block(Kind.LINES, [*log.notes, f"verdict: {verdict}", *more]),
        Block(Kind.DIAGNOSIS, findings, "Diagnosis", nothing=nothing_found(log)),
        Block(Kind.LINES, unchecked_lines(unchecked(log))),
    )


def _laws(analysis: Dynamics) -> Block:
    note = "intervals of 90 %, if a law is right"
    legend = "χ² is about the freedom where a law is right. The law with the lowest AICc fits best."
    return Block(Kind.TABLE, law_rows(analysis), "Laws of your own", note, legend=legend, texts=(0, 1))


def _print(*blocks: Block) -> None:
    show(Page("", "", [], UNSURE, blocks), Terminal())


def write_replay(folder: Path, overrides: Sequence[str]) -> None:
    """Prints what `dynamics=adaptive` would have decided after each round of a finished run.

    `overrides` change the scheduler's settings. It decides for the number of learner ranks in the run's `hardware`.
    """
    config = from_dict(run_config(folder), overrides)
    check_values(config, "dynamics.")
    ranks = config.hardware.ranks
    check_batch(config, ranks)
    was_adaptive = config.dynamics.name == "adaptive" and not overrides
    rows = read_plans(folder)
    rounds = [
        statistics_of(row, counts_of(row), counts_of(row, m.FIRST_COUNTS), index) for index, row in enumerate(rows)
    ]
    decisions = replay(SCHEDULERS["adaptive"](config, ranks), rounds, config.pipeline == "one_round")
    lines = [] if any(one.changes for one in decisions) else ["after no round would the plan have been changed"]
    if ranks > 1:
        lines.append(f"decided for {ranks} learner ranks, among which the prompts of a step are shared out evenly")
    same, total = agreement(decisions)
    lines.append(
        f"the run's own scheduler was replayed: {same} of {total} plans are those that the run followed"
        if was_adaptive
        else "each decision is made on what the run measured, so no round shows the effect of an earlier decision"
    )
    _print(Block(Kind.TABLE, decisions_rows(decisions), "Decisions", texts=(5,)), Block(Kind.LINES, lines))


def analysed(log: RunLog, path: Path, last_step: int | None = None, laws: Sequence[Law] = ()) -> Dynamics:
    """Forecasts the reward curve of a log, and fits laws to it.

    Raises `UserError` when the log has no pass rate or too few rounds.
    """
    if not len(log.history) and len(log[m.PASS_RATE]):
        few = f"{path} has too few rounds to fit: the dynamics need at least {FEWEST_POINTS}"
        raise UserError("; ".join([few, *log.notes]))
    if not len(log.history):
        raise UserError("; ".join([f"{path} has no pass rate to fit", *log.notes]))
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
    # The words beside the forecast, such as whether going on is worth it, are of the same steps.
    log = replace(log, last_step=last_step or 0)
    fits = sorted((fit_law(law, log.history) for law in laws), key=lambda fit: fit.aicc)
    return Dynamics(log, forecast(log.history, log.horizon).numbered(log.history), fits)


def advised(log: RunLog) -> list[Finding]:
    """Returns the findings of the diagnosis, with advice in the terms of the framework that wrote the log."""

    def translated(finding: Finding) -> Finding:
        evidence, remedy = (in_words_of(log.framework, text) for text in (finding.evidence, finding.remedy))
        return replace(finding, evidence=evidence, remedy=remedy)

    return [translated(finding) for finding in diagnose(log)]


def _curves_of(log: RunLog) -> Curves:
    """Returns a log's metrics as the charts of runs take them."""
    rows: dict[float, dict[str, float]] = {}
    for name, series in log.series.items():
        for step, value in zip(series.steps.tolist(), series.values.tolist(), strict=True):
            rows.setdefault(step, {"step": step})[name] = value
    return Curves([rows[step] for step in sorted(rows)], [])


def decisions_table(log: RunLog) -> Block:
    """Returns a table of what a run's scheduler, guard and gates have changed, which is empty where nothing was."""
    rows = [("after step", "why"), *log.decisions] if log.decisions else ()
    return Block(Kind.TABLE, rows, "Decisions of the scheduler", only=PAGE)


def dynamics_page(analysis: Dynamics, findings: Sequence[Finding], path: Path) -> Page:
    """Returns the page of a log's diagnosis, and of its forecast where it has pass rates. `path` is the log's file, or
    the run's folder."""
    log, ahead, curves = analysis.log, analysis.ahead, _curves_of(analysis.log)
    lines, mood = verdict_lines(log)
    planned = f" of a run of {log.num_steps:,} optimizer steps" if ahead and log.num_steps else ""
    drawn = [] if ahead else panels_of(curves)
    # The report of a run of this framework has these charts.
    small, left_out = ([], []) if log.framework == OURS else small_charts(curves)
    charts = [
        *(partial(panel, analysis=analysis) for panel in (panels(analysis) if ahead else ())),
        *(partial(chart, run=curves) for chart in (*drawn, *small)),
    ]
    return Page(
        *("Training dynamics" if ahead else "Training log", run_name(path), lines, mood),
        blocks=[
            Block(Kind.LINES, log.notes, "How the log was read"),
            Block(Kind.LINES, [forecast_line(ahead)] if ahead else (), only=TERMINAL),
            Block(Kind.DIAGNOSIS, findings, "Diagnosis", nothing=nothing_found(log)),
            Block(Kind.CHARTS, charts, "Charts"),
            Block(Kind.LINES, left_out, only=PAGE),
            _laws(analysis),
            Block(Kind.LINES, held_out_lines(log, ahead.steps[-1]) if ahead else (), "Held-out problems"),
            decisions_table(log),
        ],
        numbers=forecast_numbers(ahead) if ahead else (),
        state=f"{len(log.history if ahead else log[m.REWARD]):,} rounds{planned}",
        words=("pass rate", "percentage point", "round", "group", "silent group", "τ", "entropy"),
    )
