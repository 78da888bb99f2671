"""The nouns of sampling and grading: problem, prompt, completion, group, scored group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from grpo.types.values import alike

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
class GroupWithLogprobs:
    """A scored group with the log-probabilities that the loss needs besides the current ones.

    Each field holds one float32 tensor per completion, or nothing where the loss does not need it. `old_logprobs` are
    the learner's at the start of the round. The first step after a refresh has none, because there the current ones are
    the old ones, unless the KL stands in the reward. `reference_logprobs` are empty without a KL term.
    """

    scored: ScoredGroup
    old_logprobs: tuple[Tensor, ...] = ()
    reference_logprobs: tuple[Tensor, ...] = ()
