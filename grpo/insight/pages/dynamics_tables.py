"""This module describes the dynamics of a run in words and tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.table import Table
from rich.text import Text

from grpo.dynamics.forecast import Forecast, forecast_held_out
from grpo.dynamics.identify import Identification, LawFit
from grpo.dynamics.replay import Proposal
from grpo.insight.diagnosis.evidence import FEWEST_ROUNDS, paired
from grpo.insight.diagnosis.findings import CRITICAL, NOTE, WARNING, Finding
from grpo.insight.logs.run_log import RunLog, Series
from grpo.insight.pages.glossary import signed
from grpo.insight.pages.style import plain
from grpo.insight.pages.verdict import Number

LAW_COLUMNS = ("law", "constants", "χ²/n", "R²", "misfit", "pattern", "weight")
"""The columns of `laws_table`. Misfit is the p-value of χ², pattern the p-value of the residuals' correlation, and
weight the Akaike weight."""
LAW_CAPTION = "Each law is a curve with few constants, fitted to the rounds. The first one fits best."
# A curve starts slowly, or levels off, if its first or last tenth is less than this share as steep as its steepest one.
SLOW = 0.5
# A curve swings if it goes back by more than this share of its range.
SWING = 0.1
# A law whose AICc exceeds the least by less than this has substantial support (Burnham & Anderson, 2002, section 2.6).
TELLING_AICC = 2.0
# A gain of pass rate for which it is worth training on.
WORTHWHILE = 0.02
# The laws' constants that are pass rates, and those that are optimizer steps. A time that is more than `FAR` times as
# long as the run is not known any better than that.
RATES, FAR = ("start", "plateau", "ceiling", "floor", "level"), 10
TIMES = ("relaxation_steps", "time_steps", "width_steps", "middle_step")
# A forecast contradicts a plateau if it ends by more than this, in pass rate, beyond the plateau's interval.
BEYOND = 0.05
NO_PLATEAU = "since the forecast does not end at the plateau of the law that fits best"
COLORS = {CRITICAL: "bold red", WARNING: "yellow", NOTE: "cyan"}


def laws_table(identification: Identification) -> Table:
    """Returns a table with a row per law, the best first: its constants, how well it fits, and its weight."""
    table = Table(title="Laws of the reward curve", title_justify="left")
    for name in LAW_COLUMNS:
        words = name == "constants"
        left = words or name == "law"
        table.add_column(name, justify="left" if left else "right", overflow="fold", no_wrap=not words)
    for row in law_rows(identification):
        table.add_row(*row)
    return table


def law_rows(identification: Identification) -> list[tuple[str, ...]]:
    """Returns the cells of `laws_table`, a row per law, the best first."""
    return [(*_law_row(fit), f"{identification.weights[fit.law.name]:.2f}") for fit in identification.fits]


def _law_row(fit: LawFit) -> tuple[str, ...]:
    reach = FAR * max(float(np.ptp(fit.history.steps)), 1.0)
    constants = ", ".join(
        f"{name.replace('_', ' ')} {_constant(name, value, reach)}" for name, value in fit.parameters.items()
    )
    ratio = f"{fit.chi_square:.0f}/{len(fit.history)}"
    return fit.law.name, constants, ratio, f"{fit.r_squared:.2f}", f"{fit.misfit_p:.1g}", f"{fit.pattern_p:.1g}"


def _constant(name: str, value: float, reach: float) -> str:
    """Formats a constant of a law: rates in percent, and times up to `reach`, beyond which the run decides nothing."""
    if name in RATES:
        return f"{value:.1%}"
    return f"beyond {plain(round(reach))}" if name in TIMES and abs(value) > reach else plain(value)


def summary_lines(identification: Identification, ahead: Forecast) -> list[str]:
    """Summarizes the forecast and the fit in sentences, the forecast first."""
    lines = [
        f"forecast for step {ahead.steps[-1]:.0f}: pass rate {ahead.value[-1]:.2f} "
        f"[{ahead.low[-1]:.2f}, {ahead.high[-1]:.2f}], gain from now {ahead.gain.value:+.2f} "
        f"[{ahead.gain.low:+.2f}, {ahead.gain.high:+.2f}] (90 %), more than {WORTHWHILE:g} with probability "
        f"{ahead.chance(WORTHWHILE):.0%}{guess(ahead)}",
        _shape_line(identification, ahead),
    ]
    if identification.identified and identification.fits[0].law.name == "oscillator":
        lines.append(
            f"damping ratio ζ {identification.damping_ratio}, stiffness κ {identification.stiffness} per step (95 %)"
        )
    return lines


def guess(ahead: Forecast) -> str:
    """Says from where on a forecast lies further ahead than its log is long, in words that follow those of the
    forecast, or "" if it nowhere does."""
    if ahead.guess_from is None:
        return ""
    return f"; from step {ahead.guess_from:,.0f} on it reaches further ahead than the log is long and is mostly a guess"


def _agree(identification: Identification, ahead: Forecast) -> bool:
    """Tells whether the forecast neither goes beyond the plateau of the law nor excludes it, so that both may be told
    side by side."""
    plateau, end = identification.plateau, ahead.value[-1]
    is_rising = plateau.value > identification.fits[0].history.values.mean()
    beyond = end - plateau.high if is_rising else plateau.low - end
    return bool(beyond <= BEYOND and ahead.low[-1] <= plateau.high and plateau.low <= ahead.high[-1])


def _shape_line(identification: Identification, ahead: Forecast) -> str:
    """Says what shape the curve has, or why its law is not identified."""
    if not identification.identified:
        return f"shape of the curve: {identification.reason}"
    if not _agree(identification, ahead):
        return f"shape of the curve: not clear yet, {NO_PLATEAU}"
    _, shape = shape_of(identification.fits[0])
    return f"shape of the curve: {shape} ({identification.reason}); the forecast does not rely on it"


def shape_of(fit: LawFit) -> tuple[str, str]:
    """Describes the shape of a fitted curve over the measured rounds, in a word or two and in a phrase.

    The curve counts, not its law: a law with a slow start may be fitted to a run that is past it.
    """
    history, places = fit.history, np.linspace(0, len(fit.history) - 1, 11)
    curve = fit.predict(history.steps, history.intervals, history.lags)
    tenths = np.diff(np.interp(places, np.arange(len(history)), curve))
    range_ = float(np.ptp(curve))
    if range_ == 0:
        return "level", "a level without a trend"
    change = "rise" if curve[-1] > curve[0] else "fall"
    way_back = float(np.abs(np.diff(curve)).sum()) - abs(float(curve[-1] - curve[0]))
    if way_back > SWING * range_:
        return "swings", f"a {change} that overshoots and swings back"
    steepest = np.abs(tenths).max()
    slow_start, levels_off = np.abs(tenths[[0, -1]]) < SLOW * steepest
    if slow_start:
        return "slow start", f"a slow start, then a faster {change}" + ", then a plateau" * bool(levels_off)
    if levels_off:
        return "slows down", f"a {change} that slows down towards a plateau"
    return "straight", f"a nearly straight {change}"


def forecast_numbers(identification: Identification, ahead: Forecast) -> list[Number]:
    """Returns the three numbers on top of the page: the forecast, the gain until then, and the shape of the curve."""
    gain = ahead.gain
    return [
        Number(
            f"forecast for step {ahead.steps[-1]:,.0f}",
            f"{ahead.value[-1]:.1%}",
            f"90 % interval {ahead.low[-1]:.1%} to {ahead.high[-1]:.1%}",
        ),
        Number(
            "gain from now, in percentage points",
            signed(100 * gain.value),
            f"90 % interval {signed(100 * gain.low)} to {signed(100 * gain.high)}; above {100 * WORTHWHILE:g} with "
            f"probability {ahead.chance(WORTHWHILE):.0%}",
        ),
        _shape_number(identification, ahead),
    ]


def _shape_number(identification: Identification, ahead: Forecast) -> Number:
    """Returns the shape of the curve if the data decide it, and otherwise why they do not."""
    best, as_well = identification.fits[0], _as_well(identification)
    plateau, other_laws = identification.plateau, f", {' and '.join(as_well)} about as well" if as_well else ""
    best_law = f"the {best.law.name} law fits best{other_laws}"
    if not identification.identified:
        return Number("shape of the curve", "not clear yet", f"{identification.reason.partition(': ')[2]}; {best_law}")
    if not _agree(identification, ahead):
        return Number("shape of the curve", "not clear yet", f"{NO_PLATEAU}; {best_law}")
    word, phrase = shape_of(best)
    level = f"it levels off at {plateau.value:.0%} (95 % interval {plateau.low:.0%} to {plateau.high:.0%})"
    return Number("shape of the curve", word, f"{phrase}; {level}; {best_law}")


def _as_well(identification: Identification) -> list[str]:
    """Returns the names of the laws that fit about as well as the best one, best first."""
    best, *others = identification.fits
    return [fit.law.name for fit in others if fit.aicc - best.aicc < TELLING_AICC]


def held_out_lines(log: RunLog, last_step: float) -> list[str]:
    """Forecasts held-out evaluations in words, and says how far the pass rate in training is above or below them.

    The list is empty for fewer than three evaluations or too few rounds.
    """
    curve = log.held_out_history()
    if curve is None or len(log.history) < FEWEST_ROUNDS:
        return []
    ahead = forecast_held_out(curve, log.history, last_step)
    lines = [
        f"held out at step {ahead.steps[-1]:.0f}: pass rate {ahead.value[-1]:.2f} [{ahead.low[-1]:.2f}, "
        f"{ahead.high[-1]:.2f}], "
        f"gain from the last evaluation {ahead.gain.value:+.2f} [{ahead.gain.low:+.2f}, {ahead.gain.high:+.2f}] (90 %)"
    ]
    training = paired(Series(log.history.steps, log.history.values), log.held_out.steps)
    is_shared_step = np.isin(log.held_out.steps, training.steps)
    gaps = training.values - log.held_out.values[is_shared_step]
    tail = gaps[len(gaps) // 2 :]
    if len(tail) > 1:
        error = float(tail.std(ddof=1) / np.sqrt(len(tail)))
        side = "above" if tail.mean() >= 0 else "below"
        lines.append(
            f"training was {abs(tail.mean()):.2f} ± {error:.2f} {side} held out over the last {len(tail)} evaluations "
            f"({gaps[0]:+.2f} at the first)"
        )
    return lines


def way_table(ahead: Forecast) -> Table:
    """Returns a table of the forecast pass rate at up to five evenly spread steps."""
    table = Table(title="Forecast (90 % intervals)", title_justify="left")
    for name in ("step", "pass rate", "interval"):
        table.add_column(name, justify="right")
    last = len(ahead.steps) - 1
    for index in sorted({round(share * last) for share in (0, 0.25, 0.5, 0.75, 1)}):
        interval = f"[{ahead.low[index]:.2f}, {ahead.high[index]:.2f}]"
        table.add_row(f"{ahead.steps[index]:.0f}", f"{ahead.value[index]:.2f}", interval)
    return table


def findings_table(findings: Sequence[Finding]) -> Table:
    """Returns a table with a row per finding: severity, name, evidence and remedy."""
    table = Table(title="Diagnosis", title_justify="left")
    for name in ("", "finding", "evidence", "what to do"):
        table.add_column(name, overflow="fold")
    for finding in findings:
        severity = Text(finding.severity, style=COLORS[finding.severity])
        table.add_row(severity, finding.name, f"{finding.meaning}\n{finding.evidence}", finding.remedy)
    return table


def decisions_table(proposals: Sequence[Proposal]) -> Table:
    """Returns a table of the rounds after which the scheduler proposed another plan, with old and new values."""
    table = Table(title="Decisions", title_justify="left")
    for name in ("after step", "G", "τ", "prompts", "rate ×", "why"):
        table.add_column(name, justify="left" if name == "why" else "right", overflow="fold")
    for proposal in proposals:
        if proposal.changes:
            plan_followed, plan_proposed = proposal.done, proposal.proposed
            table.add_row(
                str(proposal.step),
                _arrow(plan_followed.group_size, plan_proposed.group_size),
                _arrow(plan_followed.refresh_interval, plan_proposed.refresh_interval),
                _arrow(plan_followed.prompts_per_step, plan_proposed.prompts_per_step),
                _arrow(plan_followed.learning_rate_factor, plan_proposed.learning_rate_factor),
                proposal.verdict.reason,
            )
    return table


def _arrow(before: float, after: float) -> str:
    return f"{before:g}" if before == after else f"{before:g}→{after:g}"
