"""This module says in sentences whether a run is learning, and which checks of the diagnosis its log allows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from grpo.dynamics.forecast import forecast
from grpo.insight.diagnosis.diagnostics import CHECKS, unchecked
from grpo.insight.diagnosis.evidence import FEWEST_ROUNDS, change, window_length
from grpo.insight.diagnosis.findings import DiagnosisRule
from grpo.insight.diagnosis.progress import harder_prompts, with_known_prompts
from grpo.insight.diagnosis.setbacks import FORMS, lost
from grpo.insight.diagnosis.symptoms import UNGRADED
from grpo.insight.logs.foreign_words import in_words_of
from grpo.insight.logs.run_log import RunLog
from grpo.insight.pages.dynamics_tables import guess
from grpo.insight.pages.glossary import signed
from grpo.insight.pages.verdict import BAD, GOOD, UNSURE
from grpo.types import Interval

# Above this pass rate problems count as solved.
SOLVED = DiagnosisRule().finished
# An unclear change of the pass rate with a wider interval than this is reported as possible luck, without the interval.
TELLS_NOTHING = 0.5
# Advice for a run with this verdict in which the checks found nothing. {} is half the width of the change's interval.
ADVICE = {
    UNSURE: "a change of less than {} cannot be told from luck here: go on, or raise dynamics.prompts_per_step",
    BAD: "go back to the checkpoint of the best evaluation, and go on with half of learner.learning_rate",
}
# The words for a metric that a check needs.
METRIC_WORDS = {
    "pass_rate": "pass rates",
    "held out": "held-out scores",
    "reward/mean": "mean rewards",
    "reward/mean or pass_rate": "rewards",
    "step/cosine": "products of steps with the next gradients",
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
    " or ".join(UNGRADED): "counts of failed grading",
    " or ".join(FORMS): "shares of completions without an end or an answer",
}
# The line on a log's missing columns names at most this many of them.
NEEDS_TOLD = 4


def standing_lines(log: RunLog) -> list[str]:
    """Gives a verdict on a run, how far its pass rate (or else its reward) moved, and the forecast of the pass rate."""
    lines, _ = verdict_lines(log)
    return [f"verdict: {lines[0]}", *lines[1:]]


def verdict_lines(log: RunLog) -> tuple[list[str], str]:
    """Returns the sentences of `standing_lines`, and their mood: `GOOD`, `BAD` or `UNSURE`."""
    name = "pass_rate" if len(log["pass_rate"]) else "reward/mean"
    log = with_known_prompts(log, DiagnosisRule())
    series, shift = log[name], change(log[name])
    what = "pass rate" if name == "pass_rate" else "reward"
    if not len(series):
        return ["the log has neither pass rates nor rewards"], UNSURE
    if shift is None:
        num_needed = 2 * FEWEST_ROUNDS
        rounds_are = "1 round is" if len(series) == 1 else f"{len(series)} rounds are"
        return [f"none yet; {rounds_are} too few to say where the {what} goes, {num_needed} are needed"], UNSURE
    now = float(np.mean(series.values[-window_length(len(series)) :]))
    mood, judgement = _judged(log, shift, now)
    lines = [f"{judgement}; {_course(what, len(series), shift, now, mood)}"]
    if loss := lost(log, DiagnosisRule()):
        is_now = f"{now:.1%}" if name == "pass_rate" else f"{now:.3g}"
        lines = [f"{judgement}: {loss}; the {what} is {is_now} now"]
    if len(log.history) >= FEWEST_ROUNDS:
        ahead = forecast(log.history, log.horizon)
        lines.append(
            f"if training goes on, the pass rate at step {ahead.steps[-1]:,.0f} will be between {ahead.low[-1]:.1%} "
            f"and {ahead.high[-1]:.1%} (with 90 % certainty){guess(ahead)}"
        )
    return lines, mood


def _course(what: str, rounds: int, shift: Interval, now: float, mood: str) -> str:
    """Says from which value to which a pass rate or reward went, with the 99 % interval of the change.

    Both values are means of `window_length(rounds)` rounds.
    """
    levels, moves = (now - shift.value, now), (shift.value, shift.low, shift.high)
    if what == "pass rate":
        start, is_now = (f"{level:.1%}" for level in levels)
        gain, low, high = (signed(100 * move) for move in moves)
        gain += " points"
    else:
        start, is_now = (f"{level:.3g}" for level in levels)
        gain, low, high = (f"{move:+.3g}" for move in moves)
    certainty = f"with 99 % certainty between {low} and {high}"
    if what == "pass rate" and mood == UNSURE and shift.high - shift.low > TELLS_NOTHING:
        certainty = "which may be luck: the rounds are too few, or differ too much, to say more"
    window = window_length(rounds)
    return (
        f"the {what} went from {start} in the first {window:,} rounds to {is_now} in the last {window:,} of {rounds:,} "
        f"(a change of {gain}, {certainty})"
    )


def _judged(log: RunLog, shift: Interval, now: float) -> tuple[str, str]:
    """Returns the mood and the first words of the verdict.

    `shift` is the change of the pass rate, or else of the reward, and `now` its latest value.
    """
    rule, has_pass_rate = DiagnosisRule(), len(log["pass_rate"]) > 0
    if has_pass_rate and now > SOLVED:
        return GOOD, "the problems are solved"
    if lost(log, rule):
        return BAD, "much of what the model could do is lost"
    if harder_prompts(log, rule):
        return UNSURE, "the prompts get harder, and held-out problems are solved as well as before"
    if shift.low > 0:
        return GOOD, "learning"
    return (BAD, "getting worse") if shift.high < 0 else (UNSURE, "no clear change yet")


def nothing_found(log: RunLog) -> str:
    """Says that the checks found no problem and how many could be made, with advice where the verdict is not good."""
    checks_not_made, (_, mood) = unchecked(log), verdict_lines(log)
    outcome = "the checks found no problem"
    if len(checks_not_made) == len(CHECKS):
        return f"none of {len(CHECKS)} checks could be made, for want of the columns that they need"
    if checks_not_made:
        outcome = (
            f"{len(CHECKS) - len(checks_not_made)} of {len(CHECKS)} checks could be made, and they found no problem"
        )
    shift = change(log["pass_rate"] if len(log["pass_rate"]) else log["reward/mean"])
    if shift is None or mood not in ADVICE or harder_prompts(log, DiagnosisRule()):
        return outcome
    reach = (shift.high - shift.low) / 2
    advice = ADVICE[mood].format(f"{100 * reach:.1f} points" if len(log["pass_rate"]) else f"{reach:.2g}")
    return f"{outcome}; {in_words_of(log.framework, advice)}"


def unchecked_lines(missing: Mapping[str, str]) -> list[str]:
    """Says which columns the log lacks for checks, those that the most checks need first.

    `missing` maps a check that was not made to the metric that it lacks.
    """
    needs = [METRIC_WORDS.get(need, need) for need, _ in Counter(missing.values()).most_common()]
    if not needs:
        return []
    columns_lacked, more = needs[:NEEDS_TOLD], len(needs) - NEEDS_TOLD
    if more > 0:
        columns_lacked = [*columns_lacked, f"{more} more column{'s' if more > 1 else ''}"]
    columns_lacked = [", ".join(columns_lacked[:-1]), columns_lacked[-1]] if len(columns_lacked) > 1 else columns_lacked
    verb = "needs" if len(missing) == 1 else "need"
    return [f"{len(missing)} of {len(CHECKS)} checks {verb} what the log lacks: {' and '.join(columns_lacked)}"]
