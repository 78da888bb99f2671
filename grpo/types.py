"""The nouns, in the order in which data becomes them: prompt, group, scored group, batch, report.

Every type is frozen. A later moment wraps an earlier one; nothing is filled in afterwards.

Axes, one meaning each, in every shape of the project:
    tokens      positions of one packed micro-batch, prompts and completions alike
    targets     completion tokens of one micro-batch: what is scored and learned from
    sequences   completions
    groups      prompts with their completions
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from grpo.values import Mean, alike

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Problem:
    """One row of a problem set: the question asked, and the answer that a grader compares with.

    `problem_id` is unique within its data set and the same in every run (for example ``"mawps-17"``).
    """

    problem_id: str
    question: str
    answer: str
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A problem as the model sees it. `token_ids` end where the model's answer begins. `visit` tells apart the times
    that the stream gives out this problem: the epoch, from 0, or its position in the stream of a curriculum."""

    problem: Problem
    token_ids: tuple[int, ...]
    visit: int = 0

    @property
    def prompt_id(self) -> str:
        """Identity of this visit of the problem, for example ``"mawps-17@0"``."""
        return f"{self.problem.problem_id}@{self.visit}"


@dataclass(frozen=True, slots=True)
class Completion:
    """What the sampler wrote after a prompt, end-of-sequence token included when it wrote one.

    `sampler_logprobs` are log-probabilities of `token_ids` under the distribution that was sampled from (temperature
    applied). `truncated` says that the token limit cut it off. `versions` are (policy version, its number of tokens) in
    their order: several only where weights were replaced meanwhile. Versions count optimizer steps.
    """

    token_ids: tuple[int, ...]
    sampler_logprobs: tuple[float, ...]
    text: str
    truncated: bool
    versions: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class RolloutGroup:
    """One prompt and its completions: as many as this group has, of policies `oldest_version` to `newest_version`."""

    prompt: Prompt
    completions: tuple[Completion, ...]
    oldest_version: int
    newest_version: int


@dataclass(frozen=True, slots=True)
class Grade:
    """What a grader says of one completion.

    `reward` is the weighted sum of `parts`; `correct` is the task's own criterion of success, which pass rates are made
    of; `outcome` is ``"graded"``, ``"timed_out"``, ``"failed"`` or ``"unparsable"`` (the answer, not the completion).
    `magnitude` is the sum of what was added up, each without its sign: where parts cancel, the reward's rounding error
    is a share of that.
    """

    reward: float
    correct: bool
    parts: Mapping[str, float]
    outcome: str = "graded"
    magnitude: float = 0.0


@dataclass(frozen=True, slots=True)
class ScoredGroup:
    """A rollout group with one grade per completion, in the same order.

    `included[i]` is False for a completion not to be learned from (an overlong one, when the task masks those): it
    still counts in its group's mean and standard deviation.
    """

    group: RolloutGroup
    grades: tuple[Grade, ...]
    included: tuple[bool, ...]

    @property
    def rewards(self) -> tuple[float, ...]:
        return tuple(grade.reward for grade in self.grades)

    @property
    def count(self) -> tuple[int, int]:
        """How many completions are correct, and of how many."""
        return sum(grade.correct for grade in self.grades), len(self.grades)

    @property
    def silent(self) -> bool:
        """All rewards equal but for rounding: every advantage is zero, whatever the normalization."""
        return alike(self.rewards, max((grade.magnitude for grade in self.grades), default=0.0))


@dataclass(frozen=True, slots=True)
class Collected:
    """What a round sampled under `plan`. `groups` are learned from, first step's first; `sampled` are all that were
    graded: the same, or more where silent groups were replaced. `cursor` is where the stream of prompts then stood.
    `seconds` are those of another thread that sampled and graded them; the loop's own clock has the rest."""

    groups: tuple[ScoredGroup, ...]
    sampled: tuple[ScoredGroup, ...]
    plan: RoundPlan
    cursor: int
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EvaluatedGroup:
    """A scored group with the log-probabilities that the loss needs besides the current ones.

    Each is one float32 tensor per completion, or empty where the loss does not need it: `old_logprobs` (the learner's
    at the start of the round) are left out for the first step after a refresh, where they are the current ones, unless
    the KL stands in the reward; `reference_logprobs` without a KL term.
    """

    scored: ScoredGroup
    old_logprobs: tuple[Tensor, ...] = ()
    reference_logprobs: tuple[Tensor, ...] = ()


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """What the scheduler decides for one round.

    group_size            completions per prompt (G)
    refresh_interval      optimizer steps per round, that is between two refreshes of the sampling policy (τ)
    prompts_per_step      prompts in one optimizer step, over all ranks
    learning_rate_factor  by which the configured schedule is multiplied
    stop                  no further round: `reason` says why
    rollback              the learner goes back to the newest checkpoint of a step up to `good_step` first
    good_step             optimizer steps of the policy that did best so far: such a checkpoint is kept
    """

    group_size: int
    refresh_interval: int
    prompts_per_step: int
    reason: str = "as configured"
    learning_rate_factor: float = 1.0
    stop: bool = False
    rollback: bool = False
    good_step: int = 0

    @property
    def settings(self) -> RoundPlan:
        """What it asks of the round: all but the reason and the step to fall back on."""
        return replace(self, reason="", good_step=0)

    @property
    def prompts_per_round(self) -> int:
        return self.prompts_per_step * self.refresh_interval


def split_steps(groups: Sequence, plan: RoundPlan) -> list[list]:
    """This rank's groups of a round, cut into its optimizer steps as evenly as they allow, in order."""
    steps = plan.refresh_interval
    edges = [round(index * len(groups) / steps) for index in range(steps + 1)]
    return [list(groups[a:b]) for a, b in pairwise(edges)]


@dataclass(frozen=True, slots=True)
class Tree:
    """A prompt and the completions that continue it, laid out one after another in a packed row.

    `start` is the first token of the prompt; `branches` are the input lengths of the completions (one less than their
    number of tokens: a last token predicts nothing). Each branch sees the prompt and itself, never its siblings.
    """

    start: int
    prompt_length: int
    branches: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.start + self.prompt_length + sum(self.branches)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One packed row, ready for one forward and backward pass.

    token_ids, position_ids   [tokens] int64
    trees                     which tokens see which
    predictors                [targets] position whose hidden state predicts the target
    targets                   [targets] int64 completion tokens
    sequence_index            [targets] which completion of this micro-batch a target belongs to
    advantages                [targets] the completion's advantage at each of its tokens
    weights                   [targets] share of each token in the step's loss: the step's add up to the aggregation's
    sampler_logprobs          [targets]
    old_logprobs              [targets] the learner's at the start of the round, or None where the current ones are
                              the old ones or the sampler's are taken for them
    reference_logprobs        [targets], or None without a KL term
    """

    token_ids: Tensor
    position_ids: Tensor
    trees: tuple[Tree, ...]
    predictors: Tensor
    targets: Tensor
    sequence_index: Tensor
    advantages: Tensor
    weights: Tensor
    sampler_logprobs: Tensor
    old_logprobs: Tensor | None = None
    reference_logprobs: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """This rank's share of one optimizer step. Every rank holds equally many micro-batches.
    `learning_rate_factor` is the plan's. `old_known` says whether the learner's log-probabilities at the start of the
    round are known: with objective.old_logprobs=sampler they are in the first step only."""

    micro_batches: tuple[MicroBatch, ...]
    learning_rate_factor: float = 1.0
    old_known: bool = True


@dataclass(frozen=True, slots=True)
class Interval:
    """A point estimate and its confidence interval, in the estimate's own unit."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


@dataclass(frozen=True, slots=True)
class StepReport:
    """Facts of one optimizer step, already summed over ranks. `applied` is False when non-finite
    gradients made the learner skip the update. `flops` are the operations that the model's forward and
    backward passes ask for (see `grpo.learner.flops`)."""

    step: int
    applied: bool
    gradient_norm: float
    learning_rate: float
    flops: float
    means: Mapping[str, Mean]


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
    """Where a run stands between two rounds: all that a checkpoint holds beside the learner's tensors. `cursor` is
    the number of prompts given out, `plan` the next round's and `scheduler` the scheduler's state."""

    round_index: int
    step: int
    cursor: int
    plan: RoundPlan
    scheduler: Mapping[str, Any]
