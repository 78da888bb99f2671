"""This module holds the checks of a diagnosis that look at the policy: its entropy, and its distance to the reference.

Each returns a finding or None.
"""

from __future__ import annotations

import numpy as np

from grpo.insight.diagnosis.evidence import change, late_change, level, start, window_length
from grpo.insight.diagnosis.findings import CRITICAL, WARNING, DiagnosisRule, Finding
from grpo.insight.logs.run_log import RunLog, Series

# The KL to the reference in this many first rows of the log shows whether the policy began as the reference.
FIRST_ROWS = 3


def entropy_of(log: RunLog) -> Series:
    """Returns the entropy over whole distributions where it was logged, and else that of the sampled tokens."""
    return log["policy/entropy" if "policy/entropy" in log.series else "policy/sampler_entropy"]


def entropy_collapse(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Finds policy concentration: entropy is nearly gone, but not because the problems are solved.

    The finding is critical when the KL to the reference rises as well.
    """
    entropy = entropy_of(log)
    first, now, pass_rate = start(entropy), level(entropy), level(log["pass_rate"])
    if first is None or now is None or pass_rate is None or first.value <= 0:
        return None
    if now.high > rule.entropy_kept * first.value or pass_rate.high > rule.solved:
        return None
    # Where the reward stands still, a pass rate that still rises is no reason to wait.
    rises = [rise for name in ("pass_rate", "reward/mean") if (rise := late_change(log[name])) is not None]
    if rises and all(rise.low > 0 for rise in rises):
        return None
    distance = change(log["policy/reference_kl"])
    away = distance is not None and distance.low > 0
    evidence = f"entropy {first.value:.2f} → {now.value:.3f} nats at pass rate {pass_rate.value:.2f}"
    if away:
        evidence += f"; KL to the reference rose by {distance.value:.3f}"
    remedy = "objective.clip_high=0.28, objective.entropy_coefficient=0.001, or a smaller learner.learning_rate"
    return Finding("entropy collapse", CRITICAL if away else WARNING, evidence, remedy)


def entropy_runs_off(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Finds a policy that becomes random: its entropy has multiplied, and answers do not get better lately."""
    entropy = entropy_of(log)
    first, rise, lately = start(entropy), change(entropy), late_change(log["pass_rate"])
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
    series = log["policy/reference_kl"]
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
    series = log["policy/reference_kl"]
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
