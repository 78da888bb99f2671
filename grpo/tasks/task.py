"""A task is a stream of prompts and a grader. This module implements the `Task` interface that the loop uses."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grpo.config import RewardConfig, TaskConfig, UserError
from grpo.tasks.curriculum import Grouping, build_order
from grpo.tasks.extraction import extract
from grpo.tasks.grader import GraderPool
from grpo.tasks.grading_worker import RawGrade
from grpo.tasks.overlong import overlong_penalty
from grpo.tasks.prompts import PromptEncoder
from grpo.tasks.rewards import EXTRACTING, readable
from grpo.tasks.selection import select
from grpo.tasks.sources import listed, load_problems
from grpo.tasks.split import split
from grpo.tasks.stream import PromptStream
from grpo.tasks.verification import bare
from grpo.types import Completion, Grade, Problem, Prompt, RolloutGroup, ScoredGroup

logger = logging.getLogger(__name__)


class VerifiableTask:
    """A verifiable task has problems whose answers a program can check.

    `max_tokens` is the limit of a completion. `bad_rows` says what to do with problems whose own answer a grader
    cannot parse: "skip" (their completions get no reward, with one warning) or "refuse" (an error).
    """

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
        self._extracts = bool(EXTRACTING & {*reward.weights})

    @property
    def cursor(self) -> int:
        """The number of prompts given out over all ranks. Set it to resume."""
        return self._stream.cursor

    @cursor.setter
    def cursor(self, value: int) -> None:
        self._stream.cursor = value

    @property
    def num_problems(self) -> int:
        """The number of problems trained on, which is the number of prompts in one epoch."""
        return len(self._stream)

    def next_prompts(self, count: int) -> list[Prompt]:
        """Returns this rank's share of the stream's next `count` prompts over all ranks."""
        return self._stream.next_prompts(count)

    def learn(self, outcomes: Mapping[str, tuple[int, int]], cursor: int) -> None:
        """Passes the outcomes of a round to an online curriculum: problem id → (correct, tried), over all ranks.

        `cursor` is where the stream stood after that round.
        """
        self._stream.learn(outcomes, cursor)

    def held_out_prompts(self, count: int) -> list[Prompt]:
        """Returns the first `count` held-out prompts in the order of their question's hash, or all if there are
        fewer."""
        return [Prompt(problem, self._encode(problem)) for problem in self._held_out[:count]]

    def answer_of(self, text: str) -> str | None:
        """Returns the answer in a completion without its typesetting, or None when there is none."""
        answer = extract(text, self._reward.extract)
        return None if answer is None else bare(answer)

    def grade(self, groups: Sequence[RolloutGroup]) -> list[ScoredGroup]:
        """Returns one grade per completion, in order.

        Raises `UserError` when the reward itself is at fault, and for an unparsable answer where `bad_rows` is
        "refuse".
        """
        items = [
            (completion.text, group.prompt.problem.answer, group.prompt.problem.metadata)
            for group in groups
            for completion in group.completions
        ]
        alone = iter(self._pool.grade(items))
        texts = [tuple(completion.text for completion in group.completions) for group in groups]
        problems = [group.prompt.problem for group in groups]
        together = self._pool.grade_groups([*zip(texts, problems, strict=True)])
        scored = [
            self._scored(group, [_both(next(alone), own) for own in of_group])
            for group, of_group in zip(groups, together, strict=True)
        ]
        self._tell_unparsable(scored)
        return scored

    def close(self) -> None:
        """Stops the grading workers."""
        self._pool.close()

    def __enter__(self) -> VerifiableTask:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _tell_unparsable(self, scored: Sequence[ScoredGroup]) -> None:
        """Warns once of each problem whose own answer the graders cannot parse, or refuses it."""
        refused = [graded for graded in scored if graded.grades and graded.grades[0].outcome == "unparsable"]
        problems = [graded.group.prompt.problem for graded in refused]
        new = {problem.problem_id: problem.answer for problem in problems if problem.problem_id not in self._told}
        if new and self._bad_rows == "refuse":
            raise UserError(f"{unparsable(new)}; correct them or set task.data.bad_rows=skip.")
        if new:
            self._told |= new.keys()
            logger.warning("%s; nothing is learned from them", unparsable(new))

    def _scored(self, group: RolloutGroup, raw_grades: Sequence[RawGrade]) -> ScoredGroup:
        grades = tuple(map(self._grade, group.completions, raw_grades))
        masked = self._reward.overlong == "mask"
        included = tuple(not (masked and completion.truncated) for completion in group.completions)
        return ScoredGroup(group, grades, included)

    def _grade(self, completion: Completion, raw: RawGrade) -> Grade:
        """Combines the values of the parts into a reward.

        The overlong penalty is added after the sign, since in DAPO it lowers a reward that is already −1 or 1.
        """
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
        answered = extract(completion.text, config.extract) is not None if self._extracts else None
        return Grade(math.fsum(terms), correct, parts, raw.outcome, math.fsum(map(abs, terms)), answered)


def _both(alone: RawGrade, in_group: RawGrade) -> RawGrade:
    """Joins the grades by parts that see one completion and by those that see its group. A failure counts for both."""
    outcome = alone.outcome if alone.outcome != "graded" else in_group.outcome
    parts = {**in_group.parts, **alone.parts}
    return RawGrade(parts if outcome == "graded" else dict.fromkeys(parts, 0.0), outcome)


def unparsable(answers: Mapping[str, str]) -> str:
    """Returns a message about problems whose own answers cannot be parsed; `answers` maps their ids to the answers."""
    examples = listed(tuple(f"{name}: {answer!r}" for name, answer in answers.items()))
    return f"{len(answers)} answers cannot be parsed ({examples})"


def build_task(
    config: TaskConfig,
    tokenizer: Any,
    *,
    seed: int,
    max_tokens: int,
    grouping: Grouping,
    rank: int = 0,
    world_size: int = 1,
) -> VerifiableTask:
    """Loads, selects, splits and encodes the problems, and starts the graders. Logs the problems left out.

    `seed` orders the prompts. `max_tokens` is the sampler's limit of a completion. `grouping` is for curricula that
    weigh problems by their gradient.

    Called after `grpo.config.validate`, which checks the settings that are a choice among words. Raises `UserError`
    for data that cannot be loaded, and for prompts and rewards that cannot be built.
    """
    encode = PromptEncoder(tokenizer, config.prompt)
    fitting, too_long = encode.fitting(usable_problems(config))
    if too_long:
        logger.warning(
            "task %s: left out %d prompts of more than %d tokens (%s)",
            config.name, len(too_long), config.prompt.max_tokens, listed(too_long),
        )  # fmt: skip
    train, held_out = split(fitting, config.data.held_out_fraction)
    order = build_order(train, config.curriculum, grouping, seed)
    pool = GraderPool(config.reward, config.answer_name, fitting[0])
    stream = PromptStream(train, encode, order, rank=rank, world_size=world_size)
    return VerifiableTask(stream, held_out, encode, pool, config.reward, max_tokens, config.data.bad_rows)


def longest_prompt(config: TaskConfig, tokenizer: Any) -> int:
    """Returns the number of tokens of the task's longest prompt. Raises `UserError` for data that cannot be loaded."""
    problems, _ = select(load_problems(config.data)[0], config.data.selection)
    return PromptEncoder(tokenizer, config.prompt).longest(problems)


def usable_problems(config: TaskConfig) -> list[Problem]:
    """Returns the source's problems that are selected and whose answers the reward can read."""
    problems, report = load_problems(config.data)
    if report.unusable or report.repeated:
        logger.warning("task %s: left out of %s", config.name, report)
    problems, left_out = select(problems, config.data.selection)
    if left_out.total:
        logger.warning("task %s: %s", config.name, left_out)
    if left_out.overlaps:
        pairs = tuple(f"{name} is {where}" for name, where in left_out.overlaps.items())
        logger.warning("task %s: questions of evaluation sets: %s", config.name, listed(pairs))
    unreadable = {
        problem.problem_id: problem.answer for problem in problems if not readable(problem.answer, config.reward)
    }
    if len(unreadable) == len(problems) or (unreadable and config.data.bad_rows == "refuse"):
        raise UserError(f"{unparsable(unreadable)}; correct them, or choose other task.reward.parts.")
    if unreadable:
        logger.warning("task %s: left out %s", config.name, unparsable(unreadable))
    return [problem for problem in problems if problem.problem_id not in unreadable]
