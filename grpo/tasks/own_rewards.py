"""This module imports a user's own reward function, and adapts the signatures that TRL and verl use.

What a function takes says how it is called: for each completion, once for each group (`completions`), or once for all
groups that are sampled together, such as those of a round (`groups`). Each may be async.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo.config import UserError
from grpo.types import Problem, RolloutGroup
from grpo.types.imported import imported

Function = Callable[..., Any]

Facts = Mapping[str, Any]
"""What is known of a group besides its texts and its problem's columns, see `facts_of`."""

NOTHING: Facts = {}
FACTS = ("prompt", "messages", "source", "step", "tokens", "truncated")
OF_EACH = ("tokens", "truncated")
"""These facts are lists with one entry for each completion."""

WANTED = (
    "f(completion, answer, metadata) for one completion, TRL's f(completions, **columns) for a group, "
    "f(groups) for all groups of a round, or verl's f(data_source, solution_str, ground_truth, extra_info); it may "
    f"also take {', '.join(FACTS)}"
)
VERL = {"solution_str", "ground_truth"}
GROUP, BATCH = "completions", "groups"
_TRL_NAMES = {"completion_ids": "tokens"}
_OURS = ("completion", "answer", "metadata")
_FOREIGN = {"data_source", "solution_str", "prompt", "prompts", "queries", "response"}
"""A first parameter of these names shows that a function was written for other arguments than ours."""


def facts_of(group: RolloutGroup, wanted: frozenset[str]) -> Facts:
    """Returns the wanted facts of a group.

    prompt     the question as text
    messages   the chat messages that ask it
    source     where the problem comes from
    step       the optimizer steps that the policy had taken which wrote the last token
    tokens     of each completion, its token ids
    truncated  of each completion, whether the token limit cut it off
    """
    problem = group.prompt.problem
    asked = [dict(message) for message in problem.messages]
    facts = {
        "prompt": lambda: problem.question,
        "messages": lambda: asked or [{"role": "user", "content": problem.question}],
        "source": lambda: problem.source,
        "step": lambda: group.newest_version,
        "tokens": lambda: [list(completion.token_ids) for completion in group.completions],
        "truncated": lambda: [completion.truncated for completion in group.completions],
    }
    return {name: fact() for name, fact in facts.items() if name in wanted}


@dataclass(frozen=True, slots=True)
class CompletionReward:
    """A completion reward is a function of one completion that names what it takes."""

    function: Function
    names: frozenset[str]

    @property
    def wanted(self) -> frozenset[str]:
        return self.names & {*FACTS}

    def __call__(self, completion: str, answer: str, metadata: Mapping[str, Any], facts: Facts = NOTHING) -> Any:
        given = {"completion": completion, "answer": answer, "metadata": metadata, **facts}
        return self.function(**{name: given[name] for name in self.names})


@dataclass(frozen=True, slots=True)
class TogetherReward:
    """This adapter asks an async function of one completion about all completions of a group at once."""

    part: CompletionReward

    @property
    def wanted(self) -> frozenset[str]:
        return self.part.wanted

    def __call__(self, completions: Sequence[str], problem: Problem, facts: Facts) -> Sequence[Any]:
        async def asked() -> list[Any]:
            return await asyncio.gather(
                *(
                    self.part(text, problem.answer, problem.metadata, _of_one(facts, index))
                    for index, text in enumerate(completions)
                )
            )

        return asyncio.run(asked())


@dataclass(frozen=True, slots=True)
class GroupReward:
    """A group reward is a function of all completions of one prompt, with TRL's signature.

    `answer_name` is the name under which it gets the problem's answer, which is that of the data's column. `names` are
    the parameters that it takes; None means any. `needed` are those without a default, and `wanted` are the facts that
    it names.
    """

    function: Function
    answer_name: str
    names: frozenset[str] | None
    needed: frozenset[str]
    wanted: frozenset[str]

    def __call__(self, completions: Sequence[str], problem: Problem, facts: Facts) -> Sequence[Any]:
        """Returns the function's rewards, one for each completion; None counts as 0.

        Prompts and completions are lists of chat messages where the data has such, and texts elsewhere. Each column of
        the data comes as a list with one entry for each completion. Raises ValueError for another number of rewards.
        """
        chat = bool(problem.messages)
        written = [[{"role": "assistant", "content": text}] if chat else text for text in completions]
        asked = [dict(message) for message in problem.messages] if chat else problem.question
        columns = {**problem.metadata, self.answer_name: problem.answer, "prompts": asked}
        # A column of the data has its name before a fact.
        given = dict(facts) | {name: facts[fact] for name, fact in _TRL_NAMES.items() if fact in facts}
        given |= {name: [value] * len(completions) for name, value in columns.items()} | {GROUP: written}
        accepted = {name: value for name, value in given.items() if self.names is None or name in self.names}
        return _as_many(self.function(**accepted), len(completions), "completions")

    def require_columns(self, path: str, problem: Problem) -> None:
        """Raises UserError where the function needs a parameter that is no column of the problem."""
        columns = {*problem.metadata, self.answer_name}
        if missing := self.needed - columns - {GROUP, "prompts", *FACTS, *_TRL_NAMES}:
            raise UserError(
                f"task.reward.parts: {path!r} takes {', '.join(sorted(missing))}, which the data have no column for; "
                f"they have {', '.join(sorted(columns))}."
            )


@dataclass(frozen=True, slots=True)
class BatchReward:
    """A batch reward is a function of all groups that a rank samples together. It returns a list of rewards for each.

    Each group is a mapping with completions, answer, metadata and the facts of `facts_of`.
    """

    function: Function
    wanted = frozenset(FACTS)

    def __call__(self, groups: Sequence[tuple[Sequence[str], Problem, Facts]]) -> Sequence[Sequence[Any]]:
        given = [
            {GROUP: [*texts], "answer": problem.answer, "metadata": dict(problem.metadata), **facts}
            for texts, problem, facts in groups
        ]
        rewards = _as_many(self.function(given), len(groups), "groups")
        return [
            _as_many(of_group, len(texts), "completions")
            for of_group, (texts, _, _) in zip(rewards, groups, strict=True)
        ]


TOGETHER = (GroupReward, TogetherReward)
"""These parts are called once for each group."""


def _as_many(rewards: Any, count: int, what: str) -> Sequence[Any]:
    """Returns rewards, which may be an array or a tensor, as a list in which None counts as 0.

    Raises ValueError for anything else, or another number.
    """
    rewards = rewards.tolist() if hasattr(rewards, "tolist") else rewards
    if not isinstance(rewards, Sequence) or isinstance(rewards, str) or len(rewards) != count:
        raise ValueError(f"it returned {rewards!r:.80} for {count} {what}, not a list of as many")
    return [0.0 if reward is None else reward for reward in rewards]


def _of_one(facts: Facts, index: int) -> Facts:
    """Returns the facts of one completion of a group."""
    return {name: value[index] if name in OF_EACH else value for name, value in facts.items()}


NO_ROUND = (
    "task.reward.parts: f(groups) takes all groups of a round, and pipeline=continuous grades each by itself: use "
    "pipeline=off or pipeline=one_round, or write it as f(completion, answer, metadata) or f(completions, **columns)"
)
"""This is said where a batch reward cannot get the groups of a round."""

Part = Function | CompletionReward | TogetherReward | GroupReward | BatchReward


def own_reward(path: str, answer_name: str) -> Part:
    """Imports the function at ``"package.module:function"`` or ``"file.py:function"``.

    Returns it as a function of (completion, answer, metadata), or as one of the classes of this module. Raises
    UserError when it cannot be imported, and when its signature is none of those wanted.
    """
    function = _imported(path)
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # some functions written in C have no signature
        return function
    any_name = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    plain = {name: parameter for name, parameter in parameters.items() if parameter.kind not in _STARRED}
    needed = frozenset(name for name, parameter in plain.items() if parameter.default is inspect.Parameter.empty)
    if GROUP in plain:
        wanted = frozenset(plain) & {*FACTS} | {fact for name, fact in _TRL_NAMES.items() if name in plain}
        return GroupReward(_finished(function), answer_name, None if any_name else frozenset(plain), needed, wanted)
    if needed == {BATCH}:
        return BatchReward(_finished(function))
    if plain.keys() >= VERL:
        return _verl(_finished(function), None if any_name else frozenset(plain))
    known = frozenset(name for name in plain if name in (*_OURS, *FACTS))
    if "completion" in known and needed <= known:
        part = CompletionReward(function, known)
        return TogetherReward(part) if inspect.iscoroutinefunction(function) else part
    try:
        inspect.signature(function).bind("completion", "answer", {})
        ours = next(iter(parameters)) not in _FOREIGN
    except TypeError:
        ours = False
    if not ours:
        raise UserError(f"task.reward.parts: {path!r} takes ({', '.join(parameters)}); write it as {WANTED}.")
    return _finished(function)


_STARRED = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


def _verl(function: Function, names: frozenset[str] | None) -> Function:
    """Adapts verl's signature, whose data source and extra information are columns of the data."""

    def part(completion: str, answer: str, metadata: Mapping[str, Any]) -> Any:
        columns = {name: metadata.get(name) for name in ("data_source", "extra_info")}
        given = {**columns, "solution_str": completion, "ground_truth": answer}
        return function(**{name: value for name, value in given.items() if names is None or name in names})

    return part


def _finished(function: Function) -> Function:
    """Returns a function that waits for the result of an async one."""
    if not inspect.iscoroutinefunction(function):
        return function
    return lambda *given, **named: asyncio.run(function(*given, **named))


def _imported(path: str) -> Function:
    try:
        return imported(path)
    except (Exception, SystemExit) as error:  # a module may raise anything while it is imported
        raise UserError(f"task.reward.parts: cannot import {path!r}: {type(error).__name__}: {error}.") from error
