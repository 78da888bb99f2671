"""This module diagnoses a run: it finds problems, with their evidence and a remedy.

It covers the four failure modes that a reward curve alone conflates (arXiv:2606.30789), and problems that users meet
daily. The paper prints no thresholds. Ours are chosen (`findings.DiagnosisRule`), and benchmarks/diagnosis.py measures
their rate of false alarms on healthy and flat runs, and of hits on failing runs. A check compares the bound of a 99 %
interval with its threshold, since one noisy round proves nothing.

benchmarks/results/dynamics.md says how often a finding was wrong, and which failures are found.

Findings that exclude each other never stand side by side.

A remedy leaves out what the run's configuration shows to be set already. It is made of alternatives, such as
"objective=dr_grpo, or task.reward.overlong=soft". An alternative that is set is left out. For a number that is set as
far as the advice goes, going further is advised.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from grpo.insight.diagnosis import episodes, progress, reward_parts, setbacks, swings, symptoms
from grpo.insight.diagnosis.findings import SEVERITIES, DiagnosisRule, Finding
from grpo.insight.diagnosis.no_reward import no_reward
from grpo.insight.diagnosis.symptoms import unanswered
from grpo.insight.logs.run_log import RunLog
from grpo.types import metrics as m

Check = Callable[[RunLog, DiagnosisRule], Finding | None]
# The held-out scores are no metric of a round. A log that lacks them is said to lack this.
HELD_OUT = "held-out scores"

CHECKS: dict[str, tuple[Check, Sequence[str | tuple[str, ...]]]] = {
    "reward hacking": (progress.reward_hacking, (m.PASS_RATE, HELD_OUT)),
    "memory": (progress.memorized, (m.PASS_RATE, HELD_OUT)),
    "reward parts": (reward_parts.part_gaming, (m.PASS_RATE, m.REWARD)),
    "share of answers": (reward_parts.answers_hardly_count, (m.PASS_RATE, m.REWARD)),
    "constant reward": (progress.constant_reward, ((m.REWARD, m.PASS_RATE),)),
    "end of rewards": (progress.reward_ended, ((m.REWARD, m.PASS_RATE), (m.LENGTH, m.GRADIENT_NORM, m.LEARNING_RATE))),
    "no progress": (progress.no_progress, ((m.REWARD, m.PASS_RATE),)),
    "stalled": (progress.stalled, ((m.REWARD, m.PASS_RATE),)),
    "too good": (reward_parts.solved_at_once, (m.LENGTH, m.PASS_RATE)),
    "silent groups": (progress.silent_groups, (m.SILENT,)),
    "entropy": (setbacks.entropy_collapse, ((m.ENTROPY, m.SAMPLER_ENTROPY), m.PASS_RATE)),
    "rising entropy": (setbacks.entropy_runs_off, ((m.ENTROPY, m.SAMPLER_ENTROPY), m.PASS_RATE)),
    "KL": (setbacks.divergence, (m.REFERENCE_KL,)),
    "reference": (setbacks.other_reference, (m.REFERENCE_KL,)),
    "breaking": (setbacks.broken, (m.PASS_RATE, tuple(setbacks.FORMS))),
    "instability": (setbacks.collapse, ((m.REWARD, m.PASS_RATE),)),
    "swings": (swings.swinging, ((m.REWARD, m.PASS_RATE),)),
    "steps": (setbacks.undoing, (m.COSINE,)),
    "learning rate": (symptoms.learning_rate, (m.LEARNING_RATE,)),
    "gradients": (symptoms.gradients, ((m.GRADIENT_NORM, m.SKIPPED),)),
    "signal": (symptoms.vanishing_signal, ((m.REWARD_STD, m.ADVANTAGE_STD),)),
    "clipping": (symptoms.clipping, ((m.CLIP_LOW, m.CLIP_HIGH),)),
    "stale sampler": (symptoms.stale_sampler, (m.ESS,)),
    "sampler mismatch": (symptoms.mismatch, (m.GAP,)),
    "length": (progress.length_growth, (m.LENGTH, (m.PASS_RATE, m.REWARD))),
    "short answers": (setbacks.shorter_and_worse, (m.LENGTH, m.PASS_RATE)),
    "reward by length": (reward_parts.bought_by_length, (m.LENGTH, m.REWARD)),
    "truncation": (symptoms.truncation, (m.TRUNCATED,)),
    "answers": (unanswered, (m.NO_ANSWER,)),
    "repetition": (symptoms.repetition, (m.REPETITION,)),
    "seconds": (symptoms.slow_rounds, (m.ROUND_SECONDS,)),
    "grading": (symptoms.grading, (tuple(symptoms.UNGRADED),)),
    "plateau": (progress.plateau, (m.PASS_RATE,)),
}
"""Each check has a name, a function and the metrics that it needs. One of several in parentheses is enough."""

OF_EPISODES: tuple[Check, ...] = (
    *(episodes.no_calls, episodes.given_up, episodes.unreadable_calls, episodes.failing_tools),
    *(episodes.out_of_turns, episodes.failing_episodes),
)
"""These checks find nothing where completions are single turns, so a log of such a run lacks nothing for them."""

EXCLUDED = {
    "constant reward": ("no signal", "no gradient", "nothing learned", "no gain lately", "on the plateau"),
    "no gradient": ("nothing learned", "no gain lately", "on the plateau"),
    "gradients not finite": ("nothing learned", "no gain lately", "on the plateau"),
    "learning rate ended": ("nothing learned", "no gain lately"),
    # A model that stays as it was goes on writing too much, or in another form.
    "slow adapters": (
        *("truncated", "no answers found", "prompts too hard", "nothing learned", "no gain lately"),
        "on the plateau",
    ),
    "no answers found": ("prompts too hard",),
    "out of turns": ("truncated",),
    "unstable": ("setback", "nothing learned", "getting worse", "no gain lately", "on the plateau", "prompts too hard"),
    "setback": ("nothing learned", "getting worse", "on the plateau"),
    "nothing learned": ("on the plateau",),
    "getting worse": ("no gain lately", "on the plateau"),
    "reward ended": ("nothing learned", "getting worse", "no gain lately", "on the plateau"),
    "reward hacking or overfitting": ("problems solved",),
    "steps undo each other": ("nothing learned", "getting worse", "no gain lately", "on the plateau"),
    "solved at once": ("problems solved", "shorter and worse", "no gain lately", "on the plateau"),
    "broken by a step": (
        *("unstable", "setback", "truncated", "no answers found", "prompts too hard", "entropy collapse", "repetition"),
        *("no gradient", "gradient spikes", "growing gradients", "no signal", "nothing learned", "no gain lately"),
        *("getting worse", "on the plateau", "shorter and worse", "length without reward"),
        *("reward hacking or overfitting", "wandering", "underdamped", "steps undo each other"),
    ),
}
"""Each finding maps to findings that are mere consequences of it, or deny it. Their remedies would be useless, or
opposite to its own."""
Settings = Mapping[str, Any]
# A choice of several keys, or a word for one → whether it is set already.
SET: dict[str, Callable[[Settings], bool]] = {
    "objective=dr_grpo": lambda settings: settings.get("objective.aggregation.level") == "constant",
    "normalization=dapo": lambda settings: bool(settings.get("rollout.refill.enabled")),
    "dynamics=adaptive": lambda settings: settings.get("dynamics.name") == "adaptive",
    "dynamics.refresh_interval=1": lambda settings: settings.get("dynamics.refresh_interval") == 1,
    "a smaller dynamics.refresh_interval": lambda settings: settings.get("dynamics.refresh_interval") == 1,
    "a smaller learner.warmup_steps": lambda settings: settings.get("learner.warmup_steps") == 0,
}
# These keys are advised to be raised to a number, or lowered to one.
RAISED = {"objective.kl.coefficient", "objective.clip_high", "objective.entropy_coefficient"}
LOWERED = {"learner.max_gradient_norm"}
OVERRIDE = re.compile(r"([a-z_]+(?:\.[a-z_]+)+)=([\w.]+)")
KEY, SHARED = re.compile(r"[a-z_]+(\.[a-z_]+)+$"), re.compile(r"a (smaller|larger) |half of ")
NOTHING_LEFT = "what would be advised is set already: look at the other findings, and read samples.jsonl"


def diagnose(log: RunLog, rule: DiagnosisRule | None = None) -> list[Finding]:
    """Runs all checks on a run's log. Returns the findings, the most severe first.

    A run without any reward gets that finding only, since all its other problems follow from it. In other
    runs, findings that another one excludes are left out (`exclusions`), and remedies that are set already (`advice`).
    """
    rule = rule or DiagnosisRule()
    if without_reward := no_reward(log):
        return [fitting(without_reward, log.settings)]
    log = progress.with_known_prompts(log, rule)
    checks = [*(check for check, _ in CHECKS.values()), *OF_EPISODES]
    findings = [finding for check in checks if (finding := check(log, rule))]
    findings = [fitting(finding, log.settings) for finding in compatible(findings)]
    return sorted(findings, key=lambda finding: -SEVERITIES.index(finding.severity))


def unchecked(log: RunLog) -> dict[str, str]:
    """Returns the checks that could not be made: name → what the log lacks, in words."""

    def missing(need: str | tuple[str, ...]) -> str:
        if need == HELD_OUT:
            return "" if len(log.held_out) else HELD_OUT
        names = (need,) if isinstance(need, str) else need
        return "" if any(len(log[name]) for name in names) else m.TABLE[names[0]].needed

    lacks = {name: next(filter(None, map(missing, needs)), "") for name, (_, needs) in CHECKS.items()}
    return {name: words for name, words in lacks.items() if words}


def compatible(findings: Iterable[Finding]) -> list[Finding]:
    """Returns the findings that no other one excludes, one of each name."""
    findings = [*{finding.name: finding for finding in findings}.values()]
    excluded = {name for finding in findings for name in EXCLUDED.get(finding.name, ())}
    return [finding for finding in findings if finding.name not in excluded]


def fitting(finding: Finding, settings: Settings) -> Finding:
    """Returns the finding with a remedy that names nothing that is set already."""
    clauses = [_fitting_clause(clause, settings) for clause in finding.remedy.split("; ")]
    return replace(finding, remedy="; ".join(filter(None, clauses)) or NOTHING_LEFT)


def _fitting_clause(clause: str, settings: Settings) -> str:
    alternatives = [part for part in re.split(r",? or |, ", clause) if part]
    left = [word for alternative in alternatives if (word := _fitting(alternative, settings))]
    if left == alternatives:
        return clause
    # In "a smaller A or B" the first words are those of both.
    if left and left[0] != alternatives[0] and (shared := SHARED.match(alternatives[0])) and KEY.match(left[0]):
        left[0] = shared.group() + left[0]
    return ", or ".join([", ".join(left[:-1]), left[-1]] if len(left) > 1 else left)


def _fitting(alternative: str, settings: Settings) -> str:
    """Returns an alternative as it is, with a number to go beyond, or "" if it is set already."""
    if any(words in alternative and is_set(settings) for words, is_set in SET.items()):
        return ""
    for key, value in OVERRIDE.findall(alternative):
        present = settings.get(key)
        if key in RAISED and isinstance(present, int | float) and present >= float(value):
            return alternative.replace(f"{key}={value}", f"a larger {key}{_than(present)}")
        if key in LOWERED and isinstance(present, int | float) and 0 < present <= float(value):
            return alternative.replace(f"{key}={value}", f"a smaller {key}{_than(present)}")
        if present is not None and str(present) == value:
            return ""
    return alternative


def _than(present: float) -> str:
    """Names the present value, unless all that is known of it is that it is set."""
    return f" than {present:g}" if np.isfinite(present) else ""
