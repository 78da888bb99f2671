"""What is wrong with a run, by which evidence, and what answers it.

The four failure modes that a reward curve alone conflates (arXiv:2606.30789) and what users meet daily. The paper
prints no thresholds, so they are chosen (`findings.DiagnosisRule`), and how often they give a false alarm on healthy
runs and hit on failing ones is measured in benchmarks/diagnosis.py. A check compares the bound of a 99 % interval
with its threshold: one noisy round says nothing.
"""

from __future__ import annotations

from grpo.dynamics.findings import SEVERITIES, DiagnosisRule, Finding
from grpo.dynamics.identify import identify
from grpo.dynamics.run_log import RunLog
from grpo.dynamics.symptoms import CHECKS, CURVE_CHECKS


def diagnose(log: RunLog, rule: DiagnosisRule | None = None) -> list[Finding]:
    """All findings, the gravest first."""
    rule = rule or DiagnosisRule()
    found = [check(log, rule) for check in CHECKS]
    curve = identify(log.history, log.momentum, log.exponent)
    if curve and curve.identified:
        found += [check(log, curve, rule) for check in CURVE_CHECKS]
    return sorted((each for each in found if each), key=lambda finding: -SEVERITIES.index(finding.severity))
