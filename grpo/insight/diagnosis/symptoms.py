"""This module holds the checks of a diagnosis that look at gradients, engines and completions.

Each returns a finding or None. Some problems are so gross that a few rounds prove them, however short the run is. The
other checks of a diagnosis need 10 or 20 rounds to tell a trend from luck. Here nothing is estimated: a share of
completions or groups has to be near 1 in every single one of the last rounds.
"""

import numpy as np
from scipy.ndimage import median_filter

from grpo.config.optimizer import ADAPTER_RATE, SLOW_ADAPTER_RATE
from grpo.insight.diagnosis.evidence import (
    FEWEST_ROUNDS,
    change,
    late_change,
    level,
    share_right,
    start,
    window_length,
)
from grpo.insight.diagnosis.findings import CRITICAL, NOTE, WARNING, DiagnosisRule, Finding
from grpo.insight.logs.run_log import RunLog, Series
from grpo.types import metrics as m
from grpo.types.rounds import lag

# Above this share of answers without a grade, hardly anything is learned.
MOST_UNGRADED = 0.5
# These metrics count answers without a grade, and say in words what became of them.
UNGRADED = {
    m.FAILED: "failed while grading",
    m.TIMED_OUT: "timed out while grading",
    m.RAISED: "are in groups for which the reward function raised an exception",
    m.LATE: "are in groups that were given up at rollout.group_deadline_seconds",
}
# A share counts only if it comes from at least this many groups. If .65 of all groups were silent, 16 of 16 would be
# silent in one run of 1,000.
FEWEST_GROUPS = 16
# In a log without counts of groups, a share of completions needs this many rounds. A share of groups would need
# `FEWEST_GROUPS`, which is more than the `FEWEST_ROUNDS` looked at, so it never counts.
FEWEST_UNCOUNTED = 3


def gradients(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Finds bad gradients: steps skipped because of NaN or Inf, gradient norms that are all 0, spikes, or a growing
    norm."""
    skipped, norm = log[m.SKIPPED].values, _taught(log)
    late = skipped[-window_length(len(skipped)) :]
    # A skipped step is a fact and no estimate, so the few rounds of a run that it has ended are enough.
    if len(late) and late.mean() > rule.skipped:
        evidence = f"gradients were NaN or Inf in {(late > 0).mean():.0%} of the last {len(late)} rounds"
        return Finding("gradients not finite", CRITICAL, evidence, "learner.precision=float32, or a smaller "
                       "learner.learning_rate")  # fmt: skip
    positive = norm.values > 0
    values = norm.values[positive]
    # Norms vary by factors, so their logarithms are compared.
    growth = change(Series(norm.steps[positive], np.log(values)))
    late = norm.values[-window_length(len(norm)) :]
    if len(norm) >= 2 * FEWEST_ROUNDS and float((late == 0).mean()) > rule.zeros:
        evidence = f"{(late == 0).mean():.0%} of the last {len(late)} gradient norms are exactly 0"
        return Finding("no gradient", CRITICAL, evidence, f"look at {m.SILENT} and at {m.LEARNING_RATE}")
    if growth is None:
        return None
    around = median_filter(values, size=11, mode="nearest")
    spikes = float((values > rule.spike * around).mean())
    giants = int((values > rule.giant * around).sum())
    if spikes > rule.spikes or giants >= rule.giants:
        evidence = (
            f"{spikes:.1%} of gradient norms are above {rule.spike:g} × the median of those around them, and {giants} "
            f"above {rule.giant:g} ×"
        )
        remedy = "learner.max_gradient_norm=0.5, or a smaller learner.learning_rate"
        return Finding("gradient spikes", WARNING, evidence, remedy)
    if growth.low < np.log(rule.growth):
        return None
    evidence = f"the gradient norm has grown {np.exp(growth.value):.3g}-fold"
    return Finding("growing gradients", WARNING, evidence, "half of learner.learning_rate")


def _taught(log: RunLog) -> Series:
    """Returns the gradient norms of steps that have a group to learn from.

    Where all groups are silent, the gradient is 0, or that of the KL term alone.
    """
    norm, silent = log[m.GRADIENT_NORM], log[m.SILENT]
    idle = () if log.learns_from_equal else silent.steps[silent.values >= 1]
    taught = ~np.isin(norm.steps, idle)
    return Series(norm.steps[taught], norm.values[taught])


def learning_rate(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Finds a learning rate that has been nearly 0 for long, one that is still warming up after many rounds, or one at
    which adapters hardly learn."""
    rates, warmup = log[m.LEARNING_RATE].values, log.settings.get("learner.warmup_steps")
    rate = log.settings.get("learner.learning_rate")
    if log.settings.get("model.lora.rank") and isinstance(rate, float) and 0 < rate < SLOW_ADAPTER_RATE:
        evidence = f"adapters begin at zero, and at learner.learning_rate={rate:g} they hardly change the model"
        remedy = f"a larger learner.learning_rate; {ADAPTER_RATE:g} is the default of adapters"
        return Finding("slow adapters", WARNING, evidence, remedy)
    if len(rates) and isinstance(warmup, int) and warmup > log.num_steps > 0:
        evidence = f"it rises for learner.warmup_steps={warmup}, and the run has {log.num_steps} steps"
        return Finding("long warm-up", WARNING, evidence, "a smaller learner.warmup_steps")
    if len(rates) < 2 * FEWEST_ROUNDS or rates.max() <= 0:
        return None
    last = window_length(len(rates))
    if rates[-last:].max() < rule.rate_kept * rates.max():
        evidence = f"in the last {last} rounds it was below {rule.rate_kept:.0%} of its highest, {rates.max():.2g}"
        remedy = "stop here, or go on with a longer schedule (learner.schedule, num_steps)"
        return Finding("learning rate ended", WARNING, evidence, remedy)
    if (np.diff(rates) > 0).all() and len(rates) >= rule.longest_warmup:
        evidence = f"it has risen in each of {len(rates)} rounds and is {rates[-1]:.2g} now"
        return Finding("long warm-up", NOTE, evidence, "a smaller learner.warmup_steps")
    return None


def clipping(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Finds heavy clipping: much of the batch is clipped, so the round's last steps hardly learn."""
    low, high = level(log[m.CLIP_LOW]), level(log[m.CLIP_HIGH])
    side, worst = max((("low", low), ("high", high)), key=lambda pair: pair[1].low if pair[1] else -1.0)
    if worst is None or worst.low < rule.clipped:
        return None
    evidence = f"{worst.value:.0%} of tokens clipped on the {side} side"
    remedy = "a smaller dynamics.refresh_interval or learner.learning_rate"
    if side == "high":
        remedy += ", or objective.clip_high=0.28"
    return Finding(f"clipped {side}", WARNING, evidence, remedy)


def stale_sampler(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Finds a stale sampler: a round's later steps learn from samples of a policy that is too old."""
    ess = level(log[m.ESS])
    if ess is None or ess.high > rule.ess:
        return None
    evidence = f"importance weights leave {ess.value:.0%} of the samples effective"
    return Finding("stale sampler", WARNING, evidence, "a smaller dynamics.refresh_interval, or dynamics=adaptive")


def mismatch(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Finds a mismatch: sampler and learner disagree on the same tokens under the same weights.

    Returns None when rounds are sampled ahead: the weights then differ, and the gap includes what was learned since.
    """
    gap, stale, interval = (level(log[name]) for name in (m.GAP, m.STALENESS, m.INTERVAL))
    ahead = stale and interval and lag(stale.value, round(interval.value))
    if gap is None or gap.low < rule.mismatch or ahead:
        return None
    evidence = f"log-probabilities of sampler and learner differ by {gap.value:.2g} nats on average"
    return Finding("sampler mismatch", WARNING, evidence, "objective.correction.level=token, or "
                   "rollout.precision=float32")  # fmt: skip


def truncation(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Finds truncation: many completions are cut off, and their share does not fall, whatever the pass rate does.

    A share that has risen far above that of the first rounds is a finding even if it is not large yet, and a share near
    1 is one after a few rounds already.
    """
    if cut_off := mostly_cut_off(log, rule):
        return cut_off
    shares = log[m.TRUNCATED]
    share, moving, rise = level(shares), late_change(shares), change(shares)
    if share is None or moving is None or rise is None:
        return None
    much = share.low > rule.truncated and moving.high > 0
    if not much and rise.low < rule.more_truncated:
        return None
    evidence = f"{share.value:.0%} of completions are cut off, {share.value - rise.value:.0%} in the first rounds"
    # Where most completions are cut off, hardly any would be left to learn from.
    remedy = "a larger rollout.sampling.max_tokens" + (", or task.reward.overlong=mask" if share.value < 0.5 else "")
    return Finding("truncated", WARNING, evidence, remedy)


def vanishing_signal(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Finds rewards or advantages that hardly differ any more, so that nothing is learned from them."""
    pass_rate = share_right(log)
    if pass_rate is not None and pass_rate.value > rule.solved:
        return None
    for name, what in ((m.ADVANTAGE_STD, "advantages"), (m.REWARD_STD, "rewards")):
        first, now = start(log[name]), level(log[name])
        if first is not None and now is not None and now.high < rule.signal_kept * first.value:
            evidence = f"the standard deviation of {what} fell from {first.value:.2g} to {now.value:.2g}"
            remedy = f"look at {m.SILENT}; problems of medium difficulty, or normalization=dapo"
            return Finding("no signal", WARNING, evidence, remedy)
    return None


def repetition(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Finds that more and more completions repeat themselves."""
    share, rise = level(log[m.REPETITION]), change(log[m.REPETITION])
    if share is None or rise is None or share.low < rule.repeated or rise.low <= 0:
        return None
    evidence = f"{share.value:.0%} of completions repeat themselves, {share.value - rise.value:.0%} in the first rounds"
    return Finding("repetition", WARNING, evidence, "half of learner.learning_rate, or objective.kl.coefficient=0.01")


def slow_rounds(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Finds rounds that take longer and longer, by more than completions grow, while the plan stays the same."""
    seconds, length = log[m.ROUND_SECONDS], log[m.LENGTH]
    first, longer, grown, short = start(seconds), change(seconds), change(length), start(length)
    plan = (m.GROUP_SIZE, m.PROMPTS, m.INTERVAL)
    if first is None or longer is None or any(len(log[name]) and np.ptp(log[name].values) for name in plan):
        return None
    by_length = 1 + grown.value / short.value if grown is not None and short is not None and short.value else 1.0
    slower = 1 + longer.low / first.value if first.value > 0 else 1.0
    if slower < 1 + rule.longer or slower < (1 + rule.longer / 2) * by_length:
        return None
    evidence = f"a round took {first.value:.3g} s at first and takes {first.value + longer.value:.3g} s now"
    evidence += f", completions are {by_length:.2g} times as long" if len(length) else ""
    return Finding(
        "rounds take longer", NOTE, evidence, "look at memory, at the longest completions and at the graders"
    )


def grading(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Finds answers whose grading failed, timed out, or ended in an exception of the user's function.

    That an answer was not graded is a fact and no estimate, so the few rounds of a short run are enough.
    """
    late = {name: log[name].values[-window_length(len(log[name])) :] for name in UNGRADED}
    shares = {name: share for name, values in late.items() if len(values) and (share := values.mean()) > rule.ungraded}
    if not shares:
        return None
    worst = max(shares, key=lambda name: shares[name])
    evidence = f"{shares[worst]:.0%} of answers {UNGRADED[worst]}"
    remedy = "task.reward.timeout_seconds=20 task.reward.workers=4, or fix the reward function"
    if worst == m.RAISED:
        remedy = "fix the reward function, or let it return 0 where it means 0"
        if log[m.EPISODES_FAILED].values.any():
            evidence = f"{shares[worst]:.0%} of answers are in groups in which an episode failed"
            remedy = "fix the episode's code; a larger task.limits.seconds; task.limits.failed=truncate"
    if worst == m.LATE:
        remedy = "a longer rollout.group_deadline_seconds, or a smaller rollout.sampling.max_tokens"
    return Finding("grading fails", CRITICAL if shares[worst] > MOST_UNGRADED else WARNING, evidence, remedy)


def mostly_cut_off(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Finds that nearly all completions of each round are cut off.

    The finding is critical, or a warning where many of the completions that are cut off are right all the same.
    """
    share = throughout(log, m.TRUNCATED, rule.nearly_all)
    if share is None:
        return None
    severity = WARNING if _right_beyond(log, 1 - share, rule) else CRITICAL
    evidence = f"{share:.0%} of completions are cut off, and more than {rule.nearly_all:.0%} in each of the last rounds"
    remedy = "a larger rollout.sampling.max_tokens, or ask for shorter answers in task.prompt.template"
    if throughout(log, m.OUT_OF_ROOM, 0.5):
        remedy = "a larger model.max_length, which tools and environment fill"
    return Finding("truncated", severity, evidence, remedy)


def unanswered(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Finds that in nearly all completions of each round no answer is found.

    Returns None where completions are right without such an answer, by a custom reward, or are cut off before it.
    """
    share = throughout(log, m.NO_ANSWER, rule.nearly_all)
    if share is None or _right_beyond(log, 1 - share, rule) or mostly_cut_off(log, rule):
        return None
    evidence = f"no answer is found in {share:.0%} of completions"
    remedy = "read samples.jsonl; task.reward.extract=final, or ask for that form in task.prompt.template"
    return Finding("no answers found", CRITICAL, evidence, remedy)


def _right_beyond(log: RunLog, share: float, rule: DiagnosisRule) -> bool:
    """Tells whether the pass rate of the last rounds is above both 2 × `share` and the rule's `hopeless`."""
    pass_rates = log[m.PASS_RATE].values[-FEWEST_ROUNDS:]
    return len(pass_rates) > 0 and float(pass_rates.mean()) > max(2 * share, rule.hopeless)


def silence(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Finds that nearly all groups of each round are silent, or without a right answer, in a run of a few rounds."""
    rounds = len(log[m.SILENT])
    right, wrong = (log[name].values for name in (m.ALL_RIGHT, m.ALL_WRONG))
    silent = throughout(log, m.SILENT, rule.nearly_all, FEWEST_GROUPS)
    failed = throughout(log, m.ALL_WRONG, rule.nearly_all, FEWEST_GROUPS)
    if silent is None and failed is None:
        return None
    if silent is None:
        evidence = f"{failed:.0%} of groups hold no right answer in the {rounds} rounds so far"
        return difficulty(evidence, False, None, rule, silent=False)
    easy = len(right) > 0 and right.mean() > wrong.mean()
    pass_rate = float(log[m.PASS_RATE].values.mean()) if len(log[m.PASS_RATE]) else None
    return difficulty(f"{silent:.0%} of groups are silent in the {rounds} rounds so far", easy, pass_rate, rule)


def difficulty(evidence: str, easy: bool, passed: float | None, rule: DiagnosisRule, silent: bool = True) -> Finding:
    """Returns the finding that prompts are too easy or too hard, or that they are solved.

    The remedy advises to replace silent groups only where many groups are `silent`. Otherwise rewards differ though
    hardly any answer is right, so something else than right answers is rewarded, and a lower `correct_at` is advised.
    """
    replaced = ", or normalization=dapo to replace silent groups"
    if easy and passed is not None and passed > rule.solved:
        return Finding("problems solved", NOTE, evidence, "stop here, or continue with harder problems")
    if easy:
        return Finding("prompts too easy", WARNING, evidence, "harder problems" + (replaced if silent else ""))
    otherwise = ", or a lower task.reward.correct_at if what is rewarded counts as right"
    remedy = "easier problems, a larger dynamics.group_size" + (replaced if silent else otherwise)
    return Finding("prompts too hard", WARNING, evidence, remedy)


def throughout(log: RunLog, name: str, least: float, fewest: int = FEWEST_UNCOUNTED) -> float | None:
    """Returns the mean of a share over the last rounds, if it was above `least` in each of them, and else None.

    Also returns None if these rounds have fewer than `FEWEST_GROUPS` groups or, in a log without counts of groups, if
    they are fewer than `fewest`.
    """
    late = log[name].values[-FEWEST_ROUNDS:]
    if not len(late) or late.min() <= least:
        return None
    groups = sum(sum(counts.values()) for counts in log.counts[-len(late) :])
    enough = groups >= FEWEST_GROUPS if log.counts else len(late) >= fewest
    return float(late.mean()) if enough else None
