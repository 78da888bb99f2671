"""The nouns, in the order in which data becomes them: prompt, group, scored group, batch, report, statistics.

Every type is frozen. A later moment wraps an earlier one; nothing is filled in afterwards.

Axes have one meaning each, in every shape of the project:
    tokens      positions of one packed row, prompts and completions alike
    targets     completion tokens of one row: what is scored and learned from
    sequences   completions
    groups      prompts with their completions
"""

from grpo.types.learning import Batch, MicroBatch, StepReport, Tree
from grpo.types.rollout import Completion, Grade, GroupWithLogprobs, Problem, Prompt, RolloutGroup, ScoredGroup
from grpo.types.rounds import Collected, Decision, FinishedRound, Progress, RoundPlan, RoundStatistics, Verdict
from grpo.types.values import Interval, Mean, alike

__all__ = [
    "Batch",
    "Collected",
    "Completion",
    "Decision",
    "FinishedRound",
    "Grade",
    "GroupWithLogprobs",
    "Interval",
    "Mean",
    "MicroBatch",
    "Problem",
    "Progress",
    "Prompt",
    "RolloutGroup",
    "RoundPlan",
    "RoundStatistics",
    "ScoredGroup",
    "StepReport",
    "Tree",
    "Verdict",
    "alike",
]
