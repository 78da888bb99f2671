"""This module says which findings of a diagnosis exclude each other, so that they never stand side by side."""

from __future__ import annotations

from collections.abc import Iterable

from grpo.insight.diagnosis.findings import Finding

EXCLUDED = {
    "constant reward": ("no signal", "no gradient", "nothing learned", "no gain lately", "on the plateau"),
    "no gradient": ("nothing learned", "no gain lately", "on the plateau"),
    "gradients not finite": ("nothing learned", "no gain lately", "on the plateau"),
    "learning rate ended": ("nothing learned", "no gain lately"),
    "no answers found": ("prompts too hard",),
    "unstable": ("setback", "nothing learned", "no gain lately", "on the plateau", "prompts too hard"),
    "setback": ("nothing learned", "on the plateau"),
    "nothing learned": ("on the plateau",),
    "steps undo each other": ("nothing learned", "no gain lately", "on the plateau"),
    "solved at once": ("problems solved", "shorter and worse", "no gain lately", "on the plateau"),
    "broken by a step": (
        *("unstable", "setback", "truncated", "no answers found", "prompts too hard", "entropy collapse", "repetition"),
        *("no gradient", "gradient spikes", "growing gradients", "no signal", "nothing learned", "no gain lately"),
        *("on the plateau", "shorter and worse", "length without reward", "reward hacking or overfitting"),
        *("wandering", "underdamped", "steps undo each other"),
    ),
}
"""Each finding maps to findings that are mere consequences of it, or deny it. Their remedies would be useless, or
opposite to its own."""


def compatible(findings: Iterable[Finding]) -> list[Finding]:
    """Returns the findings that no other one excludes."""
    findings = list(findings)
    excluded = {name for finding in findings for name in EXCLUDED.get(finding.name, ())}
    return [finding for finding in findings if finding.name not in excluded]
