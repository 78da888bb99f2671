"""The nouns of a run: the plan of a round, what it collected, its statistics, the verdict on the run, its progress."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from grpo.types.learning import StepReport
from grpo.types.rollout import ScoredGroup
from grpo.types.values import Mean


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """What one round does.

    group_size            completions per prompt (G)
    refresh_interval      optimizer steps per round, that is between two refreshes of the sampling policy (τ)
    prompts_per_step      prompts in one optimizer step, over all ranks
    learning_rate_factor  by which the configured schedule is multiplied

    >>> RoundPlan(group_size=8, refresh_interval=4, prompts_per_step=16).prompts_per_round
    64
    """

    group_size: int
    refresh_interval: int
    prompts_per_step: int
    learning_rate_factor: float = 1.0

    @property
    def prompts_per_round(self) -> int:
        return self.prompts_per_step * self.refresh_interval


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the scheduler says of the run once a round is over. The default lets it go on.

    stop       there is no further round
    go_back    the learner returns to the newest checkpoint of a step up to `good_step`
    good_step  optimizer steps of the policy that did best so far; its checkpoint is kept
    reason     why the run stops or goes back, or why the next plan is as it is
    """

    stop: bool = False
    go_back: bool = False
    good_step: int = 0
    reason: str = "as configured"


@dataclass(frozen=True, slots=True)
class Decision:
    """What the scheduler returns after a round: the next plan, the verdict on the run, and its own next state."""

    plan: RoundPlan
    verdict: Verdict
    state: Any


@dataclass(frozen=True, slots=True)
class Collected:
    """What one rank sampled in a round under `plan`.

    `steps` are the groups to learn from, in one tuple for each optimizer step. `sampled` are all groups that were
    graded: the same ones, or more where silent groups were replaced. `cursor` is where the stream of prompts then
    stood. `seconds` are those of another thread that sampled and graded; the loop's own clock has the rest.
    """

    steps: tuple[tuple[ScoredGroup, ...], ...]
    sampled: tuple[ScoredGroup, ...]
    plan: RoundPlan
    cursor: int
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def groups(self) -> tuple[ScoredGroup, ...]:
        """The groups of all steps, first step's first."""
        return tuple(chain(*self.steps))


@dataclass(frozen=True, slots=True)
class RoundStatistics:
    """Facts of one round, summed over ranks: what the scheduler may decide on, and what is logged.

    `reward_counts` maps the number of correct completions and the group's size, (k, G), to how many groups had it:
    enough for every statistic of pass rates. Those of `means` that come from optimizer steps are over the applied ones.
    """

    round_index: int
    step: int
    plan: RoundPlan
    means: Mapping[str, Mean]
    reward_counts: Mapping[tuple[int, int], int]
    seconds: Mapping[str, float]
    reports: tuple[StepReport, ...]


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands between two rounds: all that a checkpoint holds beside the learner's tensors.

    `cursor` is the number of prompts given out, `plan` the next round's, and `scheduler` the scheduler's state.
    """

    round_index: int
    step: int
    cursor: int
    plan: RoundPlan
    scheduler: Any


@dataclass(frozen=True, slots=True)
class FinishedRound:
    """A round that is over: its facts, what it collected, where the run then stands, and the verdict on the run."""

    statistics: RoundStatistics
    collected: Collected
    progress: Progress
    verdict: Verdict
