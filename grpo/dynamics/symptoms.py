"""The checks of a diagnosis: from a run's log to a finding, or nothing. Metrics that a log lacks are passed over."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.ndimage import median_filter

from grpo.dynamics.evidence import FEWEST_ROUNDS, change, difference, fall, late_change, level, paired, start
from grpo.dynamics.findings import CRITICAL, NOTE, WARNING, DiagnosisRule, Finding
from grpo.dynamics.forecast import forecast
from grpo.dynamics.history import lag
from grpo.dynamics.identify import Identification
from grpo.dynamics.run_log import RunLog, Series
from grpo.types import Interval

# In each half of a run, for held-out progress to be compared with training.
FEWEST_EVALUATIONS = 3


def reward_hacking(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """The coupling ratio, held-out progress per training progress, goes to 0 while the two drift apart."""
    if len(log.held_out) < 2 * FEWEST_EVALUATIONS or not len(log["pass_rate"]):
        return None
    training = paired(log["pass_rate"], log.held_out.steps)
    held_out = Series(training.steps, log.held_out.values[np.isin(log.held_out.steps, training.steps)])
    half = len(training) // 2
    if half < FEWEST_EVALUATIONS:
        return None
    gap = difference(training.values - held_out.values, half)
    learned, shown = (difference(each.values, half).value for each in (training, held_out))
    if gap.low < 0 or learned < rule.moved or shown > rule.coupling * learned:
        return None
    evidence = (
        f"from the first half of the run to the second the training pass rate rose by {learned:.2f}, the held-out "
        f"one by {shown:+.2f}; their gap by {gap.value:.2f} [{gap.low:.2f}, {gap.high:.2f}]"
    )
    remedy = "read samples.jsonl; objective.kl.coefficient=0.01, more problems, or a stricter reward"
    return Finding("reward hacking or overfitting", CRITICAL, evidence, remedy)


def part_gaming(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """A part of the reward rises while answers do not get better."""
    passed = change(log["pass_rate"])
    if passed is None or improving(passed, rule):
        return None
    parts = [name for name in log.series if name.startswith("reward/part/")] or ["reward/mean"]
    risen = {name: found for name in parts if (found := change(log[name])) and found.low > rule.moved}
    if not risen:
        return None
    name = max(risen, key=lambda each: risen[each].value)
    evidence = f"{name} rose by {risen[name].value:.2f}, the pass rate by {passed.value:+.2f}"
    part = name.removeprefix("reward/part/")
    return Finding("reward part gamed", WARNING, evidence, f"lower the weight of {part!r} in task.reward.parts")


def silent_groups(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Advantage degeneracy: nearly all groups are silent. Too easy and too hard prompts are told apart."""
    silent = level(log["groups/silent_fraction"])
    if silent is None or silent.low < rule.silent:
        return None
    right, wrong = level(log["groups/all_correct_fraction"]), level(log["groups/all_wrong_fraction"])
    passed = level(log["pass_rate"])
    if right is not None and wrong is not None:
        easy = right.value / max(right.value + wrong.value, 1e-9) > rule.easy
        evidence = f"{silent.value:.0%} of groups silent: {right.value:.0%} all right, {wrong.value:.0%} all wrong"
    else:
        easy = passed is not None and passed.value > rule.easy
        evidence = f"{silent.value:.0%} of groups silent"
    if easy and passed is not None and passed.value > rule.solved:
        return Finding("problems solved", NOTE, evidence, "stop here, or go on with harder problems")
    if easy:
        remedy = "harder problems, or normalization=dapo to replace silent groups"
        return Finding("prompts too easy", WARNING, evidence, remedy)
    return Finding("prompts too hard", WARNING, evidence, "easier problems, a larger dynamics.group_size, or "
                   "normalization=dapo to replace silent groups")  # fmt: skip


def entropy_collapse(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Policy concentration: entropy nearly gone, not because the problems are solved; graver when the KL to the
    reference rises with it."""
    name = "policy/entropy" if "policy/entropy" in log.series else "policy/sampler_entropy"
    first, now, passed = start(log[name]), level(log[name]), level(log["pass_rate"])
    if first is None or now is None or passed is None or first.value <= 0:
        return None
    if now.high > rule.entropy_kept * first.value or passed.high > rule.solved:
        return None
    gaining = late_change(log["pass_rate"])
    if gaining is not None and gaining.low > 0:
        return None
    distance = change(log["policy/reference_kl"])
    away = distance is not None and distance.low > 0
    evidence = f"entropy {first.value:.2f} → {now.value:.3f} nats at pass rate {passed.value:.2f}"
    if away:
        evidence += f"; KL to the reference rose by {distance.value:.3f}"
    remedy = "objective.clip_high=0.28 objective.entropy_coefficient=0.001, or a smaller learner.learning_rate"
    return Finding("entropy collapse", CRITICAL if away else WARNING, evidence, remedy)


def collapse(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Dynamical instability: the pass rate has come down from its best."""
    fallen = fall(log["pass_rate"])
    if fallen is None or fallen.high > -rule.collapse / 2 or fallen.value > -rule.collapse:
        return None
    evidence = f"pass rate {-fallen.value:.2f} below its best [{fallen.low:+.2f}, {fallen.high:+.2f}]"
    remedy = "dynamics.refresh_interval=1, half the learner.learning_rate, or dynamics=adaptive with its guard"
    return Finding("unstable", CRITICAL, evidence, remedy)


def gradients(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Steps skipped for NaN or Inf, spikes, or a norm that grows."""
    skipped, norm = level(log["learner/skipped_steps"]), log["learner/gradient_norm"]
    if skipped is not None and skipped.value > rule.skipped:
        evidence = f"{skipped.value:.0%} of the last steps had gradients that were NaN or Inf"
        return Finding("gradients not finite", CRITICAL, evidence, "learner.precision=float32, or a smaller "
                       "learner.learning_rate")  # fmt: skip
    positive = norm.values > 0
    values = norm.values[positive]
    # Norms are spread by factors, so it is their logarithm that is compared.
    grown = change(Series(norm.steps[positive], np.log(values)))
    if len(norm) >= 2 * FEWEST_ROUNDS and not len(values):
        return Finding("no gradient", CRITICAL, "every gradient norm is 0", "see the share of silent groups")
    if grown is None:
        return None
    around = median_filter(values, size=11, mode="nearest")
    spikes = float((values > rule.spike * around).mean())
    if spikes > rule.spikes:
        evidence = f"{spikes:.0%} of gradient norms are above {rule.spike:g} × the median of those around them"
        remedy = "learner.max_gradient_norm=0.5, or a smaller learner.learning_rate"
        return Finding("gradient spikes", WARNING, evidence, remedy)
    if grown.low < np.log(rule.growth):
        return None
    evidence = f"the gradient norm has grown {np.exp(grown.value):.3g}-fold"
    return Finding("growing gradients", WARNING, evidence, "half the learner.learning_rate")


def clipping(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Much of the batch is clipped away: the round's last steps no longer learn."""
    low, high = level(log["policy/clip_low_fraction"]), level(log["policy/clip_high_fraction"])
    side, worst = max((("low", low), ("high", high)), key=lambda pair: pair[1].low if pair[1] else -1.0)
    if worst is None or worst.low < rule.clipped:
        return None
    evidence = f"{worst.value:.0%} of tokens clipped on the {side} side"
    remedy = "a smaller dynamics.refresh_interval or learner.learning_rate"
    if side == "high":
        remedy += ", or objective.clip_high=0.28"
    return Finding(f"clipped {side}", WARNING, evidence, remedy)


def stale_sampler(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """The round's later steps learn from samples of a policy that is no longer theirs."""
    ess = level(log["policy/ess_fraction"])
    if ess is None or ess.high > rule.ess:
        return None
    evidence = f"importance weights leave {ess.value:.0%} of the samples effective"
    return Finding("stale sampler", WARNING, evidence, "a smaller dynamics.refresh_interval, or dynamics=adaptive")


def mismatch(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Sampler and learner disagree on the same tokens under the same weights. Where rounds are sampled ahead the
    weights are not the same: the gap then holds what was learned since, and says nothing."""
    gap, stale, interval = (
        level(log[name]) for name in ("mismatch/mean_abs", "staleness/mean", "plan/refresh_interval")
    )
    ahead = stale and interval and lag(stale.value, round(interval.value))
    if gap is None or gap.low < rule.mismatch or ahead:
        return None
    evidence = f"log-probabilities of sampler and learner differ by {gap.value:.2g} nats on average"
    return Finding("sampler mismatch", WARNING, evidence, "objective.correction.level=token, or "
                   "rollout.precision=float32")  # fmt: skip


def length_growth(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Completions grow, answers do not get better."""
    length, passed = log["completions/length_mean"], change(log["pass_rate"])
    first, grown = start(length), change(length)
    if first is None or grown is None or passed is None:
        return None
    if grown.low < rule.longer * first.value or improving(passed, rule):
        return None
    evidence = f"length {first.value:.0f} → {first.value + grown.value:.0f} tokens, pass rate {passed.value:+.2f}"
    remedy = "objective=dr_grpo, or task.reward.overlong=soft task.reward.overlong_buffer=64"
    return Finding("length without reward", WARNING, evidence, remedy)


def truncation(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Completions are cut off before they can answer, it does not get better, and nothing is learned."""
    shares, passed = log["completions/truncated_fraction"], change(log["pass_rate"])
    cut, moving = level(shares), late_change(shares)
    if cut is None or moving is None or passed is None:
        return None
    if cut.low < rule.truncated or moving.high < 0 or improving(passed, rule):
        return None
    evidence = f"{cut.value:.0%} of completions truncated, pass rate {passed.value:+.2f}"
    return Finding("truncated", WARNING, evidence, "a larger rollout.sampling.max_tokens, or task.reward.overlong=mask")


def grading(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Answers that no grade was found for."""
    names = ("completions/timed_out_fraction", "completions/failed_fraction")
    shares = {name: found for name in names if (found := level(log[name])) and found.value > rule.ungraded}
    if not shares:
        return None
    worst = max(shares, key=lambda name: shares[name].value)
    kind = worst.removeprefix("completions/").removesuffix("_fraction").replace("_", " ")
    evidence = f"{shares[worst].value:.0%} of answers {kind} while grading"
    return Finding("grading fails", WARNING, evidence, "task.reward.timeout_seconds=20 task.reward.workers=4, or mend "
                   "the reward function")  # fmt: skip


def oscillation(log: RunLog, found: Identification, rule: DiagnosisRule) -> Finding | None:
    """Dynamical instability to come: the fitted model is underdamped."""
    if found.fits[0].law.name != "oscillator" or found.damping_ratio.high >= 1:
        return None
    evidence = f"damping ratio ζ {found.damping_ratio}: the curve oscillates about its plateau"
    return Finding("underdamped", WARNING, evidence, "a smaller dynamics.refresh_interval or learner.learning_rate")


def plateau(log: RunLog, found: Identification, rule: DiagnosisRule) -> Finding | None:
    """The forecast sees nothing more to gain in the rest of the run, or in half as many steps again."""
    until = max(log.num_steps, int(1.5 * found.fits[0].history.steps[-1]))
    ahead = forecast(found, until).gain
    if ahead.high > rule.gain_left:
        return None
    gain = f"{ahead.value:+.3f} [{ahead.low:+.3f}, {ahead.high:+.3f}]"
    evidence = f"expected gain until step {until}: {gain} ({found.reason})"
    remedy = "stop here (dynamics=adaptive dynamics.adaptive.stop_gain=0.02), or go on with harder problems"
    return Finding("on the plateau", NOTE, evidence, remedy)


def improving(passed: Interval, rule: DiagnosisRule) -> bool:
    """Whether a change of pass rate is, or may well be, for the better."""
    return passed.low > 0 or passed.high > rule.flat


CHECKS: tuple[Callable[[RunLog, DiagnosisRule], Finding | None], ...] = (
    reward_hacking,
    part_gaming,
    silent_groups,
    entropy_collapse,
    collapse,
    gradients,
    clipping,
    stale_sampler,
    mismatch,
    length_growth,
    truncation,
    grading,
)
"""Each looks at the log alone."""

CURVE_CHECKS: tuple[Callable[[RunLog, Identification, DiagnosisRule], Finding | None], ...] = (oscillation, plateau)
"""Each looks at the laws of an identified reward curve."""
