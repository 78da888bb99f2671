"""This module describes the dynamics of a run in words and tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from rich.table import Table
from rich.text import Text

from grpo.dynamics.diagnostics import CHECKS, unchecked
from grpo.dynamics.evidence import FEWEST_ROUNDS, change, paired, window_length
from grpo.dynamics.findings import CRITICAL, NOTE, WARNING, DiagnosisRule, Finding
from grpo.dynamics.forecast import Forecast, forecast, forecast_held_out
from grpo.dynamics.identify import Identification, LawFit
from grpo.dynamics.losses import lost
from grpo.dynamics.progress import harder_prompts, with_known_prompts
from grpo.dynamics.replay import Proposal
from grpo.dynamics.run_log import RunLog, Series
from grpo.report.foreign_words import in_words_of
from grpo.report.verdict import BAD, GOOD, UNSURE, Number
from grpo.types import Interval

LAW_COLUMNS = ("law", "constants", "χ²/n", "R²", "misfit", "pattern", "weight")
"""These are the columns of `laws_table`. Misfit is the p-value of χ², pattern that of the residuals' correlation, and
weight is Akaike's."""
LAW_CAPTION = "Each law is a curve with few constants, fitted to the rounds. The first one fits best."
SHAPES = {
    "constant": "a level without a trend",
    "line": "a straight rise or fall",
    "exponential": "a change that slows down steadily towards a plateau",
    "mixture": "a change that slows down ever longer on its way to a plateau",
    "gating": "a slow start, then a faster change, then a plateau",
    "sigmoid": "a slow start, then a faster change, then a plateau",
    "oscillator": "a change that may overshoot its plateau and swing back",
}
"""This is what the curve of each law looks like."""
# Above this pass rate problems count as solved.
SOLVED = DiagnosisRule().finished
# A gain of pass rate that is worth going on for.
WORTHWHILE = 0.02
# An interval of a pass rate's change that is wider than this says nothing that a reader would not guess.
TELLS_NOTHING = 0.5
# What to do where a run's course alone does not tell. The braces hold half the width of the change's interval.
ADVICE = {
    UNSURE: "a change of less than {:.2g} cannot be told from luck here: go on, or raise dynamics.prompts_per_step",
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
    "learner/learning_rate": "learning rates",
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
# A line on what a log lacks names so many columns.
NEEDS_TOLD = 4
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
        _shape_line(identification),
    ]
    if identification.identified and identification.fits[0].law.name == "oscillator":
        lines.append(
            f"damping ratio ζ {identification.damping_ratio}, stiffness κ {identification.stiffness} per step (95 %)"
        )
    return lines


def _shape_line(identification: Identification) -> str:
    """Says which law the curve follows and what such a curve looks like, or why that is open."""
    if not identification.identified:
        return f"shape of the curve: {identification.reason}"
    shape = SHAPES[identification.fits[0].law.name]
    return f"shape of the curve: {shape} ({identification.reason}); the forecast does not rely on it"


def standing_lines(log: RunLog) -> list[str]:
    """Says in a sentence or two where a run began, where it stands and where it goes, by pass rate or else reward."""
    lines, _ = verdict_lines(log)
    return [f"verdict: {lines[0]}", *lines[1:]]


def verdict_lines(log: RunLog) -> tuple[list[str], str]:
    """Returns the sentences of `standing_lines`, and whether they are good news, bad news, or open."""
    name = "pass_rate" if len(log["pass_rate"]) else "reward/mean"
    log = with_known_prompts(log, DiagnosisRule())
    series, moved = log[name], change(log[name])
    what = "pass rate" if name == "pass_rate" else "reward"
    if not len(series):
        return ["the log has neither pass rates nor rewards"], UNSURE
    if moved is None:
        needed = 2 * FEWEST_ROUNDS
        few = "1 round is" if len(series) == 1 else f"{len(series)} rounds are"
        return [f"none yet; {few} too few to say where the {what} goes, {needed} are needed"], UNSURE
    now = float(np.mean(series.values[-window_length(len(series)) :]))
    mood, surely = _judged(log, moved, now)
    form = ".2f" if name == "pass_rate" else ".3g"
    certain = f"with 99 % certainty between {moved.low:+{form}} and {moved.high:+{form}}"
    if name == "pass_rate" and mood == UNSURE and moved.high - moved.low > TELLS_NOTHING:
        certain = "which may be luck: the rounds are too few, or differ too much, to say more"
    before = now - moved.value
    course = f"went from {before:{form}} to {now:{form}} over {len(series)} rounds (a change of {moved.value:+{form}}"
    lines = [f"{surely}; the {what} {course}, {certain})"]
    if loss := lost(log, DiagnosisRule()):
        lines = [f"{surely}: {loss}; the {what} is {now:{form}} now"]
    if len(log.history) >= FEWEST_ROUNDS:
        ahead = forecast(log.history, log.horizon)
        lines.append(
            f"if training goes on, the pass rate at step {ahead.steps[-1]:.0f} will be between {ahead.low[-1]:.2f} and "
            f"{ahead.high[-1]:.2f} (with 90 % certainty)"
        )
    return lines, mood


def _judged(log: RunLog, moved: Interval, now: float) -> tuple[str, str]:
    """Returns the mood and the first words of a verdict on a change of the pass rate, or else of the reward."""
    rule, graded = DiagnosisRule(), len(log["pass_rate"]) > 0
    if graded and now > SOLVED:
        return GOOD, "the problems are solved"
    if lost(log, rule):
        return BAD, "much of what the model could do is lost"
    if harder_prompts(log, rule):
        return UNSURE, "the prompts get harder, and held-out problems are solved as well as before"
    if moved.low > 0:
        return GOOD, "learning"
    return (BAD, "getting worse") if moved.high < 0 else (UNSURE, "no clear change yet")


def nothing_found(log: RunLog) -> str:
    """Says that the checks found no problem, how many could be made, and what to do where the run's course is open."""
    missing, (_, mood) = unchecked(log), verdict_lines(log)
    told = "the checks found no problem"
    if len(missing) == len(CHECKS):
        return f"none of {len(CHECKS)} checks could be made, for want of the columns that they need"
    if missing:
        told = f"{len(CHECKS) - len(missing)} of {len(CHECKS)} checks could be made, and they found no problem"
    moved = change(log["pass_rate"] if len(log["pass_rate"]) else log["reward/mean"])
    if moved is None or mood not in ADVICE or harder_prompts(log, DiagnosisRule()):
        return told
    advice = ADVICE[mood].format((moved.high - moved.low) / 2)
    return f"{told}; {in_words_of(log.framework, advice)}"


def forecast_numbers(identification: Identification, ahead: Forecast) -> list[Number]:
    """Returns the three numbers on top of the page: the forecast, the gain until then, and the law of the curve."""
    gain, best = ahead.gain, identification.fits[0]
    surely = "it is identified" if identification.identified else identification.reason
    return [
        Number(
            f"forecast for step {ahead.steps[-1]:,.0f}",
            f"{ahead.value[-1]:.1%}",
            f"90 % interval {ahead.low[-1]:.1%} to {ahead.high[-1]:.1%}",
        ),
        Number(
            "gain from now, in percentage points",
            f"{100 * gain.value:+.1f}",
            f"90 % interval {100 * gain.low:+.1f} to {100 * gain.high:+.1f}; above {100 * WORTHWHILE:g} with "
            f"probability {ahead.chance(WORTHWHILE):.0%}",
        ),
        Number("best law of the curve", best.law.name, f"{SHAPES.get(best.law.name, '')}; {surely}".removeprefix("; ")),
    ]


def held_out_lines(log: RunLog, last_step: float) -> list[str]:
    """Says where held-out evaluations go, and how far training is above them now. Empty without three evaluations."""
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
    shared = np.isin(log.held_out.steps, training.steps)
    gaps = training.values - log.held_out.values[shared]
    late = gaps[len(gaps) // 2 :]
    if len(late) > 1:
        error = float(late.std(ddof=1) / np.sqrt(len(late)))
        side = "above" if late.mean() >= 0 else "below"
        lines.append(
            f"training was {abs(late.mean()):.2f} ± {error:.2f} {side} held out over the last {len(late)} evaluations "
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
    """Says what the log lacks for checks that were not made, most needed first. `missing` maps a check to its need."""
    needs = [METRIC_WORDS.get(need, need) for need, _ in Counter(missing.values()).most_common()]
    if not needs:
        return []
    told, more = needs[:NEEDS_TOLD], len(needs) - NEEDS_TOLD
    if more > 0:
        told = [*told, f"{more} more column{'s' if more > 1 else ''}"]
    told = [", ".join(told[:-1]), told[-1]] if len(told) > 1 else told
    needed = "needs" if len(missing) == 1 else "need"
    return [f"{len(missing)} of {len(CHECKS)} checks {needed} what the log lacks: {' and '.join(told)}"]


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
