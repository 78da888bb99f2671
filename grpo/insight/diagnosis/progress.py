"""This module holds the checks of a diagnosis that look at rewards and pass rates. Each returns a finding or None."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from grpo.dynamics.adaptive import UNLIKELY
from grpo.dynamics.forecast import forecast
from grpo.insight.diagnosis.evidence import (
    FEWEST_ROUNDS,
    FIRST_ROUNDS,
    change,
    difference,
    difference_of_evaluations,
    late_change,
    level,
    paired,
    share_right,
    start,
    window_error,
    window_length,
)
from grpo.insight.diagnosis.findings import CRITICAL, NOTE, WARNING, DiagnosisRule, Finding
from grpo.insight.diagnosis.symptoms import difficulty, silence
from grpo.insight.logs.run_log import RunLog
from grpo.types import Interval
from grpo.types import metrics as m

# Each half of a run must have this many evaluations before held-out progress is compared with training.
FEWEST_EVALUATIONS = 3
# A reward that has been the same since the first round counts as constant after this many rounds.
FEWEST_CONSTANT = 8
# A run must have this many rounds before it can count as having learned nothing.
FEWEST_WITHOUT_PROGRESS = 60

# A 99 % interval reaches this many standard errors to each side.
SURE = 2.576


class Halves(NamedTuple):
    """Halves holds the changes of pass rates from the first half of a run's evaluations to the second half.

    `gap` is the change of training minus held-out.
    """

    training: Interval
    held_out: float
    gap: Interval


def halves(log: RunLog) -> Halves | None:
    """Compares the two halves of a run's evaluations. Returns None if there are too few of them."""
    if not len(log.held_out) or not len(log[m.PASS_RATE]):
        return None
    training = paired(log[m.PASS_RATE], log.held_out.steps)
    held_out = log.held_out.values[np.isin(log.held_out.steps, training.steps)]
    half = len(training) // 2
    if half < FEWEST_EVALUATIONS:
        return None
    on_held_out = difference_of_evaluations(held_out, half, log.held_out_error)
    # The noise of rounds is correlated, which is measured in all rounds. That of evaluations is not.
    rounds = difference(log[m.PASS_RATE].values, len(log[m.PASS_RATE]) // 2)
    reach = rounds.high - rounds.value
    on_training = float(training.values[-half:].mean() - training.values[:half].mean())
    gap, gap_reach = on_training - on_held_out.value, float(np.hypot(reach, on_held_out.high - on_held_out.value))
    return Halves(
        Interval(on_training, on_training - reach, on_training + reach),
        on_held_out.value,
        Interval(gap, gap - gap_reach, gap + gap_reach),
    )


def harder_prompts(log: RunLog, rule: DiagnosisRule) -> bool:
    """Tells whether the pass rate falls because the prompts get harder, as in data sorted by difficulty.

    That is so if the fall is sure and held-out problems are solved about as well as before.
    """
    fall, changes = change(log[m.PASS_RATE]), halves(log)
    if fall is None or changes is None or fall.high > 0 or changes.training.value > -rule.moved:
        return False
    return changes.held_out > rule.coupling * changes.training.value


def with_known_prompts(log: RunLog, rule: DiagnosisRule) -> RunLog:
    """Returns the log with `changing_prompts` set if its prompts get harder, even if no curriculum is known."""
    harder = not log.changing_prompts and harder_prompts(log, rule)
    return replace(log, changing_prompts=True) if harder else log


def reward_hacking(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Finds reward hacking: held-out progress per training progress (the coupling ratio) goes to 0, and the two drift
    apart."""
    changes = halves(log)
    if changes is None or changes.gap.low < 0 or changes.training.low < rule.moved:
        return None
    if changes.held_out > rule.coupling * changes.training.value:
        return None
    evidence = (
        f"from the first half of the run to the second, the training pass rate rose by {changes.training.value:.2f}, "
        f"the held-out pass rate by {round(changes.held_out, 2) + 0.0:+.2f}, and their gap by {changes.gap.value:.2f} "
        f"[{changes.gap.low:.2f}, {changes.gap.high:.2f}]"
    )
    remedy = "read samples.jsonl; objective.kl.coefficient=0.01, more problems, or a stricter reward"
    return Finding("reward hacking or overfitting", CRITICAL, evidence, remedy)


def memorized(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Finds that the problems trained on are solved far more often than held-out ones at the end of the run.

    Other frameworks may hold out problems of another kind, and a curriculum trains on easier or harder ones, so nothing
    is found there.
    """
    training, series = level(log[m.PASS_RATE]), log[m.PASS_RATE]
    if training is None or not len(log.held_out) or log.framework != "grpo" or log.changing_prompts:
        return None
    if log.held_out.steps[-1] < series.steps[-window_length(len(series)) :][0]:
        return None
    held_out = float(log.held_out.values[-1])
    reach = float(np.hypot(training.high - training.value, SURE * log.held_out_error))
    gap = training.value - held_out
    if not log.held_out_error or gap - reach <= rule.apart:
        return None
    evidence = (
        f"{training.value:.1%} of answers are right in training and {held_out:.1%} on held-out problems, a difference "
        f"of {100 * gap:.0f} points [{100 * (gap - reach):.0f}, {100 * (gap + reach):.0f}]"
    )
    first = float(series.values[:FIRST_ROUNDS].mean() - log.held_out.values[0])
    error = np.hypot(window_error(series.values) * (FEWEST_ROUNDS / FIRST_ROUNDS) ** 0.5, log.held_out_error)
    if log.held_out.steps[0] < series.steps[0] and first - SURE * error > gap / 2:
        evidence += (
            f"; in the first {FIRST_ROUNDS} rounds it was {100 * first:.0f} points, so the model had seen these "
            "problems before, or they are easier"
        )
    remedy = "go by held-out problems; more or other problems to train on help, fewer rounds on the same ones too"
    return Finding("training above held-out", NOTE, evidence, remedy)


def constant_reward(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Finds a reward that has been one and the same number since the first round. Nothing can be learned from it.

    Returns None where every answer has been right: the problems are solved then, which `silent_groups` finds.
    """
    pass_rates = log[m.PASS_RATE].values
    if len(pass_rates) and pass_rates.min() == 1:
        return None
    # Rewards below task.reward.correct_at may differ where no answer counts as right.
    name, what = (m.REWARD, "the mean reward") if len(log[m.REWARD]) else (m.PASS_RATE, "the pass rate")
    values = log[name].values
    if len(values) < FEWEST_CONSTANT or np.ptp(values) > 0:
        return None
    evidence = f"{what} has been exactly {values[0]:g} in all {len(values)} rounds"
    remedy = "read samples.jsonl: the answer is not found (task.reward.extract), or the problems are too hard"
    return Finding("constant reward", CRITICAL, evidence, remedy)


def reward_ended(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Finds that rewards end before the log does, as where a reward function returns NaN from some step on."""
    what, rewards, _, _ = log.judged
    others = [log[name] for name in (m.LENGTH, m.GRADIENT_NORM, m.LEARNING_RATE) if len(log[name])]
    if len(rewards) < 2 or not others:
        return None
    # Rewards may be logged more seldom than other numbers.
    due = rewards.steps[-1] + 2 * float(np.diff(rewards.steps).max())
    longest = max(others, key=lambda series: series.steps[-1])
    if (longest.steps > due).sum() < FEWEST_CONSTANT:
        return None
    evidence = (
        f"the last {what} is that of step {rewards.steps[-1]:g}, and the log goes on to step {longest.steps[-1]:g}"
    )
    remedy = "see what the reward function returns from there on: NaN is no reward"
    return Finding("reward ended", CRITICAL, evidence, remedy)


def no_progress(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Finds that nothing was learned: after many rounds the pass rate (else the mean reward) is where it began, or has
    surely fallen.

    Nothing is found where it has surely risen. The whole interval of the change must lie below `flat`, or for a reward
    below half of its scatter from round to round.
    """
    name = m.PASS_RATE if len(log[m.PASS_RATE]) else m.REWARD
    series = log[name]
    if len(series) < FEWEST_WITHOUT_PROGRESS or log.changing_prompts:
        return None
    gain, now = change(series), level(series)
    scatter = float(np.std(np.diff(series.values))) / 2**0.5
    if gain is None or now is None or scatter == 0:
        return None
    passing, right = name == m.PASS_RATE, share_right(log)
    if gain.low > 0 or gain.high > (rule.flat if passing else scatter / 2) or (right and right.value > rule.solved):
        return None
    before = now.value - gain.value
    what, rounds = "pass rate" if passing else "mean reward", window_length(len(series))
    moved = f"fell by {-gain.high:.3g} at least" if gain.high < 0 else f"rose by {gain.high:.3g} at most"
    evidence = (
        f"{what} {before:.3g} in the first {rounds} of {len(series)} rounds, {now.value:.3g} in the last {rounds}; it "
        f"{moved}"
    )
    remedy = "look at the other findings; then {} learner.learning_rate, or problems of medium difficulty"
    if gain.high < 0:
        return Finding("getting worse", WARNING, evidence, remedy.format("half of"))
    return Finding("nothing learned", WARNING, evidence, remedy.format("a larger"))


def silent_groups(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Finds advantage degeneracy: most groups are silent, since prompts are too easy or too hard.

    A pass rate near 0 or 1 is a finding too, however few groups are silent. Where the run also learns from groups of
    equal rewards, only the pass rate is checked.
    """
    silent, pass_rate = level(log[m.SILENT]), share_right(log)
    if log.learns_from_equal:
        return extreme_rate(log, rule)
    if silent is None:
        return silence(log, rule) or extreme_rate(log, rule)
    if not (silent.low > rule.silent or _risen_silence(log, silent, pass_rate, rule)):
        return extreme_rate(log, rule)
    right, wrong = level(log[m.ALL_RIGHT]), level(log[m.ALL_WRONG])
    if right is not None and wrong is not None:
        easy = right.value / max(right.value + wrong.value, 1e-9) > rule.easy
        evidence = f"{silent.value:.0%} of groups are silent: {right.value:.0%} all right, {wrong.value:.0%} all wrong"
    elif pass_rate is not None:
        easy = pass_rate.value > rule.easy
        evidence = f"{silent.value:.0%} of groups are silent"
    else:
        # Nothing says whether they are too hard or too easy.
        remedy = "read samples.jsonl; problems of medium difficulty, or normalization=dapo to replace silent groups"
        return Finding("no signal", WARNING, f"{silent.value:.0%} of groups are silent", remedy)
    return difficulty(evidence, easy, pass_rate.value if pass_rate else None, rule)


def _risen_silence(log: RunLog, silent: Interval, pass_rate: Interval | None, rule: DiagnosisRule) -> bool:
    """Tells whether the share of silent groups has risen far, without a high pass rate that would explain the rise."""
    rise = change(log[m.SILENT])
    succeeding = pass_rate is not None and pass_rate.high > rule.mastered
    return rise is not None and silent.low > rule.much_silence and rise.low > rule.more_silence and not succeeding


def stalled(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Finds a run that has learned, but not over its last half. This is no forecast."""
    what, series, _, unit = log.judged
    if len(series) < FEWEST_WITHOUT_PROGRESS or log.changing_prompts:
        return None
    since_start, lately, now, right = change(series), late_change(series), level(series), share_right(log)
    if since_start is None or lately is None or now is None or since_start.low <= rule.gain_left * unit:
        return None
    if lately.high > rule.gain_left * unit or (right and right.value > rule.solved):
        return None
    evidence = (
        f"{what} {now.value:.2f}; over the last half of the run it changed by {lately.value:+.3f} "
        f"[{lately.low:+.3f}, {lately.high:+.3f}]"
    )
    remedy = "look at the other findings; harder or easier problems, or another learner.learning_rate"
    return Finding("no gain lately", NOTE, evidence, remedy)


def extreme_rate(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Finds a pass rate that leaves nothing to learn from: problems that are solved, or far too hard."""
    pass_rate, silent = share_right(log), level(log[m.SILENT])
    if pass_rate is None:
        return None
    if not (pass_rate.low > rule.finished or pass_rate.high < rule.hopeless):
        return None
    evidence = f"pass rate {pass_rate.value:.3g} over the last {window_length(len(log[m.PASS_RATE]))} rounds"
    # Groups of equal rewards that are learned from need no replacing.
    many = not log.learns_from_equal and silent is not None and silent.value > rule.much_silence
    return difficulty(evidence, pass_rate.low > rule.finished, pass_rate.value, rule, silent=many)


def length_growth(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Finds completions that grow while answers do not improve."""
    length, (what, rewards, _, unit) = log[m.LENGTH], log.judged
    first, growth, gain = start(length), change(length), change(rewards)
    if first is None or growth is None or gain is None or not unit:
        return None
    if growth.low < rule.longer * first.value or improving(gain, rule, unit):
        return None
    evidence = f"length {first.value:.0f} → {first.value + growth.value:.0f} tokens, {what} {gain.value:+.2f}"
    remedy = "objective=dr_grpo, or task.reward.overlong=soft task.reward.overlong_buffer=64"
    return Finding("length without reward", WARNING, evidence, remedy)


def plateau(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Finds that the run is on its plateau: the forecast expects no more gain until `RunLog.horizon`.

    Returns None where prompts get harder, since the policy may learn while the pass rate does not rise.
    """
    if len(log.history) < 2 * FEWEST_ROUNDS or log.changing_prompts:
        return None
    ahead = forecast(log.history, log.horizon)
    chance, gain = ahead.chance(rule.gain_left), ahead.gain
    if chance >= UNLIKELY:
        return None
    evidence = (
        f"a gain of more than {rule.gain_left:g} until step {log.horizon:.0f} has probability {chance:.0%}; expected: "
        f"{gain.value:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]"
    )
    pass_rate = level(log[m.PASS_RATE])
    harder = "harder" if pass_rate is None or pass_rate.value > rule.easy else "easier"
    remedy = f"stop here (dynamics=adaptive dynamics.adaptive.stop_gain=0.02), or continue with {harder} problems"
    return Finding("on the plateau", NOTE, evidence, remedy)


def improving(gain: Interval, rule: DiagnosisRule, unit: float) -> bool:
    """Tells whether a change is surely an improvement, or may be one larger than `flat` pass rates of size `unit`."""
    return gain.low > 0 or gain.high > rule.flat * unit
