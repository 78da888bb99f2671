"""This package holds the data types, from a prompt over groups and batches to a round's statistics.

Every type is frozen. A later stage wraps the value of an earlier one; no field is filled in afterwards.

rollout     sampling and grading: problem, prompt, completion, group, grade
learning    a tree in a packed row, a micro-batch, a step's batch and report
rounds      a round's plan, groups and statistics; the verdict on the run
weights     in which forms weights travel, and what adapted weights consist of
values      a mean, an interval, and when numbers count as equal
metrics     the table of all numbers that a round logs
machine     what was measured of a machine
plain       rebuilds dataclasses from JSON
imported    finds functions that users wrote

An axis has one meaning in every shape of the project:
    tokens      positions of one packed row, of prompts and completions alike
    targets     completion tokens of one packed row, which are the tokens that are learned from; observed ones are none
    sequences   completions
    groups      prompts with their completions
"""

from grpo.types.learning import Batch, MicroBatch, StepReport, Tree
from grpo.types.machine import MachineConstants
from grpo.types.rollout import (
    Completion,
    EpisodeFacts,
    Grade,
    GroupWithLogprobs,
    Observed,
    Problem,
    Prompt,
    RolloutGroup,
    ScoredGroup,
)
from grpo.types.rounds import Collected, Decision, FinishedRound, Progress, RoundPlan, RoundStatistics, State, Verdict
from grpo.types.values import Interval, Mean, alike
