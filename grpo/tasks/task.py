"""A task is a stream of prompts and a grader. This module implements the `Task` interface that the loop uses."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any

from grpo.config import TaskConfig
from grpo.config.errors import UserError, require
from grpo.config.validate_task import naming_set
from grpo.tasks.curriculum import Grouping, build_order, uniform
from grpo.tasks.grader_pool import GraderPool
from grpo.tasks.grading import Grading
from grpo.tasks.problem_selection import split_sets
from grpo.tasks.prompt_encoding import PromptEncoder
from grpo.tasks.prompt_stream import Mixture, PromptStream
from grpo.tasks.sources import listed
from grpo.tasks.usable import usable_problems
from grpo.types import Problem, Prompt, RolloutGroup, ScoredGroup

logger = logging.getLogger(__name__)


class VerifiableTask:
    """A verifiable task has problems whose answers a program can check. It implements `interfaces.Task`.

    `gradings` maps each source of problems to its grading; the key "" stands for all other sources.
    """

    def __init__(
        self,
        stream: PromptStream,
        held_out: Sequence[Problem],
        encode: Callable[[Problem], tuple[int, ...]],
        gradings: Mapping[str, Grading],
    ) -> None:
        self._stream = stream
        self._held_out = tuple(held_out)
        self._encode = encode
        self._gradings = gradings

    @property
    def cursor(self) -> int:
        """Returns the number of prompts given out over all ranks. Set it to resume."""
        return self._stream.cursor

    @cursor.setter
    def cursor(self, value: int) -> None:
        self._stream.cursor = value

    @property
    def grades_together(self) -> bool:
        """Returns whether a reward takes all groups of a round at once, see `grpo.tasks.own_rewards.BatchReward`."""
        return any(grading.together for grading in self._gradings.values())

    @property
    def num_problems(self) -> int:
        return len(self._stream)

    def next_prompts(self, count: int) -> list[Prompt]:
        return self._stream.next_prompts(count)

    def record_lengths(self, lengths: Mapping[str, float]) -> None:
        self._stream.record_lengths(lengths)

    def record_outcomes(self, outcomes: Mapping[str, tuple[int, int]], cursor: int) -> None:
        self._stream.record_outcomes(outcomes, cursor)

    def held_out_prompts(self, count: int) -> list[Prompt]:
        """Returns the first `count` prompts for evaluations, or all if there are fewer. Each problem comes once.

        They are held-out problems in the order of their question's hash. If nothing is held out, they are the training
        problems in the order of a first epoch, whatever the curriculum.
        """
        return [Prompt(problem, self._encode(problem)) for problem in self._held_out[:count]]

    def answer_of(self, problem: Problem, text: str) -> str | None:
        return self._grading(problem).answer_of(text)

    def grade(self, groups: Sequence[RolloutGroup]) -> list[ScoredGroup]:
        """Returns the groups in order, each with one grade per completion.

        Raises `UserError` when the reward itself is at fault, and for an unparsable answer where `bad_rows` is
        "refuse".
        """
        by_grading: dict[Grading, list[int]] = {}
        for index, group in enumerate(groups):
            by_grading.setdefault(self._grading(group.prompt.problem), []).append(index)
        scored: dict[int, ScoredGroup] = {}
        for grading, indices in by_grading.items():
            scored |= zip(indices, grading.grade([groups[index] for index in indices]), strict=True)
        return [scored[index] for index in range(len(groups))]

    def _grading(self, problem: Problem) -> Grading:
        """Returns the grading of a problem's source, or the one of all other sources."""
        return self._gradings.get(problem.source) or self._gradings[""]

    def close(self) -> None:
        """Stops the grading workers."""
        for grading in {*self._gradings.values()}:
            grading.close()

    def __enter__(self) -> VerifiableTask:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class LoadedTask:
    """A loaded task holds a task's usable problems in memory, by the names of its sets.

    `longest` holds the number of tokens of each set's longest prompt, as far as it is not beyond all limits, for sets
    whose `prompt.max_tokens` is 0 and is derived from that number.
    """

    config: TaskConfig
    problems: Mapping[str, Sequence[Problem]]
    longest: Mapping[str, int]

    @property
    def identity(self) -> str:
        """Returns a text that differs between tasks whose problems differ in the text or the number of a cell, or come
        in another order."""
        digest = hashlib.sha256()
        for name, of_set in self.problems.items():
            for problem in of_set:
                # Of other objects than text and numbers only the kind is taken, since their texts may hold addresses.
                texts = problem.messages, problem.metadata
                others = json.dumps(texts, default=lambda value: type(value).__name__, skipkeys=True)
                facts = name, problem.question, problem.answer, others
                digest.update(repr(facts).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


def loaded_task(config: TaskConfig, tokenizer: Any, room: float = math.inf) -> LoadedTask:
    """Loads the problems of a task. The model has room for prompts of `room` tokens.

    Raises `UserError` for data that cannot be loaded. Logs the problems left out.
    """
    problems = {name: usable_problems(of_set, name) for name, of_set in config.all_sets.items()}
    longest = {}
    for name, of_set in config.all_sets.items():
        with naming_set(name):
            encode = PromptEncoder(tokenizer, of_set.prompt)
            longest |= {} if of_set.prompt.max_tokens else {name: encode.longest(problems[name], room)}
    return LoadedTask(config, problems, longest)


def loaded_tasks(
    tasks: Sequence[TaskConfig], suite: Sequence[str], tokenizer: Any, room: float = math.inf
) -> list[LoadedTask]:
    """Loads each of several tasks as `loaded_task` does. An error about a file of `suite`, which is read as the run's
    own data are, names no key of these, but says how such a file gets columns of its own."""
    loaded = []
    for task in tasks:
        try:
            loaded.append(loaded_task(task, tokenizer, room))
        except UserError as error:
            if task.data.path not in suite:
                raise
            without_key = re.sub(r"; perhaps task\.data\.\S+ is meant|\.$", "", str(error))
            raise UserError(
                f"evaluation.suite: {without_key}; the file is read as the run's own data are: write it as these, or "
                "give it a task of its own, evaluation.suite=[DIR/task/NAME.yaml]"
            ) from error
    return loaded


def build_task(
    loaded: LoadedTask,
    tokenizer: Any,
    *,
    seed: int,
    max_tokens: int,
    grouping: Grouping,
    rank: int = 0,
    world_size: int = 1,
) -> VerifiableTask:
    """Encodes and splits the problems, puts them into order, and starts the graders. Logs the problems left out.

    `seed` orders the prompts. `max_tokens` is the sampler's limit of a completion. `grouping` is for curricula that
    weigh problems by their gradient.

    Called after `grpo.config.validate`, which checks the settings that are a choice among words. Raises `UserError`
    for prompts and rewards that cannot be built.
    """
    config = loaded.config
    encoders = {name: PromptEncoder(tokenizer, of_set.prompt) for name, of_set in config.all_sets.items()}
    splits = split_sets(config, {name: _fitting(loaded, name, encoders[name]) for name in config.all_sets})
    train = [problems for problems, _ in splits.values()]
    orders = [build_order(problems, config.curriculum, grouping, seed) for problems in train]
    weights = [of_set.weight for of_set in config.all_sets.values()]
    order = Mixture(orders, [*map(len, train)], weights, seed) if config.sets else orders[0]

    def encode(problem: Problem) -> tuple[int, ...]:
        return encoders[problem.source if config.sets else ""](problem)

    stream = PromptStream([*chain(*train)], encode, order, rank=rank, world_size=world_size)
    held_out_by_set = [of_set for _, of_set in splits.values()]
    if not any(held_out_by_set):
        held_out_by_set = [
            [of_set[index] for index in uniform(len(of_set), seed).indices(0, len(of_set))] for of_set in train
        ]
    # The first held-out problems are those of all sets in turn.
    held_out = [problem for turn in zip_longest(*held_out_by_set) for problem in turn if problem]
    examples = {name: problems[0] for name, (problems, _) in splits.items()}
    return VerifiableTask(stream, held_out, encode, build_gradings(config, examples, max_tokens))


def _fitting(loaded: LoadedTask, name: str, encode: PromptEncoder) -> Sequence[Problem]:
    """Returns the problems of a set whose prompts are not too long. Logs the others, and those with special tokens."""
    config, problems = loaded.config.all_sets[name], loaded.problems[name]
    if special := encode.holding_special_tokens(problems):
        with naming_set(name):
            _refuse_rendered(special, problems, encode, config.prompt.chat)
        logger.warning(
            "task %s: %d questions hold special tokens such as %s, which a model does not read as text (%s)",
            config.name, len(special), next(iter(special.values())), listed(tuple(special)),
        )  # fmt: skip
    if loaded.longest.get(name, math.inf) <= config.prompt.max_tokens:
        return problems
    with naming_set(name):
        fitting, too_long = encode.fitting(problems)
    if too_long:
        logger.warning(
            "task %s: left out %d prompts of more than %d tokens (%s)",
            config.name, len(too_long), config.prompt.max_tokens, listed(too_long),
        )  # fmt: skip
    return fitting


def _refuse_rendered(
    special: Mapping[str, str], problems: Sequence[Problem], encode: PromptEncoder, chat: bool
) -> None:
    """Raises `UserError` for questions that are prompts already, so that the chat template would be written twice."""
    token = next(iter(special.values()))
    rendered = chat and len(special) == len(problems) and token in encode.render([{"role": "user", "content": "1"}])
    require(
        not rendered,
        f"all {len(problems)} questions hold {token}, which the chat template writes too: if they are whole prompts, "
        "set task.prompt.chat=false; else name the column of plain questions in task.data.question_column",
    )


def build_gradings(config: TaskConfig, examples: Mapping[str, Problem], max_tokens: int) -> dict[str, Grading]:
    """Starts the graders of a task. Returns them by source of problems; the key "" stands for all other sources.

    Sources with the same reward share their graders. `examples` holds a problem of each set, and `max_tokens` is the
    limit of a completion. Raises `UserError` for a reward that cannot be built.
    """
    gradings: dict[str, Grading] = {}
    built: list[tuple[Any, Grading]] = []
    try:
        for name, of_set in config.all_sets.items():
            sources = [name, *of_set.reward.by_source]
            for source in sources:
                reward = of_set.reward.of(source)
                kind = reward, of_set.answer_name, of_set.data.bad_rows
                same = next((grading for other, grading in built if other == kind), None)
                if same is None:
                    pool = GraderPool(reward, of_set.answer_name, examples[name])
                    same = Grading(pool, reward, max_tokens, of_set.data.bad_rows)
                    built.append((kind, same))
                gradings[source] = same
    except BaseException:
        for _, grading in built:
            grading.close()
        raise
    return gradings
