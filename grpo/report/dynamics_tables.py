"""This module describes the dynamics of a run in words and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from rich.table import Table
from rich.text import Text

from grpo.dynamics.diagnostics import CHECKS, unchecked
from grpo.dynamics.evidence import FEWEST_ROUNDS, change, paired, window_length
from grpo.dynamics.findings import CRITICAL, NOTE, WARNING, DiagnosisRule, Finding
from grpo.dynamics.forecast import Forecast, forecast, forecast_held_out
from grpo.dynamics.identify import Identification, LawFit
from grpo.dynamics.replay import Proposal
from grpo.dynamics.run_log import RunLog, Series
from grpo.report.glossary import signed
from grpo.report.verdict import BAD, GOOD, UNSURE, Number

LAW_COLUMNS = ("law", "constants", "χ²/n", "R²", "misfit", "pattern", "weight")
"""These are the columns of `laws_table`. Misfit is the p-value of χ², pattern that of the residuals' correlation, and
weight is Akaike's."""
LAW_CAPTION = (
    "Each law is a curve with few constants. χ² is the squared distance of the n rounds from the curve, in units of "
    "their noise, so a law fits well if χ² is about n. R² is the share of the variation that the curve explains. "
    "Misfit and pattern are probabilities: that the rounds of a true law are so far from it, and that neighbouring "
    "rounds stray so much together. If either is below 0.05, the law is hardly true. Weight says how much the data "
    "prefer the law to the others (Akaike); all weights add up to 1."
)
SHAPES = {
    "constant": "a level without a trend",
    "line": "a straight rise or fall",
    "exponential": "a rise that slows down steadily towards a plateau",
    "mixture": "a rise that slows down ever longer on its way to a plateau",
    "gating": "a slow start, then a rise to a plateau",
    "sigmoid": "a slow start, then a rise to a plateau",
    "oscillator": "a rise that may overshoot its plateau and swing back",
}
"""This is what the curve of each law looks like."""
# Above this pass rate problems count as solved.
SOLVED = DiagnosisRule().finished
# A law that is worse by less than this much AICc has substantial support (Burnham & Anderson, 2002, section 2.6).
TELLING_AICC = 2.0
# A gain of pass rate that is worth going on for.
WORTHWHILE = 0.02
# An interval of a pass rate's change that is wider than this says nothing that a reader would not guess.
TELLS_NOTHING = 0.5
# What to do where a run's course alone does not tell. The braces hold half the width of the change's interval.
ADVICE = {
    UNSURE: "a change of less than {} cannot be told from luck here: go on, or raise dynamics.prompts_per_step",
    BAD: "go back to the checkpoint of the best evaluation, and go on with half of learner.learning_rate",
}
# What a check needs, in words.
METRIC_WORDS = {
    "pass_rate": "pass rates",
    "held out": "held-out scores",
    "reward/mean": "mean rewards",
    "reward/mean or pass_rate": "rewards",
    "groups/silent_fraction": "the share of silent groups",
    "policy/entropy or policy/sampler_entropy": "entropies",
    "policy/reference_kl": "a KL to the reference",
    "learner/gradient_norm": "gradient norms",
    "reward/std or advantages/std": "spreads of rewards",
    "policy/clip_low_fraction or policy/clip_high_fraction": "clipped shares",
    "policy/ess_fraction": "effective sample sizes",
    "mismatch/mean_abs": "the sampler's log-probabilities",
    "completions/length_mean": "lengths",
    "completions/truncated_fraction": "the share of truncated completions",
    "completions/no_answer_fraction": "the share of completions without an answer",
    "completions/repetition_fraction": "the share of repetitive completions",
    "time/round_seconds": "seconds of rounds",
    "completions/failed_fraction or completions/timed_out_fraction": "counts of failed grading",
}
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
    """Returns the cells of `laws_table`."""
    return [(*_law_row(fit), f"{identification.weights[fit.law.name]:.2f}") for fit in identification.fits]


def _law_row(fit: LawFit) -> tuple[str, ...]:
    constants = ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in fit.parameters.items())
    ratio = f"{fit.chi_square:.0f}/{len(fit.history)}"
    return fit.law.name, constants, ratio, f"{fit.r_squared:.2f}", f"{fit.misfit_p:.1g}", f"{fit.pattern_p:.1g}"


def summary_lines(identification: Identification, ahead: Forecast) -> list[str]:
    """Summarizes the forecast and the fit in sentences, the forecast first."""
    lines = [
        f"forecast for step {ahead.steps[-1]:.0f}: pass rate {ahead.value[-1]:.2f} "
        f"[{ahead.low[-1]:.2f}, {ahead.high[-1]:.2f}], gain from now {ahead.gain.value:+.2f} "
        f"[{ahead.gain.low:+.2f}, {ahead.gain.high:+.2f}] (90 %), more than {WORTHWHILE:g} with probability "
        f"{ahead.chance(WORTHWHILE):.0%}",
        f"law of the curve: {identification.reason}",
    ]
    if identification.identified and identification.fits[0].law.name == "oscillator":
        lines.append(
            f"damping ratio ζ {identification.damping_ratio}, stiffness κ {identification.stiffness} per step (95 %)"
        )
    return lines


def standing_lines(log: RunLog) -> list[str]:
    """Says in a sentence or two where a run began, where it stands and where it goes, by pass rate or else reward."""
    lines, _ = verdict_lines(log)
    return [f"verdict: {lines[0]}", *lines[1:]]


def verdict_lines(log: RunLog) -> tuple[list[str], str]:
    """Returns the sentences of `standing_lines`, and whether they are good news, bad news, or open."""
    name = "pass_rate" if len(log["pass_rate"]) else "reward/mean"
    series, moved = log[name], change(log[name])
    what = "pass rate" if name == "pass_rate" else "reward"
    if not len(series):
        return ["the log has neither pass rates nor rewards"], UNSURE
    if moved is None:
        needed = 2 * FEWEST_ROUNDS
        few = "1 round is" if len(series) == 1 else f"{len(series)} rounds are"
        return [f"none yet; {few} too few to say where the {what} goes, {needed} are needed"], UNSURE
    now = float(np.mean(series.values[-window_length(len(series)) :]))
    mood = GOOD if moved.low > 0 else BAD if moved.high < 0 else UNSURE
    surely = {GOOD: "learning", BAD: "getting worse", UNSURE: "no clear change yet"}[mood]
    if name == "pass_rate" and now > SOLVED:
        mood, surely = GOOD, "the problems are solved"
    levels, moves = (now - moved.value, now), (moved.value, moved.low, moved.high)
    if name == "pass_rate":
        was, is_now = (f"{level:.1%}" for level in levels)
        gained, low, high = (f"{signed(100 * move)}" for move in moves)
        gained += " points"
    else:
        was, is_now = (f"{level:.3g}" for level in levels)
        gained, low, high = (f"{move:+.3g}" for move in moves)
    certain = f"with 99 % certainty between {low} and {high}"
    if name == "pass_rate" and mood == UNSURE and moved.high - moved.low > TELLS_NOTHING:
        certain = "which may be luck: the rounds are too few, or differ too much, to say more"
    lines = [
        f"{surely}; the {what} went from {was} to {is_now} over {len(series):,} rounds "
        f"(a change of {gained}, {certain})"
    ]
    if len(log.history) >= FEWEST_ROUNDS:
        ahead = forecast(log.history, log.horizon)
        lines.append(
            f"if training goes on, the pass rate at step {ahead.steps[-1]:,.0f} will be between {ahead.low[-1]:.1%} "
            f"and {ahead.high[-1]:.1%} (with 90 % certainty)"
        )
    return lines, mood


def nothing_found(log: RunLog) -> str:
    """Says that the checks found no problem, how many could be made, and what to do where the run's course is open."""
    missing, (_, mood) = unchecked(log), verdict_lines(log)
    told = "the checks found no problem"
    if len(missing) == len(CHECKS):
        return f"none of {len(CHECKS)} checks could be made, for want of the columns that they need"
    if missing:
        told = f"{len(CHECKS) - len(missing)} of {len(CHECKS)} checks could be made, and they found no problem"
    moved = change(log["pass_rate"] if len(log["pass_rate"]) else log["reward/mean"])
    if moved is None or mood not in ADVICE:
        return told
    reach = (moved.high - moved.low) / 2
    return f"{told}; {ADVICE[mood].format(f'{100 * reach:.1f} points' if len(log['pass_rate']) else f'{reach:.2g}')}"


def forecast_numbers(identification: Identification, ahead: Forecast) -> list[Number]:
    """Returns the three numbers on top of the page: the forecast, the gain until then, and the law of the curve."""
    gain, best = ahead.gain, identification.fits[0]
    plateau, as_well = identification.plateau, _as_well(identification)
    shape = [SHAPES[best.law.name]] if best.law.name in SHAPES else []
    shape.append(
        f"it levels off at {plateau.value:.0%} (95 % interval {plateau.low:.0%} to {plateau.high:.0%})"
        if identification.identified
        else "where it levels off is not known yet"
    )
    shape += [f"{' and '.join(as_well)} fit{'s' * (len(as_well) == 1)} about as well"] if as_well else []
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
        Number("best law of the curve", best.law.name, "; ".join(shape)),
    ]


def _as_well(identification: Identification) -> list[str]:
    """Returns the laws that the data hardly tell from the best one, best first."""
    best, *others = identification.fits
    return [fit.law.name for fit in others if fit.aicc - best.aicc < TELLING_AICC]


def held_out_lines(log: RunLog, last_step: float) -> list[str]:
    """Says where held-out evaluations go, and how far training is above them now. Empty without three evaluations."""
    curve = log.held_out_history()
    if curve is None or len(log.history) < FEWEST_ROUNDS:
        return []
    ahead = forecast_held_out(curve, log.history, last_step)
    lines = [
        f"held out at step {ahead.steps[-1]:.0f}: {ahead.value[-1]:.2f} [{ahead.low[-1]:.2f}, {ahead.high[-1]:.2f}], "
        f"gain from the last evaluation {ahead.gain.value:+.2f} [{ahead.gain.low:+.2f}, {ahead.gain.high:+.2f}] (90 %)"
    ]
    training = paired(Series(log.history.steps, log.history.values), log.held_out.steps)
    shared = np.isin(log.held_out.steps, training.steps)
    gaps = training.values - log.held_out.values[shared]
    late = gaps[len(gaps) // 2 :]
    if len(late) > 1:
        error = float(late.std(ddof=1) / np.sqrt(len(late)))
        lines.append(
            f"training is {late.mean():+.2f} ± {error:.2f} above held out over the last {len(late)} evaluations "
            f"({gaps[0]:+.2f} at the first)"
        )
    return lines


def way_table(ahead: Forecast) -> Table:
    """Returns a table of the pass rate forecast for a few steps on the way."""
    table = Table(title="Forecast (90 % intervals)", title_justify="left")
    for name in ("step", "pass rate", "interval"):
        table.add_column(name, justify="right")
    last = len(ahead.steps) - 1
    for index in sorted({round(share * last) for share in (0, 0.25, 0.5, 0.75, 1)}):
        interval = f"[{ahead.low[index]:.2f}, {ahead.high[index]:.2f}]"
        table.add_row(f"{ahead.steps[index]:.0f}", f"{ahead.value[index]:.2f}", interval)
    return table


def unchecked_lines(missing: Mapping[str, str]) -> list[str]:
    """Says which checks were not made, by what the log lacks. `missing` maps a check to the metric that it needs."""
    by_need: dict[str, list[str]] = {}
    for check, need in missing.items():
        by_need.setdefault(METRIC_WORDS.get(need, need), []).append(check)
    told = "; ".join(f"without {need}: {', '.join(checks)}" for need, checks in by_need.items())
    return [f"not checked {told}"] if told else []


def findings_table(findings: Sequence[Finding]) -> Table:
    """Returns a table with a row per finding, the gravest first."""
    table = Table(title="Diagnosis", title_justify="left")
    for name in ("", "finding", "evidence", "what to do"):
        table.add_column(name, overflow="fold")
    for finding in findings:
        severity = Text(finding.severity, style=COLORS[finding.severity])
        table.add_row(severity, finding.name, f"{finding.meaning}\n{finding.evidence}", finding.remedy)
    return table


def decisions_table(proposals: Sequence[Proposal]) -> Table:
    """Returns a table of the rounds after which the scheduler decided on a change."""
    table = Table(title="Decisions", title_justify="left")
    for name in ("after step", "G", "τ", "prompts", "rate ×", "why"):
        table.add_column(name, justify="left" if name == "why" else "right", overflow="fold")
    for proposal in proposals:
        if proposal.changes:
            done, new = proposal.done, proposal.proposed
            table.add_row(
                str(proposal.step),
                _arrow(done.group_size, new.group_size),
                _arrow(done.refresh_interval, new.refresh_interval),
                _arrow(done.prompts_per_step, new.prompts_per_step),
                _arrow(done.learning_rate_factor, new.learning_rate_factor),
                proposal.verdict.reason,
            )
    return table


def _arrow(before: float, after: float) -> str:
    return f"{before:g}" if before == after else f"{before:g}→{after:g}"
