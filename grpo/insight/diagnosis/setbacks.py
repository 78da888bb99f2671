"""This module holds the checks of a diagnosis that ask whether a run has lost what it had learned, or may lose it.

Some look at rewards, others at the policy: its entropy, and its distance to the reference. Each returns a finding or
None.
"""

import numpy as np

from grpo.dynamics.history import SMOOTHED_ROUNDS
from grpo.dynamics.losses import Course, Fall, LossRule, fall_of_means
from grpo.dynamics.step_signs import FEWEST, harm, in_errors
from grpo.insight.diagnosis.evidence import (
    FEWEST_ROUNDS,
    FIRST_ROUNDS,
    Setback,
    change,
    fall,
    half_width_of_many,
    late_change,
    level,
    num_falls,
    setbacks,
    since_beginning,
    since_best,
    start,
    step_at,
    window_error,
    window_length,
)
from grpo.insight.diagnosis.findings import CRITICAL, NOTE, WARNING, DiagnosisRule, Finding
from grpo.insight.logs.run_log import RunLog, Series
from grpo.types import Interval
from grpo.types import metrics as m

LOSSES = LossRule()
# Steps have surely helped where their cosines sum up to more than this many standard errors, and surely harmed where
# the sum is below minus this.
SURELY = 2.0
# A fall of fewer wanders than this says little of a model whose steps did not surely harm.
WANDERS = 6.0
# A fall that lies mostly between this many rounds and the next ones is sudden.
AT_ONCE = 5
# Fewer completions than this may all be wrong by chance.
FEWEST_BROKEN = 16
# Where right answers are all gone within so many rounds, and for so many rounds, nothing else has to show it. At the
# rate before, so many answers since would have been right.
EARLY, LASTING, MISSED = 10, 5, 20
# Metric that shows that completions have another form → the words for it.
FORMS = {
    m.TRUNCATED: "of the completions {:.0%} were cut off before and {:.0%} since",
    m.NO_ANSWER: "of the completions {:.0%} held no answer before and {:.0%} since",
    m.SAMPLER_ENTROPY: "the entropy was {:.2g} nats per token before and is {:.2g} since",
}
_STEADIER = "dynamics.refresh_interval=1, half of learner.learning_rate, or dynamics=adaptive with its guard"
# The KL to the reference in this many first rows of the log shows whether the policy began as the reference.
FIRST_ROWS = 3


def broken(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Finds that a step broke the model: from one round to the next no answer is right any more, and stays so, and the
    completions have another form.

    Nothing is estimated: all right answers are gone, and since then a share of the completions has gone from few to
    nearly all, or the entropy to nearly 0. So two rounds are enough. If the first steps took all right answers, some
    rounds without any are enough, too, although the problems may have become harder instead. Where a held-out problem
    is still solved, no step broke the model.
    """
    series = log[m.PASS_RATE]
    right = np.flatnonzero(series.values > 0)
    if not len(right) or right[-1] == len(series) - 1 or log.changing_prompts:
        return None
    last, rate = series.steps[right[-1]], float(series.values[: right[-1] + 1].mean())
    since = log[m.NUM_COMPLETIONS].between(last + 1, np.inf).values
    if (len(since) and since.sum() < FEWEST_BROKEN) or log.held_out.between(last + 1, np.inf).values.any():
        return None
    signs = [sign for name in FORMS if (sign := _turned(log, name, last, rule))]
    early = not signs and right[-1] < EARLY and len(since) >= LASTING and rate * since.sum() > MISSED
    if rate <= rule.hopeless or not (signs or early):
        return None
    rates = log[m.LEARNING_RATE].between(last, last).values
    was = f" (it was {rates[0]:.2g})" if len(rates) else ""
    shown = "; ".join(signs) or f"all {since.sum():,.0f} since are wrong"
    evidence = f"{rate:.0%} of answers were right in the rounds to step {last:,.0f} and none since; {shown}"
    remedy = (
        f"begin again, or from a checkpoint before step {last:,.0f}, with a tenth of learner.learning_rate{was}, or "
        "with learner.warmup_steps"
    )
    order = "; if the problems come from easy to hard, shuffle them" if early else ""
    return Finding("broken by a step", CRITICAL, evidence, remedy + order)


def _turned(log: RunLog, name: str, last: float, rule: DiagnosisRule) -> str:
    """Says how a metric of `FORMS` changed after step `last`, if it went from one end of its range to the other."""
    series = log[name]
    before, after = series.values[series.steps <= last], series.values[series.steps > last]
    if not len(before) or not len(after):
        return ""
    mean = float(before.mean())
    has_risen = mean < 0.5 and after[-1] > rule.nearly_all
    turned = has_risen if name.endswith("_fraction") else after[-1] < rule.entropy_kept * mean
    return FORMS[name].format(mean, float(after[-1])) if turned else ""


def collapse(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Finds dynamical instability: the pass rate has fallen from its best by more than the luck of its best rounds.

    A fall from which the run has recovered, at least in part, is reported as a setback. Data of changing difficulty
    make a pass rate fall and rise too. So a loss is critical only for a run that is not above its start. It is a note
    where the curve has fallen as far several times.
    """
    what, series, _, unit = log.judged
    evidence = lost(log, rule)
    losses = (
        []
        if log.changing_prompts or not unit
        else [loss for loss in setbacks(series) if _is_loss(loss.change, rule, unit)]
    )
    surest = min(losses, key=lambda loss: loss.change.high, default=None)
    above = len(series) >= 2 * FEWEST_ROUNDS and bool(np.diff(_ends(series))[0] > 0)
    if surest and (above or not evidence) and (why := _ordinary(log, surest, rule)):
        remedy = "shuffle the problems, or raise dynamics.prompts_per_step: then the curve shows what is learned"
        return Finding("wandering", NOTE, f"the {what} {why}", remedy)
    if evidence:
        return Finding("unstable", WARNING if above else CRITICAL, evidence, _STEADIER)
    if surest is None:
        return None
    evidence = f"{what} {surest.change.value:+.2g} between steps {surest.best:g} and {surest.lowest:g}"
    if surest.lowest >= series.steps[-max(FEWEST_ROUNDS, len(series) // 20)]:
        # Nothing has been got back.
        return Finding("unstable", WARNING, evidence, _STEADIER)
    remedy = "see what changed then: a restart, the reward, the prompts; if nothing did, half of learner.learning_rate"
    return Finding("setback", WARNING, evidence, remedy)


def _ends(series: Series) -> tuple[float, float]:
    """Returns the means of the first and of the last `FEWEST_ROUNDS` rounds."""
    return float(series.values[:FEWEST_ROUNDS].mean()), float(series.values[-FEWEST_ROUNDS:].mean())


def _ordinary(log: RunLog, loss: Setback, rule: DiagnosisRule) -> str:
    """Says why a loss tells little of the model, if the curve has fallen as far several times, or if the steps helped
    all the while. Returns "" for other losses.

    Falls that the noise of rounds may explain are not counted. With cosines, a fall over many rounds, or within the
    curve's own wander, is ordinary unless steps surely harmed: what breaks a model without its steps does so at once.
    """
    series = log.judged.series
    noise = half_width_of_many(window_error(series.values) * 2**0.5, len(series))
    size, span = -loss.change.value, f"between steps {loss.best:g} and {loss.lowest:g}"
    deep = max(size / 2, noise)
    number, helped = num_falls(series, deep), in_errors(log[m.COSINE].between(loss.best, loss.lowest).values)
    if number >= rule.ordinary:
        return f"has fallen by {deep:.2g} or more {number} times, and risen in between"
    if helped > SURELY:
        return f"fell by {size:.2g} {span}, where steps helped ({m.COSINE} sums up to {helped:+.1f} errors)"
    slow = against_steps(log)
    if slow and helped > -SURELY and (_steepest(series, loss) < size / 2 or size < WANDERS * slow.wander):
        return f"fell by {size:.2g} {span}, as data that wander make it fall, and steps did not surely harm"
    return ""


def _steepest(series: Series, loss: Setback) -> float:
    """Returns the largest fall within a loss from `AT_ONCE` rounds to the next `AT_ONCE`."""
    first, last = np.searchsorted(series.steps, (loss.best, loss.lowest))
    near = series.values[max(first - FEWEST_ROUNDS, 0) : last + 1]
    if len(near) < 2 * AT_ONCE:
        return np.inf
    means = np.convolve(near, np.full(AT_ONCE, 1 / AT_ONCE), "valid")
    return float((means[:-AT_ONCE] - means[AT_ONCE:]).max())


def against_steps(log: RunLog) -> Fall | None:
    """Returns the fall of the mean pass rate with the cosines since, or None where rounds have no cosines."""
    series, cosines = log[m.PASS_RATE], log[m.COSINE]
    aligned = np.zeros(len(series))
    places = np.searchsorted(series.steps, cosines.steps)
    known = (places < len(series)) & np.isin(cosines.steps, series.steps) & np.isfinite(cosines.values)
    aligned[places[known]] = cosines.values[known]
    if np.count_nonzero(aligned) < FEWEST:
        return None
    return fall_of_means(Course(series.values, aligned))


def lost(log: RunLog, rule: DiagnosisRule) -> str:
    """Returns the evidence that a run is below its best rounds, first rounds or best evaluation, or "" if it is not.

    Where the training pass rate has risen, worse evaluations are another problem (`reward_hacking`). Where prompts
    change in difficulty, only evaluations can show a loss. With cosines, a fall that leaves something counts by its
    weight (`losses`), since harder prompts make a pass rate fall too.
    """
    if not log.changing_prompts and log.judged.unit and (evidence := _below(log, rule)):
        return evidence
    gain = change(log.judged.series)
    evaluations = log.held_out_history()
    held_out = since_best(evaluations) if evaluations else None
    if held_out is not None and _is_loss(held_out, rule) and (gain is None or gain.low <= 0):
        return f"held-out pass rate {-held_out.value:.2f} below its best evaluation"
    return ""


def _below(log: RunLog, rule: DiagnosisRule) -> str:
    """Returns the evidence that a run is below its best rounds or first rounds, or "" if it is not."""
    what, series, history, unit = log.judged
    best, beginning, slow = fall(series), since_beginning(history), against_steps(log)
    now, first = (part.mean() for part in (series.values[-FEWEST_ROUNDS:], series.values[:FIRST_ROUNDS]))
    by_steps = slow is not None and (best is None or -best.value < LOSSES.deep * (now - best.value))
    if slow and by_steps and slow.wander:
        if slow.size > LOSSES.slow_fall and slow.weight > rule.losing:
            return (
                f"{what} {slow.size:.2f} below its best, {slow.size / slow.wander:.1f} times as far as it wanders by "
                f"itself, while {m.COSINE} sums up to {slow.against:+.1f} standard errors"
            )
    elif best is not None and _is_loss(best, rule, unit) and not (slow and by_steps and slow.against > -SURELY):
        return f"{what} {-best.value:.2f} below its best [{-best.high:.2f}, {-best.low:.2f}]"
    partly = slow is not None and beginning is not None and -beginning.value < LOSSES.deep * first
    if beginning is not None and _is_loss(beginning, rule, unit) and not partly:
        return f"{what} {-beginning.value:.2f} below that of the first {FIRST_ROUNDS} rounds"
    return ""


def _is_loss(change: Interval, rule: DiagnosisRule, unit: float = 1.0) -> bool:
    return change.high <= -rule.collapse / 2 * unit and change.value <= -rule.collapse * unit


def shorter_and_worse(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Finds that completions became much shorter at one time, and that fewer were right as soon as they were.

    The time is where the mean length falls most from one window of `FEWEST_ROUNDS` rounds to the next. Pass rates are
    compared between just before a third of that fall and just after two thirds of it, so that what the run learns
    meanwhile hardly hides a loss.
    """
    length, pass_rate = log[m.LENGTH], log[m.PASS_RATE]
    if len(length) < 2 * FEWEST_ROUNDS or len(length) != len(pass_rate) or log.changing_prompts:
        return None
    means = np.convolve(length.values, np.full(FEWEST_ROUNDS, 1 / FEWEST_ROUNDS), "valid")
    at = int((means[:-FEWEST_ROUNDS] - means[FEWEST_ROUNDS:]).argmax()) + FEWEST_ROUNDS
    window = min(window_length(len(length)), at, len(length) - at)
    # The fall itself takes some rounds, which belong to neither side.
    near = length.values[at - window : at + window]
    before, after = near[: window // 2].mean(), near[-(window // 2) :].mean()
    if before <= 0 or after > (1 - rule.shorter) * before:
        return None
    smooth = np.convolve(near, np.full(SMOOTHED_ROUNDS, 1 / SMOOTHED_ROUNDS), "same")
    progress = (before - smooth) / (before - after)
    begun = int(np.flatnonzero(progress[:window] <= 1 / 3).max(initial=-1)) + 1
    ended = window + int(np.argmax(progress[window:] >= 2 / 3))
    loss = step_at(pass_rate.values, at - window + begun, at - window + ended)
    if loss is None or loss.high >= 0 or loss.value > -rule.moved:
        return None
    evidence = f"length {before:.0f} → {after:.0f} tokens about step {length.steps[at]:g}, pass rate {loss.value:+.2f}"
    remedy = "read samples.jsonl; a weaker penalty of length, or task.reward.overlong=keep"
    return Finding("shorter and worse", WARNING, evidence, remedy)


def undoing(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Finds that the loss rises at the ends of steps, as it does where the learning rate is too high for the batch.

    Where problems are solved, hardly any gradient is left for a step to follow.
    """
    series, pass_rate = log[m.COSINE], level(log[m.PASS_RATE])
    found = harm(series.values)
    if found is None or found.evidence < -np.log(rule.by_chance):
        return None
    if pass_rate is not None and pass_rate.value > rule.solved:
        return None
    number = len(series) - found.first
    evidence = (
        f"{m.COSINE} of the {number} rounds since step {series.steps[found.first]:g} sums up to {found.z:.1f} standard "
        f"errors; {rule.by_chance:.0%} of runs whose steps do not harm ever get this finding"
    )
    remedy = "half of learner.learning_rate, or a larger dynamics.group_size or dynamics.prompts_per_step"
    return Finding("steps undo each other", WARNING, evidence, remedy)


def entropy_of(log: RunLog) -> Series:
    """Returns the entropy over whole distributions where it was logged, and else that of the sampled tokens."""
    return log[m.ENTROPY if m.ENTROPY in log.series else m.SAMPLER_ENTROPY]


def entropy_collapse(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Finds policy concentration: entropy is nearly gone, but not because the problems are solved.

    The finding is critical when the KL to the reference rises as well.
    """
    entropy = entropy_of(log)
    first, now, pass_rate = start(entropy), level(entropy), level(log[m.PASS_RATE])
    if first is None or now is None or pass_rate is None or first.value <= 0:
        return None
    if now.high > rule.entropy_kept * first.value or (pass_rate.high > rule.solved and not log.partial):
        return None
    # Where the reward stands still, a pass rate that still rises is no reason to wait.
    rises = [rise for name in (m.PASS_RATE, m.REWARD) if (rise := late_change(log[name])) is not None]
    if rises and all(rise.low > 0 for rise in rises):
        return None
    distance = change(log[m.REFERENCE_KL])
    away = distance is not None and distance.low > 0
    evidence = f"entropy {first.value:.2f} → {now.value:.3f} nats at pass rate {pass_rate.value:.2f}"
    if away:
        evidence += f"; KL to the reference rose by {distance.value:.3f}"
    remedy = "objective.clip_high=0.28, objective.entropy_coefficient=0.001, or a smaller learner.learning_rate"
    return Finding("entropy collapse", CRITICAL if away else WARNING, evidence, remedy)


def entropy_runs_off(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Finds a policy that becomes random: its entropy has multiplied, and answers do not get better lately."""
    entropy = entropy_of(log)
    first, rise, lately = start(entropy), change(entropy), late_change(log[m.PASS_RATE])
    if first is None or rise is None or lately is None or lately.low > 0:
        return None
    if rise.low < max((rule.entropy_grown - 1) * first.value, rule.more_entropy):
        return None
    now = first.value + rise.value
    evidence = f"entropy {first.value:.2f} → {now:.2f} nats; the pass rate changed by {lately.value:+.2f} lately"
    remedy = "a smaller objective.entropy_coefficient, objective.clip_high or learner.learning_rate"
    return Finding("entropy runs off", WARNING, evidence, remedy)


def divergence(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Finds a KL to the reference that runs off: far above its earlier median, large and rising, or with jumps."""
    series = log[m.REFERENCE_KL]
    now, late = level(series), late_change(series)
    if now is None or late is None or now.value < rule.least_kl:
        return None
    length = window_length(len(series))
    before = float(np.median(series.values[:-length]))
    typical = float(np.median(series.values[-length:]))
    peaks = int((series.values > rule.giant_kl).sum())
    ran_off = typical > rule.kl_growth * max(before, rule.least_kl / rule.kl_growth) and typical > rule.least_kl
    if not (ran_off or peaks >= rule.giants or (now.low > rule.much_kl and late.low > 0)):
        return None
    evidence = f"KL to the reference {before:.3g} → {typical:.3g} nats (medians), at most {series.values.max():,.4g}"
    remedy = "half of learner.learning_rate, or objective.kl.coefficient=0.01"
    return Finding("KL runs off", WARNING, evidence, remedy)


def other_reference(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Finds a reference model from which the policy did not start: the KL is large in the first rows, and stays so.

    A log that begins in the middle of a run, as after a resume, proves nothing.
    """
    series = log[m.REFERENCE_KL]
    if len(series) < window_length(len(series)):
        return None
    before, after = float(np.median(series.values[:FIRST_ROWS])), float(np.median(series.values[FIRST_ROWS:]))
    row = float(np.median(np.diff(series.steps)))
    from_start = series.steps[0] <= 2 * row
    if not from_start or before < rule.least_kl or not before / 2 < after < 2 * before:
        return None
    evidence = f"KL to the reference {before:.3g} nats in the first rounds already, {after:.3g} since then"
    remedy = "compare the reference model and its chat template with the model that is trained"
    return Finding("far from the reference", WARNING, evidence, remedy)
