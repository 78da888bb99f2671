"""This module takes out of a remedy what a run's configuration shows to be set already.

A remedy is made of alternatives, such as "objective=dr_grpo, or task.reward.overlong=soft". An alternative that is set
is left out. For a number that is set as far as the advice goes, going further is advised.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from grpo.insight.diagnosis.findings import Finding

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
