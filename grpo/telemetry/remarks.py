"""What a single round's numbers already show to be useless. A diagnosis needs many rounds; this needs one."""

from __future__ import annotations

from collections.abc import Mapping


def remarks(metrics: Mapping[str, float]) -> dict[str, str]:
    """Sentences about one round by what they are about; `metrics` as `flatten` names them."""
    found = {}
    if metrics.get("completions/truncated_fraction") == 1.0:
        found["truncated"] = (
            "every completion was cut off at rollout.sampling.max_tokens before its end: raise it, or ask for "
            "shorter answers in task.prompt"
        )
    if metrics.get("completions/length_mean", 2.0) <= 1.0:
        found["empty"] = (
            "every completion is a single token, so the model ends before it answers: read samples.jsonl, and see "
            "task.prompt.chat and task.prompt.template"
        )
    if metrics.get("reward/mean") == 0.0 and metrics.get("reward/std") == 0.0:
        found["no reward"] = (
            "every reward is 0, so nothing was learned: read samples.jsonl, and see task.reward.parts, "
            "task.reward.extract and task.prompt, or take easier problems"
        )
    return found
