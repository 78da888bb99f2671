"""This module diagnoses a run: it finds problems, with their evidence and a remedy.

It covers the four failure modes that a reward curve alone conflates (arXiv:2606.30789), and problems that users meet
daily. The paper prints no thresholds. Ours are chosen (`findings.DiagnosisRule`), and benchmarks/diagnosis.py measures
their rate of false alarms on healthy and flat runs, and of hits on failing runs. A check compares the bound of a 99 %
interval with its threshold, since one noisy round proves nothing.

benchmarks/results/dynamics.md says how often a finding was wrong, and which failures are found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from grpo.dynamics.step_signs import COSINE
from grpo.insight.diagnosis import policy_signs, progress, reward_parts, setbacks, swings, symptoms
from grpo.insight.diagnosis.advice import fitting
from grpo.insight.diagnosis.exclusions import compatible
from grpo.insight.diagnosis.findings import SEVERITIES, DiagnosisRule, Finding
from grpo.insight.diagnosis.gross import unanswered
from grpo.insight.diagnosis.no_reward import no_reward
from grpo.insight.logs.run_log import RunLog

Check = Callable[[RunLog, DiagnosisRule], Finding | None]

CHECKS: dict[str, tuple[Check, Sequence[str]]] = {
    "reward hacking": (progress.reward_hacking, ("pass_rate", "held out")),
    "memory": (progress.memorized, ("pass_rate", "held out")),
    "reward parts": (reward_parts.part_gaming, ("pass_rate", "reward/mean")),
    "share of answers": (reward_parts.answers_hardly_count, ("pass_rate", "reward/mean")),
    "constant reward": (progress.constant_reward, ("reward/mean|pass_rate",)),
    "no progress": (progress.no_progress, ("reward/mean|pass_rate",)),
    "stalled": (progress.stalled, ("reward/mean|pass_rate",)),
    "too good": (reward_parts.solved_at_once, ("completions/length_mean", "pass_rate")),
    "silent groups": (progress.silent_groups, ("groups/silent_fraction",)),
    "entropy": (policy_signs.entropy_collapse, ("policy/entropy|policy/sampler_entropy", "pass_rate")),
    "rising entropy": (policy_signs.entropy_runs_off, ("policy/entropy|policy/sampler_entropy", "pass_rate")),
    "KL": (policy_signs.divergence, ("policy/reference_kl",)),
    "reference": (policy_signs.other_reference, ("policy/reference_kl",)),
    "breaking": (setbacks.broken, ("pass_rate", "|".join(setbacks.FORMS))),
    "instability": (setbacks.collapse, ("reward/mean|pass_rate",)),
    "swings": (swings.swinging, ("reward/mean|pass_rate",)),
    "steps": (setbacks.undoing, (COSINE,)),
    "learning rate": (symptoms.learning_rate, ("learner/learning_rate",)),
    "gradients": (symptoms.gradients, ("learner/gradient_norm|learner/skipped_steps",)),
    "signal": (symptoms.vanishing_signal, ("reward/std|advantages/std",)),
    "clipping": (symptoms.clipping, ("policy/clip_low_fraction|policy/clip_high_fraction",)),
    "stale sampler": (symptoms.stale_sampler, ("policy/ess_fraction",)),
    "sampler mismatch": (symptoms.mismatch, ("mismatch/mean_abs",)),
    "length": (progress.length_growth, ("completions/length_mean", "pass_rate")),
    "short answers": (setbacks.shorter_and_worse, ("completions/length_mean", "pass_rate")),
    "reward by length": (reward_parts.bought_by_length, ("completions/length_mean", "reward/mean")),
    "truncation": (symptoms.truncation, ("completions/truncated_fraction",)),
    "answers": (unanswered, ("completions/no_answer_fraction",)),
    "repetition": (symptoms.repetition, ("completions/repetition_fraction",)),
    "seconds": (symptoms.slow_rounds, ("time/round_seconds",)),
    "grading": (symptoms.grading, ("|".join(symptoms.UNGRADED),)),
    "plateau": (progress.plateau, ("pass_rate",)),
}
"""Each check has a name, a function and the metrics that it needs. Of metrics separated by a bar, one is enough."""


def diagnose(log: RunLog, rule: DiagnosisRule | None = None) -> list[Finding]:
    """Runs all checks on a run's log. Returns the findings, the most severe first.

    A run without any reward gets that finding only, since all its other problems follow from it. In other
    runs, findings that another one excludes are left out (`exclusions`), and remedies that are set already (`advice`).
    """
    rule = rule or DiagnosisRule()
    if without_reward := no_reward(log):
        return [fitting(without_reward, log.settings)]
    log = progress.with_known_prompts(log, rule)
    findings = [finding for check, _ in CHECKS.values() if (finding := check(log, rule))]
    findings = [fitting(finding, log.settings) for finding in compatible(findings)]
    return sorted(findings, key=lambda finding: -SEVERITIES.index(finding.severity))


def unchecked(log: RunLog) -> dict[str, str]:
    """Returns the checks that could not be made: name → the metric that the log lacks."""

    def is_logged(name: str) -> bool:
        return bool(len(log.held_out)) if name == "held out" else any(len(log[metric]) for metric in name.split("|"))

    missing_need = {
        name: next((need for need in needs if not is_logged(need)), None) for name, (_, needs) in CHECKS.items()
    }
    return {name: need.replace("|", " or ") for name, need in missing_need.items() if need}
