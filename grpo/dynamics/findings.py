"""What a diagnosis is made of: findings, and the thresholds they come from."""

from __future__ import annotations

from dataclasses import dataclass

NOTE, WARNING, CRITICAL = "note", "warning", "critical"
SEVERITIES = (NOTE, WARNING, CRITICAL)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found. `remedy` holds configuration overrides, or says what to do without one."""

    name: str
    severity: str
    evidence: str
    remedy: str


@dataclass(frozen=True, slots=True)
class DiagnosisRule:
    """From where on something counts as wrong. Fractions are of 1, changes of pass rate in pass rate.

    silent            share of silent groups
    easy              share of all-correct groups among the silent ones from which prompts count as too easy
    solved            pass rate from which falling entropy and silent groups are what success looks like
    flat              a change of pass rate whose upper bound is below this, and which may be 0, is none
    moved             a change of pass rate, or of a part of the reward, above this is one
    coupling          progress on held-out problems per progress in training
    entropy_kept      entropy, as a share of its own start
    clipped           share of tokens clipped on one side
    longer            growth of completions, as a share of their first length
    truncated         share of completions cut off
    mismatch          mean |Δ log-probability| between sampler and learner of the same weights, nats
    ess               effective share of samples under the ratio of the round's policies
    spike, spikes     a gradient norm of so many medians is a spike; share of steps that may be one
    growth            growth of the gradient norm
    skipped           share of steps skipped for NaN or Inf
    ungraded          share of answers whose grading failed or timed out
    collapse          loss of pass rate against the run's best
    gain_left         expected gain until the run's end below which it is on its plateau
    """

    silent: float = 0.8
    easy: float = 0.5
    solved: float = 0.85
    flat: float = 0.08
    moved: float = 0.05
    coupling: float = 0.25
    entropy_kept: float = 0.1
    clipped: float = 0.15
    longer: float = 0.3
    truncated: float = 0.3
    mismatch: float = 0.1
    ess: float = 0.8
    spike: float = 10.0
    spikes: float = 0.05
    growth: float = 4.0
    skipped: float = 0.02
    ungraded: float = 0.02
    collapse: float = 0.1
    gain_left: float = 0.02
