"""This module computes the schedule of the learning rate from its configuration."""

from __future__ import annotations

import math

from grpo.config.engines import LearnerConfig


def learning_rate_factor(step: float, learner: LearnerConfig, num_steps: float) -> float:
    """Returns the share of the peak learning rate at optimizer step `step` (from 0): linear warm-up, then the
    schedule."""
    if step < learner.warmup_steps:
        return (step + 1) / learner.warmup_steps
    progress = min(1.0, (step - learner.warmup_steps) / max(1, num_steps - learner.warmup_steps))
    shape = {"constant": 1.0, "linear": 1 - progress, "cosine": (1 + math.cos(math.pi * progress)) / 2}
    floor = learner.min_lr_fraction
    return floor + (1 - floor) * shape[learner.schedule]
