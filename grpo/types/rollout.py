"""This module holds the types of sampling and grading: problem, prompt, completion, group, grade, scored group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from grpo.types.values import alike

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem is one entry of a data set: a question, and the answer with which a grader compares completions.

    `problem_id` is unique within its data set and the same in every run (for example ``"mawps-17"``). `messages`
    are the chat messages (``{"role": …, "content": …}``) that ask the question, if the data set has any; `question` is
    then the text of the last message. `source` names the problem's origin in a task with several sources. `answer` is
    "" in data without answers, where no part of the reward needs one. `cell` is the answer as the data have it where
    that is no text: a number, a truth value, or a list or mapping, which is JSON as `answer`.
    """

    problem_id: str
    question: str
    answer: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    messages: tuple[Mapping[str, str], ...] = ()
    source: str = ""
    cell: Any = None

    @property
    def own_answer(self) -> Any:
        """Returns the answer for functions that know its form: a list or mapping as the data have it, else a text."""
        return self.cell if isinstance(self.cell, list | dict) else self.answer

    @property
    def typed_answer(self) -> Any:
        """Returns the answer as the data have it, as TRL passes it to rewards and environments."""
        return self.answer if self.cell is None else self.cell


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt is a problem as the model sees it. `token_ids` end where the model's answer begins.

    `visit` differs each time the stream gives out this problem. It is the epoch, from 0, or under a curriculum the
    prompt's position. `position` counts the prompts that all ranks were given before; held-out prompts have none.
    `turn` counts the model's earlier turns in the same episode.
    """

    problem: Problem
    token_ids: tuple[int, ...]
    visit: int = 0
    position: int = 0
    turn: int = 0

    @property
    def prompt_id(self) -> str:
        """Returns the identity of this visit of the problem, for example ``"mawps-17@0"``. A later turn has its number
        behind it."""
        return f"{self.problem.problem_id}@{self.visit}{f'.{self.turn}' if self.turn else ''}"


@dataclass(frozen=True, slots=True)
class Observed:
    """Observed tokens are those that a tool or an environment wrote between the tokens of a completion.

    They stand before the completion's token number `at`. The model read them and did not write them, so they are
    inputs of the learner and never its targets. If the history of a conversation was rewritten there, only the first
    `keep` tokens of prompt and completion are still before them; None keeps all.
    """

    at: int
    token_ids: tuple[int, ...]
    keep: int | None = None


@dataclass(frozen=True, slots=True)
class EpisodeFacts:
    """The facts of an episode say what happened in the turns of a completion.

    `messages` is the conversation as it was in the end, in the words of chat templates. `opening` of them stood before
    the model's first turn, and the model has written those at the places `written`. `rewards` are what the episode
    itself returned, by name, and `state` is what its environment held at the end.
    `ended` is "" for an episode that came to its own end, or the limit that ended it: "turns", "tokens", "room" for
    model.max_length, or, where failures count as cut off, "seconds" and "error".
    `error` says why it failed, or is "". `seconds` is the time that tools and environment took. `shown_tools` says
    whether the model was shown any tool.
    """

    messages: tuple[Mapping[str, Any], ...] = ()
    opening: int = 0
    written: tuple[int, ...] = ()
    rewards: Mapping[str, float] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)
    turns: int = 1
    calls: int = 0
    failed_calls: int = 0
    unreadable_calls: int = 0
    branches: int = 1
    seconds: float = 0.0
    ended: str = ""
    error: str = ""
    shown_tools: bool = True


@dataclass(frozen=True, slots=True)
class Completion:
    """A completion is what the sampler wrote after a prompt. It includes the end-of-sequence token if one was written.

    A completion of several turns is an episode. `token_ids` are those of all turns, and `observed` are the tokens
    between them that the model did not write. `text` is then the last turn's, and `episode` has the facts.

    `sampler_logprobs` are log-probabilities of `token_ids` under the distribution that was sampled from (temperature
    applied). `truncated` says that the token limit cut the completion off. `late` says that its group was given up
    at `rollout.group_deadline_seconds`. `versions` lists (policy version, number of
    tokens that it wrote) in order. It has several entries only when weights were replaced while the completion was
    written. A version is the number of optimizer steps taken.

    The policy after 7 steps wrote three of these tokens. Then the sampler was refreshed, and the policy after 9 steps
    wrote the other two:

    >>> completion = Completion((11, 12, 13, 14, 2), (-0.1,) * 5, "x = 4", truncated=False, versions=((7, 3), (9, 2)))
    >>> [version for version, count in completion.versions for _ in range(count)]
    [7, 7, 7, 9, 9]
    """

    token_ids: tuple[int, ...]
    sampler_logprobs: tuple[float, ...]
    text: str
    truncated: bool
    versions: tuple[tuple[int, int], ...] = ()
    observed: tuple[Observed, ...] = ()
    episode: EpisodeFacts | None = None
    late: bool = False

    @classmethod
    def given_up(cls, policy_version: int) -> Completion:
        """Returns what stands for a completion that was not finished when its group was given up: nothing."""
        return cls((), (), "", False, ((policy_version, 0),), late=True)

    @property
    def num_observed(self) -> int:
        """Returns the number of observed tokens."""
        return sum(len(piece.token_ids) for piece in self.observed)

    def branches(self, prompt: tuple[int, ...]) -> list[tuple[tuple[int, ...], Completion]]:
        """Splits a completion where its history was rewritten. Returns (prompt, completion) of each branch: their
        tokens together are this completion's, and none of them has a history that was rewritten.

        The first two tokens were written after the prompt (10, 11). Then only the prompt's first token was kept:

        >>> rewritten = Completion((1, 2, 3), (-1.0,) * 3, "", False, observed=(Observed(2, (7, 8), keep=1),))
        >>> [(prompt, branch.token_ids, branch.observed) for prompt, branch in rewritten.branches((10, 11))]
        [((10, 11), (1, 2), ()), ((10, 7, 8), (3,), ())]
        """
        branches: list[tuple[tuple[int, ...], Completion]] = []
        context, base, own, first, done = list(prompt), prompt, [], 0, 0
        whole_prompt = True
        # The end closes the last branch, as a rewritten history would.
        for piece in (*self.observed, Observed(len(self.token_ids), (), keep=0)):
            context += self.token_ids[done : piece.at]
            done = piece.at
            if piece.keep is None:
                own.append(replace(piece, at=piece.at - first))
                context += piece.token_ids
                continue
            if first < piece.at:
                logprobs = self.sampler_logprobs[first : piece.at]
                tokens = self.token_ids[first : piece.at]
                branches.append((base, replace(self, token_ids=tokens, sampler_logprobs=logprobs, observed=(*own,))))
            context = [*context[: piece.keep], *piece.token_ids]
            # Tokens that are kept beyond the prompt are read again. They are no targets a second time. A history that
            # once lost the prompt's end does not begin with the prompt, however much is kept of it later.
            whole_prompt = whole_prompt and piece.keep >= len(prompt)
            again = tuple(context[len(prompt) :]) if whole_prompt else ()
            base = prompt if again else tuple(context)
            own, first = [Observed(0, again)] if again else [], piece.at
        return branches

    @property
    def whole(self) -> tuple[int, ...]:
        """Returns the tokens after the prompt in the order in which the model read them, observed ones too. The
        history must not have been rewritten.

        >>> Completion((1, 2, 3), (-1.0,) * 3, "", False, observed=(Observed(2, (7, 8)),)).whole
        (1, 2, 7, 8, 3)
        """
        if not self.observed:
            return self.token_ids
        tokens: list[int] = []
        done = 0
        for piece in self.observed:
            tokens += (*self.token_ids[done : piece.at], *piece.token_ids)
            done = piece.at
        return (*tokens, *self.token_ids[done:])


@dataclass(frozen=True, slots=True)
class RolloutGroup:
    """A rollout group is one prompt with its completions. Groups may differ in their number of completions.

    The tokens were written by the policy versions from `oldest_version` to `newest_version`.
    """

    prompt: Prompt
    completions: tuple[Completion, ...]
    oldest_version: int
    newest_version: int

    @property
    def given_up(self) -> bool:
        """Tells whether completions were still missing at the deadline of the group."""
        return any(completion.late for completion in self.completions)

    @property
    def mean_length(self) -> float:
        """Returns the mean number of tokens of the completions."""
        return sum(len(completion.token_ids) for completion in self.completions) / len(self.completions)


NOT_THEIR_FAULT = ("unparsable", "unanswered", "raised", "late")
"""These outcomes of grading say nothing about completions, so nothing is learned from their group."""


@dataclass(frozen=True, slots=True)
class Grade:
    """A grade is the grader's result for one completion.

    `reward` is the weighted sum of `parts`. `correct` is the task's own criterion of success, from which pass rates are
    computed. `outcome` is ``"graded"``, ``"timed_out"``, ``"failed"``, ``"unparsable"``, ``"unanswered"``,
    ``"raised"`` or ``"late"``. Unparsable is the problem's own answer, not the completion. Unanswered is a request to a
    server, raised is an exception of the user's own function, and late is a group that was given up. `magnitude` is the
    sum of the absolute values that were added up. When parts cancel, the reward's rounding error is proportional to it
    (see `grpo.types.values.alike`). `answered` says whether the reward found an answer in the completion. It is None
    when the reward looks for none.
    """

    reward: float
    correct: bool
    parts: Mapping[str, float]
    outcome: str = "graded"
    magnitude: float = 0.0
    answered: bool | None = None


@dataclass(frozen=True, slots=True)
class ScoredGroup:
    """A scored group is a rollout group with one grade per completion, in the same order.

    `included[i]` is False for a completion that is not learned from, such as an overlong one when the task masks those,
    or one of a group that could not be graded (see `spoilt`). Such a completion still counts in its group's mean and
    standard deviation.
    """

    group: RolloutGroup
    grades: tuple[Grade, ...]
    included: tuple[bool, ...]

    @property
    def rewards(self) -> tuple[float, ...]:
        """Returns the reward of each completion."""
        return tuple(grade.reward for grade in self.grades)

    @property
    def count(self) -> tuple[int, int]:
        """Returns the number of correct completions, and the number of all completions."""
        return sum(grade.correct for grade in self.grades), len(self.grades)

    @property
    def spoilt(self) -> bool:
        """Says whether grading failed for a reason outside the completions, so that the rewards are only placeholders.
        Nothing is learned from such a group, and it counts in no reward, σ or pass rate of a step, a round or an
        evaluation."""
        return any(grade.outcome in NOT_THEIR_FAULT for grade in self.grades)

    @property
    def outcome(self) -> tuple[int, int]:
        """Returns what the group says about its problem: `count`, or (0, 0) for a spoilt group."""
        return (0, 0) if self.spoilt else self.count

    @property
    def unjudged(self) -> bool:
        """Says whether nothing tells right completions from wrong ones: the problem has no answer, no grader of its own
        judges them, and the rewards are not only 0, 1 and −1."""
        known = self.group.prompt.problem.answer or self.judged_without_answer
        return not known and any(abs(reward) not in (0.0, 1.0) for reward in self.rewards)

    @property
    def judged_without_answer(self) -> bool:
        """Says whether the reward judges the answers to a problem that names none, as some of reasoning_gym's
        generators do."""
        return not self.group.prompt.problem.answer and any(grade.answered is not None for grade in self.grades)

    @property
    def silent(self) -> bool:
        """Says whether all rewards are equal up to rounding. Every advantage is then zero, unless the normalization
        looks at parts of the reward or beyond the group."""
        return alike(self.rewards, max((grade.magnitude for grade in self.grades), default=0.0))


@dataclass(frozen=True, slots=True)
class GroupWithLogprobs:
    """This type adds to a scored group the log-probabilities that the loss needs besides the current ones.

    Each field holds one float32 tensor per completion, or is empty when the loss does not need it. `old_logprobs` are
    the learner's at the start of the round. They are empty for the first step after a refresh, where they equal the
    current ones, unless the KL is in the reward or the round has several passes. `reference_logprobs` are empty without
    a KL term.
    """

    scored: ScoredGroup
    old_logprobs: tuple[Tensor, ...] = ()
    reference_logprobs: tuple[Tensor, ...] = ()
