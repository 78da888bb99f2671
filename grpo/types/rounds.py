"""This module holds the types of a run: a round's plan, groups and statistics, the verdict on the run, its progress."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Generic, TypeVar

from grpo.types import metrics as m
from grpo.types.learning import StepReport
from grpo.types.rollout import ScoredGroup
from grpo.types.values import Mean

State = TypeVar("State")
"""This is the type of a scheduler's state: a frozen dataclass of plain values, or None for a scheduler without one. In
what a checkpoint has stored, it is a mapping of these values."""

ROUND = "round"
"""This key of `seconds` holds the wall-clock seconds of a whole round, beside the keys of its phases."""


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """A plan says how one round samples and learns.

    group_size            completions per prompt (G)
    refresh_interval      optimizer steps per round, that is between two refreshes of the sampling policy (τ)
    prompts_per_step      prompts in one optimizer step, over all ranks
    learning_rate_factor  factor that multiplies the configured learning-rate schedule
    passes                how often a round learns from the same samples (μ); it divides `refresh_interval`
    entropy_coefficient   coefficient of the entropy bonus where it is adapted, or None for the configured one
    entropy_bonus         whether that coefficient is applied

    >>> RoundPlan(group_size=8, refresh_interval=4, prompts_per_step=16).prompts_per_round
    64
    """

    group_size: int
    refresh_interval: int
    prompts_per_step: int
    learning_rate_factor: float = 1.0
    passes: int = 1
    entropy_coefficient: float | None = None
    entropy_bonus: bool = True

    @property
    def num_batches(self) -> int:
        """Returns the number of optimizer steps of one pass over the round's samples."""
        return -(-self.refresh_interval // self.passes)

    @property
    def prompts_per_round(self) -> int:
        """Returns the number of prompts in one round, over all ranks."""
        return self.prompts_per_step * self.num_batches


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verdict is the scheduler's judgement of the run after a round. By default the run continues.

    stop       the run ends without another round
    go_back    the learner returns to the newest checkpoint that is not later than `good_step`
    good_step  optimizer steps that the best policy so far had taken; its checkpoint is kept
    reason     why the run stops or goes back, or why the next plan is what it is
    """

    stop: bool = False
    go_back: bool = False
    good_step: int = 0
    reason: str = "as configured"


# A reason that begins so says that nothing has happened.
NOTHING_NEW = ("as configured", "as before", "nothing asks for a change")


def is_news(reason: str) -> bool:
    """Tells whether a verdict's reason has something to say, as it may where the plan stays: a rate is at fault.

    >>> is_news("the learning rate is too high"), is_news("as before")
    (True, False)
    """
    return bool(reason) and not reason.startswith(NOTHING_NEW)


@dataclass(frozen=True, slots=True)
class Decision(Generic[State]):
    """A decision is what the scheduler returns after a round: the next plan, a verdict, and the scheduler's state."""

    plan: RoundPlan
    verdict: Verdict
    state: State


@dataclass(frozen=True, slots=True)
class Collected:
    """This type holds what one rank collected for a round under `plan`.

    `steps` are the groups to learn from, one tuple for each optimizer step of a pass. `sampled` are all groups that
    this rank sampled and graded. The two differ under refilling, which replaces silent groups in `steps` and exchanges
    groups between ranks. `cursor` is the position of the stream of prompts after this round. `seconds` are those of a
    second thread that sampled and graded, if there is one; the loop's own clock measures everything else. `asked_first`
    is the number of completions per prompt that a rollout budget samples before it looks at any answer, or 0 without a
    budget.
    """

    steps: tuple[tuple[ScoredGroup, ...], ...]
    sampled: tuple[ScoredGroup, ...]
    plan: RoundPlan
    cursor: int
    seconds: Mapping[str, float] = field(default_factory=dict)
    asked_first: int = 0

    @property
    def groups(self) -> tuple[ScoredGroup, ...]:
        """Returns the groups of all steps, in the order of the steps."""
        return tuple(chain(*self.steps))


@dataclass(frozen=True, slots=True)
class RoundStatistics:
    """These are the measurements of one round, summed over ranks, which are logged and guide the scheduler.

    `reward_counts` maps (k, G) to the number of groups with k correct completions out of G, which is enough for every
    statistic of pass rates. Groups that could not be graded are left out, so it is empty when no group could be.
    `first_counts` is the same over each group's first completions where their answers decided how many more were
    sampled (a rollout budget); otherwise it is empty. The `means` over optimizer steps leave out skipped steps. A round
    is not `judged` if nothing told right completions from wrong ones, see `ScoredGroup.unjudged`.
    """

    round_index: int
    step: int
    plan: RoundPlan
    means: Mapping[str, Mean]
    reward_counts: Mapping[tuple[int, int], int]
    seconds: Mapping[str, float]
    reports: tuple[StepReport, ...]
    first_counts: Mapping[tuple[int, int], int] = field(default_factory=dict)
    judged: bool = True

    @property
    def unbiased_counts(self) -> Mapping[tuple[int, int], int]:
        """Returns the counts whose mean is an unbiased pass rate.

        Under a rollout budget the first answers decide which prompts get more completions, so the mean over all
        completions would be biased; the first completions alone are not.
        """
        return self.first_counts or self.reward_counts

    @property
    def lag(self) -> int:
        """Returns the optimizer steps from the weights that sampled the round to those at its beginning."""
        stale = self.means.get(m.STALENESS)
        return lag(stale.value if stale and stale.count else 0.0, len(self.reports))

    @property
    def sampled_at(self) -> int:
        """Returns the optimizer steps of the policy that sampled the round, which may have been cut short."""
        return max(0, self.step - len(self.reports) - self.lag)


def lag(staleness: float, interval: int) -> int:
    """Returns a round's lag: the number of optimizer steps by which the round was sampled ahead.

    The lag is computed from the mean staleness of the round's groups, of which (τ−1)/2 arises within the round.

    >>> lag(0.5, 2), lag(2.5, 2)
    (0, 2)
    """
    return max(0, round(staleness - (interval - 1) / 2))


@dataclass(frozen=True, slots=True)
class Progress(Generic[State]):
    """Progress says where a run stands between two rounds. A checkpoint holds it beside the learner's tensors.

    `cursor` is the number of prompts given out so far. `plan` is the next round's. `scheduler` is the scheduler's
    state.
    """

    round_index: int
    step: int
    cursor: int
    plan: RoundPlan
    scheduler: State


@dataclass(frozen=True, slots=True)
class FinishedRound:
    """A finished round bundles its statistics, its groups, the run's progress after it, and the verdict on the run."""

    statistics: RoundStatistics
    collected: Collected
    progress: Progress
    verdict: Verdict
