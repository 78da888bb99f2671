"""A task: a stream of prompts and a grader, behind the interface that the loop knows."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grpo.config import RewardConfig, TaskConfig, UserError
from grpo.tasks.curriculum import build_order
from grpo.tasks.extraction import extract
from grpo.tasks.grader import GraderPool, RawGrade
from grpo.tasks.overlong import overlong_penalty
from grpo.tasks.prompts import PromptEncoder, PromptStream
from grpo.tasks.rewards import readable
from grpo.tasks.selection import select
from grpo.tasks.sources import listed, load_problems
from grpo.tasks.split import split
from grpo.tasks.verification import bare
from grpo.types import Completion, Grade, Problem, Prompt, RolloutGroup, ScoredGroup

logger = logging.getLogger(__name__)


class VerifiableTask:
    """Problems with answers that a program can check. `max_tokens` is the limit of a completion; `bad_rows` says
    what becomes of answers that only the graders find unparsable: "skip" (no reward, told once) or "refuse"."""

    def __init__(
        self,
        stream: PromptStream,
        held_out: Sequence[Problem],
        encode: Callable[[Problem], tuple[int, ...]],
        pool: GraderPool,
        reward: RewardConfig,
        max_tokens: int,
        bad_rows: str = "skip",
    ) -> None:
        self._stream = stream
        self._held_out = tuple(held_out)
        self._encode = encode
        self._pool = pool
        self._reward = reward
        self._max_tokens = max_tokens
        self._bad_rows = bad_rows
        self._told: set[str] = set()

    @property
    def cursor(self) -> int:
        """Prompts given out over all ranks; set it to resume."""
        return self._stream.cursor

    @cursor.setter
    def cursor(self, value: int) -> None:
        self._stream.cursor = value

    @property
    def num_problems(self) -> int:
        """Problems trained on, the prompts of one epoch."""
        return len(self._stream)

    def next_prompts(self, count: int) -> list[Prompt]:
        """The next `count` prompts of the stream over all ranks: this rank's share of them."""
        return self._stream.next_prompts(count)

    def learn(self, outcomes: Mapping[str, tuple[int, int]], cursor: int) -> None:
        """(correct, tried) of a round's problems by id, over all ranks, and where the stream then stood: what an
        online curriculum goes by."""
        self._stream.learn(outcomes, cursor)

    def held_out_prompts(self, count: int) -> list[Prompt]:
        """The first `count` held-out prompts in the order of their question's hash, or all there are."""
        return [Prompt(problem, self._encode(problem)) for problem in self._held_out[:count]]

    def answer_of(self, text: str) -> str | None:
        """The answer in a completion without its typesetting; None where there is none."""
        found = extract(text, self._reward.extract)
        return None if found is None else bare(found)

    def grade(self, groups: Sequence[RolloutGroup]) -> list[ScoredGroup]:
        """One grade per completion, in order. Raises `UserError` when the reward itself is at fault, and for an
        unparsable answer where those are refused."""
        items = [
            (completion.text, group.prompt.problem.answer, group.prompt.problem.metadata)
            for group in groups
            for completion in group.completions
        ]
        raw_grades = iter(self._pool.grade(items))
        scored = [self._scored(group, [next(raw_grades) for _ in group.completions]) for group in groups]
        self._tell_unparsable(scored)
        return scored

    def close(self) -> None:
        """Ends the grading workers."""
        self._pool.close()

    def __enter__(self) -> VerifiableTask:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _tell_unparsable(self, scored: Sequence[ScoredGroup]) -> None:
        problems = [
            each.group.prompt.problem for each in scored if each.grades and each.grades[0].outcome == "unparsable"
        ]
        new = {problem.problem_id: problem.answer for problem in problems if problem.problem_id not in self._told}
        if new and self._bad_rows == "refuse":
            raise UserError(f"{unparsable(new)}; mend them or set task.data.bad_rows=skip.")
        if new:
            self._told |= new.keys()
            logger.warning("%s; nothing is learned from them", unparsable(new))

    def _scored(self, group: RolloutGroup, raw_grades: Sequence[RawGrade]) -> ScoredGroup:
        grades = tuple(map(self._grade, group.completions, raw_grades))
        masked = self._reward.overlong == "mask"
        included = tuple(not (masked and completion.truncated) for completion in group.completions)
        return ScoredGroup(group, grades, included)

    def _grade(self, completion: Completion, raw: RawGrade) -> Grade:
        """The penalty comes after the sign: in DAPO it lowers a reward that is −1 or 1 already."""
        config = self._reward
        terms = [weight * raw.parts[name] for name, weight in config.weights.items()]
        if config.signed:
            terms = [*(2.0 * term for term in terms), -1.0]
        parts = dict(raw.parts)
        if config.overlong == "soft":
            penalty = overlong_penalty(len(completion.token_ids), self._max_tokens, config.overlong_buffer)
            terms.append(penalty)
            parts["overlong"] = penalty
        correct = raw.outcome == "graded" and raw.parts[next(iter(config.weights))] >= config.correct_at
        return Grade(math.fsum(terms), correct, parts, raw.outcome, math.fsum(map(abs, terms)))


def unparsable(answers: Mapping[str, str]) -> str:
    """A message about problems (by id) whose own answers cannot be read."""
    examples = listed(tuple(f"{name}: {answer!r}" for name, answer in answers.items()))
    return f"{len(answers)} answers cannot be parsed ({examples})"


def build_task(
    config: TaskConfig,
    tokenizer: Any,
    *,
    seed: int,
    max_tokens: int,
    exponent: float = 1.0,
    rank: int = 0,
    world_size: int = 1,
) -> VerifiableTask:
    """Loads, selects, splits and encodes the problems, and starts the graders. Logs what was left out.

    `seed` orders the prompts; `max_tokens` is the sampler's limit of a completion; `exponent` is the dial's α, for
    curricula that weigh problems by their gradient.

    Raises `UserError` for data, prompts and rewards that cannot be had; choices among words are
    `grpo.config.validate`'s to check.
    """
    encode = PromptEncoder(tokenizer, config.prompt)
    fitting, too_long = encode.fitting(_usable(config))
    if too_long:
        logger.warning(
            "task %s: left out %d prompts of more than %d tokens (%s)",
            config.name, len(too_long), config.prompt.max_tokens, listed(too_long),
        )  # fmt: skip
    train, held_out = split(fitting, config.data.held_out_fraction)
    order = build_order(train, config.curriculum, exponent, seed)
    stream = PromptStream(train, encode, order, rank=rank, world_size=world_size)
    return VerifiableTask(
        stream, held_out, encode, GraderPool(config.reward), config.reward, max_tokens, config.data.bad_rows
    )


def _usable(config: TaskConfig) -> list[Problem]:
    """The source's problems that are selected and whose answers can be read."""
    problems, report = load_problems(config.data)
    if report.unusable or report.repeated:
        logger.warning("task %s: left out of %s", config.name, report)
    problems, left_out = select(problems, config.data.selection)
    if left_out.total:
        logger.warning("task %s: %s", config.name, left_out)
    if left_out.overlaps:
        pairs = tuple(f"{name} is {where}" for name, where in left_out.overlaps.items())
        logger.warning("task %s: asked by evaluation sets: %s", config.name, listed(pairs))
    unreadable = {each.problem_id: each.answer for each in problems if not readable(each.answer, config.reward)}
    if len(unreadable) == len(problems) or (unreadable and config.data.bad_rows == "refuse"):
        raise UserError(f"{unparsable(unreadable)}; mend them, or choose another task.reward.parts.")
    if unreadable:
        logger.warning("task %s: left out %s", config.name, unparsable(unreadable))
    return [problem for problem in problems if problem.problem_id not in unreadable]
