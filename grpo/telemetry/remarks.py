"""This module warns of a run that a single round's numbers already show to be useless.

The diagnosis in `grpo.dynamics` needs many rounds; these remarks need one.
"""

from __future__ import annotations

from collections.abc import Mapping


def remarks(metrics: Mapping[str, float]) -> dict[str, str]:
    """Returns warnings about one round, by topic. `metrics` have the names that `flatten` gives them."""
    warnings = {}
    if metrics.get("completions/truncated_fraction") == 1.0:
        warnings["truncated"] = (
            "every completion was cut off at rollout.sampling.max_tokens: raise it, or ask for shorter answers in "
            "task.prompt"
        )
    if metrics.get("completions/length_mean", 2.0) <= 1.0:
        warnings["empty"] = (
            "every completion is a single token, so the model stops before it answers: read samples.jsonl, and check "
            "task.prompt.chat and task.prompt.template"
        )
    if metrics.get("reward/mean") == 0.0 and metrics.get("reward/std") == 0.0:
        warnings["no reward"] = (
            "every reward is 0, so nothing was learned: read samples.jsonl, and check task.reward.parts, "
            "task.reward.extract and task.prompt, or choose easier problems"
        )
    return warnings
