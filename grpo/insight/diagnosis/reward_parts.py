"""This module holds the checks of a diagnosis that ask what is rewarded: right answers, or something else.

Each returns a finding or None.
"""

from typing import NamedTuple

import numpy as np
from scipy import stats
from scipy.optimize import nnls

from grpo.insight.diagnosis.evidence import FEWEST_ROUNDS, change, late_change, start, window_length
from grpo.insight.diagnosis.findings import WARNING, DiagnosisRule, Finding
from grpo.insight.logs.run_log import RunLog, Series
from grpo.types import Interval
from grpo.types import metrics as m

# A part whose correlation with the pass rate is above this is the part that grades answers.
SAME = 0.999
# A mean that was smoothed before it was logged may leave its range by this.
SMOOTHED = 0.05
# Fitted weights show which parts are unpaid if they leave at most this share of the reward's variance unexplained.
UNEXPLAINED = 0.1
# A part with a smaller weight than this is unpaid.
UNPAID = 1e-6
# A pass rate may jump within this many rounds, from one mean of `JUMP_MEAN` rounds to another.
JUMP_ROUNDS, JUMP_MEAN = 5, 3


class Rise(NamedTuple):
    """A rise says how far a metric rose, how the pass rate changed meanwhile, and since when."""

    risen: Interval
    gained: Interval
    since: str


def unearned_rise(log: RunLog, name: str, rule: DiagnosisRule) -> Rise | None:
    """Finds that a metric rises while answers do not improve, over the whole run or lately. Returns the larger rise.

    The pass rate may gain a little meanwhile: `coupling` times the metric's rise, plus half of `flat`. Where prompts
    get harder or easier, the pass rate does not show whether answers improve, so the result is None.
    """
    rises = []
    if log.changing_prompts or _is_the_pass_rate(log[name], log[m.PASS_RATE]):
        return None
    for since, between in (("since the start", change), ("lately", late_change)):
        risen, gained = between(log[name]), between(log[m.PASS_RATE])
        if risen is None or gained is None or risen.low < rule.moved:
            continue
        if gained.high <= rule.coupling * risen.value + rule.flat / 2:
            rises.append(Rise(risen, gained, since))
    return max(rises, key=lambda rise: rise.risen.value, default=None)


def weights_of(log: RunLog) -> tuple[dict[str, float], bool]:
    """Returns the non-negative weights of the reward's parts that explain the mean reward best.

    Also returns whether the weights explain nearly all of the reward's variance, as they do unless a part was not
    logged. Only the last window is fitted, since weights may have changed during the run.
    """
    rewards = log[m.REWARD].values
    parts = [name for name in log.series if name.startswith(m.PART) and len(log[name]) == len(rewards)]
    if not parts or len(rewards) < FEWEST_ROUNDS:
        return {}, False
    # A part that is the whole reward is the sum of the others, if they explain it.
    others = [name for name in parts if np.ptp(log[name].values - rewards) > 0]
    weights, is_explained = _fitted(log, others) if others and len(others) < len(parts) else ({}, False)
    return (weights, True) if is_explained else _fitted(log, parts)


def _fitted(log: RunLog, parts: list[str]) -> tuple[dict[str, float], bool]:
    """Fits non-negative weights of these parts, and tells whether they explain nearly all of the reward's variance."""
    last_window = slice(-window_length(len(log[m.REWARD])), None)
    rewards = log[m.REWARD].values[last_window]
    weights, residual = nnls(np.array([log[name].values[last_window] for name in parts]).T, rewards)
    is_explained = residual**2 <= UNEXPLAINED * np.sum((rewards - rewards.mean()) ** 2)
    return dict(zip(parts, weights.tolist(), strict=True)), bool(is_explained)


def part_gaming(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Finds a part of the reward that rises while answers do not improve. If several do, the largest rise is reported.

    A part that is only logged and not paid is left out, and so is one whose rise has paid less than the gain of right
    answers has. The whole reward is checked too where it lies in [0, 1] as the pass rate does, or where there is no
    paid part.
    """
    weights, is_explained = weights_of(log)
    unpaid = {name for name, weight in weights.items() if is_explained and weight < UNPAID}
    names = [name for name in log.series if name.startswith(m.PART) and name not in unpaid]
    if not names or _within_0_and_1(log[m.REWARD]):
        names.append(m.REWARD)
    rises = {name: rise for name in names if (rise := unearned_rise(log, name, rule))}
    if is_explained and (graded_part := _graded(weights, log)):
        earned_gain = {name: weights[graded_part] * rise.gained.value for name, rise in rises.items()}
        paid_gain = {name: weights.get(name, np.inf) * rise.risen.value for name, rise in rises.items()}
        if m.REWARD in rises:
            paid_gain[m.REWARD] = rises[m.REWARD].risen.value - earned_gain[m.REWARD]
        rises = {name: rise for name, rise in rises.items() if paid_gain[name] > earned_gain[name]}
    if not rises:
        return None
    worst = max(rises, key=lambda name: rises[name].risen.value)
    risen, gained, since = rises[worst]
    what = "the reward" if worst == m.REWARD else f"the part {worst.removeprefix(m.PART)} of the reward"
    evidence = f"{what} rose by {risen.value:.3g} {since}, the pass rate by {gained.value:+.2f}"
    remedy = (
        "read samples.jsonl: something else than right answers is rewarded"
        if worst == m.REWARD
        else f"lower the weight of {worst.removeprefix(m.PART)!r} in task.reward.parts"
    )
    return Finding("reward part gamed", WARNING, evidence, remedy)


def answers_hardly_count(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Finds a reward that comes almost only from parts other than right answers.

    Returns None where the pass rate clearly gains, since right answers then count more and more.
    """
    (weights, _), late_gain = weights_of(log), late_change(log[m.PASS_RATE])
    graded_part = _graded(weights, log)
    if graded_part is None or len(weights) < 2 or late_gain is None or late_gain.low > rule.gain_left:
        return None
    late_parts = {name: weight * log[name].values[-window_length(len(log[name])) :].mean()
            for name, weight in weights.items()}  # fmt: skip
    total = sum(late_parts.values())
    # A part that is a multiple of the graded one pays for right answers too. Nothing tells the two apart.
    graded = sum(paid for name, paid in late_parts.items() if _is_the_pass_rate(log[name], log[m.PASS_RATE]))
    share = float(graded / total) if total > 0 else 1.0
    if share > rule.coupling:
        return None
    largest = max(late_parts, key=late_parts.__getitem__).removeprefix(m.PART)
    evidence = (
        f"right answers ({graded_part.removeprefix(m.PART)}) give {share:.0%} of the reward, most comes from {largest}"
    )
    return Finding("answers hardly count", WARNING, evidence, f"lower the weight of {largest!r} in task.reward.parts")


def bought_by_length(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Finds a reward that is bought by length: completions grow and the reward rises.

    In addition, either changes of length and reward correlate from round to round, or answers do not improve.
    """
    length, reward = log[m.LENGTH], log[m.REWARD]
    first, grown, rise = start(length), change(length), change(reward)
    if first is None or grown is None or rise is None or len(length) != len(reward):
        return None
    if grown.low < rule.longer * first.value or rise.low <= 0:
        return None
    longer = f"length {first.value:.0f} → {first.value + grown.value:.0f} tokens"
    steps = [np.diff(series.values) for series in (length, reward)]
    together = stats.pearsonr(*steps) if min(np.ptp(series) for series in steps) > 0 else None
    unearned = unearned_rise(log, m.REWARD, rule) if _within_0_and_1(reward) else None
    if together and together.statistic > rule.bought and together.pvalue < 1e-4:
        evidence = f"{longer}; its changes from round to round go with those of the reward"
        evidence += f" (correlation {together.statistic:.2f})"
    elif unearned:
        evidence = f"{longer}; {unearned.since} the reward rose by {unearned.risen.value:.2f}, the pass rate by "
        evidence += f"{unearned.gained.value:+.2f}"
    else:
        return None
    remedy = "read samples.jsonl; a reward that does not count words, or task.reward.overlong=soft"
    return Finding("reward bought by length", WARNING, evidence, remedy)


def solved_at_once(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Finds that within a few rounds nearly all answers became right and completions far shorter.

    A model seldom learns that fast, and a short answer that a reward takes for right is found that fast.
    """
    rate, length = log[m.PASS_RATE], log[m.LENGTH]
    if len(rate) < 2 * JUMP_ROUNDS or len(rate) != len(length) or log.partial:
        return None
    if rate.values[-JUMP_ROUNDS:].mean() <= rule.solved:
        return None
    window = np.full(JUMP_MEAN, 1 / JUMP_MEAN)
    rates, lengths = (np.convolve(series.values, window, "valid") for series in (rate, length))
    rises = rates[JUMP_ROUNDS:] - rates[:-JUMP_ROUNDS]
    jump = int(rises.argmax())
    # The rounds before the jump hold completions as they were.
    before, after = lengths[: jump + 1].mean(), lengths[jump + JUMP_ROUNDS :].mean()
    if rises[jump] < rule.at_once or after > rule.much_shorter * before:
        return None
    evidence = (
        f"about step {rate.steps[jump + JUMP_ROUNDS]:g} the pass rate rose by {rises[jump]:.2f} within {JUMP_ROUNDS} "
        f"rounds, and completions went from {before:.0f} to {after:.0f} tokens"
    )
    remedy = "read samples.jsonl: does the reward take something else for right answers? If not, stop here"
    return Finding("solved at once", WARNING, evidence, remedy)


def _within_0_and_1(series: Series) -> bool:
    """Tells whether a reward lies in [0, 1] as a pass rate does, up to `SMOOTHED`."""
    return bool(len(series) and series.values.min() >= -SMOOTHED and series.values.max() <= 1 + SMOOTHED)


def _graded(weights: dict[str, float], log: RunLog) -> str | None:
    """Returns the part of the reward that grades answers, or None if no part is known to."""
    return next((name for name in weights if _is_the_pass_rate(log[name], log[m.PASS_RATE])), None)


def _is_the_pass_rate(part: Series, pass_rate: Series) -> bool:
    """Tells whether a part of the reward is the pass rate itself, up to a factor."""
    rewards = np.maximum(part.values, 0)
    if len(part) != len(pass_rate) or len(part) < FEWEST_ROUNDS or min(np.ptp(rewards), np.ptp(pass_rate.values)) == 0:
        return False
    return bool(np.corrcoef(rewards, pass_rate.values)[0, 1] > SAME)
