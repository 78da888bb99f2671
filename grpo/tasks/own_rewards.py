"""This module imports a user's own reward function, and adapts the signatures that TRL and verl use.

A function's parameters decide how it is called: for each completion, once for each group (parameter `completions` or
`environments`), or once for all groups that are sampled together, such as a round's (parameter `groups`). The function
may be async.
"""

import asyncio
import inspect
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

from grpo.config import UserError
from grpo.config.errors import first_line, place_of, require
from grpo.types import EpisodeFacts, Problem, RolloutGroup
from grpo.types.imported import given, imported

START_SECONDS = 300.0
"""A module of rewards may take this long to be imported, here and in a worker that starts."""

Function = Callable[..., Any]

Facts = Mapping[str, Any]
"""Arguments for a reward function besides texts and the problem's columns, such as the step; see `reward_facts`."""

NOTHING: Facts = {}
FACTS = ("prompt", "messages", "source", "step", "tokens", "truncated", "conversation", "environments")
OF_EACH = ("tokens", "truncated", "conversation", "environments")
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
_FOREIGN = {"data_source", "solution_str", "prompt", "prompts", "queries", "response", "question"} | {
    *("gold", "ground_truth", "label", "labels", "target", "expected", "reference")
}
"""A first parameter with one of these names shows that a function was written for other arguments than ours."""


def reward_facts(group: RolloutGroup, wanted: frozenset[str]) -> Facts:
    """Returns the facts of a group that are `wanted`, as arguments for a reward function.

    prompt     the question as text
    messages   the chat messages that ask the question
    source     the problem's source
    step       the number of optimizer steps of the policy that sampled the last token
    tokens     the token ids of each completion
    truncated  whether the token limit cut each completion off
    conversation  the messages of each episode after those that ask the question, or None for a single turn
    environments  an `EndedEnvironment` of each episode, or None for a single turn
    """
    problem = group.prompt.problem
    messages = [dict(message) for message in problem.messages]
    facts = {
        "prompt": lambda: problem.question,
        "messages": lambda: messages or [{"role": "user", "content": problem.question}],
        "source": lambda: problem.source,
        "step": lambda: group.newest_version,
        "tokens": lambda: [list(completion.token_ids) for completion in group.completions],
        "truncated": lambda: [completion.truncated for completion in group.completions],
        "conversation": lambda: [_conversation(completion.episode) for completion in group.completions],
        "environments": lambda: [_environment(completion.episode) for completion in group.completions],
    }
    return {name: fact() for name, fact in facts.items() if name in wanted}


class EndedEnvironment(SimpleNamespace):
    """This object stands for an environment, whose process has ended. It has the attributes that JSON can hold."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"the environment had no public attribute {name} at its end that JSON can hold; it had "
            f"{', '.join(vars(self)) or 'none, as where task.episode names no class'}"
        )


def _conversation(facts: EpisodeFacts | None) -> list[Any] | None:
    return [dict(message) for message in facts.messages[facts.opening :]] if facts else None


def _environment(facts: EpisodeFacts | None) -> EndedEnvironment | None:
    return EndedEnvironment(**facts.state) if facts else None


@dataclass(frozen=True, slots=True)
class CompletionReward:
    """A completion reward calls a function of one completion with the arguments in `names`, its parameters.

    `needed` are the parameters without a default.
    """

    function: Function
    names: frozenset[str]
    needed: frozenset[str]

    @property
    def needs_answers(self) -> bool:
        return "answer" in self.needed

    @property
    def wanted(self) -> frozenset[str]:
        return self.names & {*FACTS}

    def __call__(self, completion: str, answer: str, metadata: Mapping[str, Any], facts: Facts = NOTHING) -> Any:
        arguments = {"completion": completion, "answer": answer, "metadata": metadata, **facts}
        return self.function(**{name: arguments[name] for name in self.names})


@dataclass(frozen=True, slots=True)
class TogetherReward:
    """This adapter calls an async function of one completion for all completions of a group concurrently."""

    part: CompletionReward

    @property
    def needs_answers(self) -> bool:
        return self.part.needs_answers

    @property
    def wanted(self) -> frozenset[str]:
        return self.part.wanted

    def __call__(self, completions: Sequence[str], problem: Problem, facts: Facts) -> Sequence[Any]:
        async def rewards() -> list[Any]:
            return await asyncio.gather(
                *(
                    self.part(text, problem.own_answer, problem.metadata, facts_of_one(facts, index))
                    for index, text in enumerate(completions)
                )
            )

        return asyncio.run(rewards())


@dataclass(frozen=True, slots=True)
class GroupReward:
    """A group reward is a function of all completions of one prompt, with TRL's signature.

    `answer_name` is the argument that passes the problem's answer, named as the data's column of answers. `names` are
    the function's parameters, or None when it takes any. `needed` are the parameters without a default, and `wanted`
    are the facts among the parameters.
    """

    function: Function
    answer_name: str
    names: frozenset[str] | None
    needed: frozenset[str]
    wanted: frozenset[str]

    @property
    def needs_answers(self) -> bool:
        return self.answer_name in self.needed

    def __call__(self, completions: Sequence[str], problem: Problem, facts: Facts) -> Sequence[Any]:
        """Returns the function's rewards, one for each completion; None counts as 0.

        Prompts and completions are chat messages when the problem has messages, else texts. The completion of an
        episode is all of its messages but those that asked the question. Each column of the data is a list with one
        entry for each completion. Raises ValueError for another number of rewards than completions.
        """
        chat = bool(problem.messages)
        contents: list[Any] = [[{"role": "assistant", "content": text}] if chat else text for text in completions]
        contents = [whole or text for whole, text in zip(facts.get("conversation", contents), contents, strict=True)]
        # TRL passes environments where there are some, and knows no argument `conversation`.
        foreign = {"conversation", *([] if any(facts.get("environments", ())) else ["environments"])} - self.needed
        facts = {name: fact for name, fact in facts.items() if name not in foreign}
        prompt = [dict(message) for message in problem.messages] if chat else problem.question
        columns = {**self._columns(problem), "prompts": prompt}
        # A column of the data has its name before a fact.
        arguments = dict(facts) | {name: facts[fact] for name, fact in _TRL_NAMES.items() if fact in facts}
        arguments |= {name: [value] * len(completions) for name, value in columns.items()} | {GROUP: contents}
        accepted = {name: value for name, value in arguments.items() if self.names is None or name in self.names}
        return _as_many(self.function(**accepted), len(completions), "completions")

    def require_columns(self, path: str, problem: Problem) -> None:
        """Raises UserError when a parameter without a default is neither a column of the problem nor a fact."""
        columns = self._columns(problem)
        if missing := self.needed - columns.keys() - {GROUP, "prompts", *FACTS, *_TRL_NAMES}:
            raise UserError(
                f"task.reward.parts: {path!r} takes {', '.join(sorted(missing))}, which the data have no column for; "
                f"they have {', '.join(sorted(columns)) or 'no further column'}."
            )

    def _columns(self, problem: Problem) -> Mapping[str, Any]:
        """Returns the problem's columns by name. The answer is one of them, unless the data have no answers."""
        return {**problem.metadata, self.answer_name: problem.typed_answer} if problem.answer else problem.metadata


@dataclass(frozen=True, slots=True)
class BatchReward:
    """A batch reward is a function of all groups that a rank samples together.

    The function returns one list of rewards for each group. A group is passed as a mapping with completions, answer,
    metadata and the facts of `reward_facts`.
    """

    function: Function
    wanted = frozenset(FACTS)
    needs_answers = False

    def __call__(self, groups: Sequence[tuple[Sequence[str], Problem, Facts]]) -> Sequence[Sequence[Any]]:
        arguments = [
            {GROUP: [*texts], "answer": problem.own_answer, "metadata": dict(problem.metadata), **facts}
            for texts, problem, facts in groups
        ]
        rewards = _as_many(self.function(arguments), len(groups), "groups")
        return [
            _as_many(of_group, len(texts), "completions")
            for of_group, (texts, _, _) in zip(rewards, groups, strict=True)
        ]


TOGETHER = (GroupReward, TogetherReward)
"""These parts are called once for each group."""


def _as_many(rewards: Any, count: int, what: str) -> Sequence[Any]:
    """Converts a sequence, array or tensor of rewards to a list in which None counts as 0.

    Raises ValueError for anything else, and when there are not `count` rewards. `what` names what they belong to.
    """
    rewards = rewards.tolist() if hasattr(rewards, "tolist") else rewards
    if not isinstance(rewards, Sequence) or isinstance(rewards, str) or len(rewards) != count:
        raise ValueError(f"it returned {rewards!r:.80} for {count} {what}, not a list with one for each")
    return [0.0 if reward is None else reward for reward in rewards]


def facts_of_one(facts: Facts, index: int) -> Facts:
    """Returns the facts of one completion of a group, given those of the group and the completion's index."""
    return {name: value[index] if name in OF_EACH else value for name, value in facts.items()}


NO_ROUND = (
    "task.reward.parts: f(groups) takes all groups of a round, and pipeline=continuous grades each by itself: use "
    "pipeline=off or pipeline=one_round, or write it as f(completion, answer, metadata) or f(completions, **columns)"
)
"""This is the error where a batch reward cannot get all groups of a round."""
IN_TWO_TURNS = (
    "task.reward.parts: f(groups) takes all groups of a round, and rollout.budget.enabled=true asks for their "
    "completions in two turns: set it to false, or write it as f(completion, answer, metadata) or "
    "f(completions, **columns)"
)
"""This is the error where the groups of a round are not whole when some of them are graded."""

Part = Function | CompletionReward | TogetherReward | GroupReward | BatchReward


def own_reward(path: str, answer_name: str, called: bool = False) -> Part:
    """Imports the function at ``"package.module:function"`` or ``"file.py:function"``.

    Returns a function of (completion, answer, metadata), or one of the classes of this module, depending on the
    function's signature. A class, or an object of one, stands for its method `__call__`. That of a class is usable only
    if it is to be `called`: an object may hold a model, which workers need and the trainer does not. Raises UserError
    when the import fails, and for a signature that is none of `WANTED`.
    """
    function = _function_of(path, _imported(path), called)
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # some functions written in C have no signature
        return function
    any_name = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    plain = {name: parameter for name, parameter in parameters.items() if parameter.kind not in _STARRED}
    needed = frozenset(name for name, parameter in plain.items() if parameter.default is inspect.Parameter.empty)
    if GROUP in plain or ("environments" in plain and "completion" not in plain):
        wanted = frozenset(plain) & {*FACTS} | {fact for name, fact in _TRL_NAMES.items() if name in plain}
        wanted |= {"conversation", *(["environments"] if any_name else [])}
        return GroupReward(_synchronous(function), answer_name, None if any_name else frozenset(plain), needed, wanted)
    if needed == {BATCH}:
        return BatchReward(_synchronous(function))
    if plain.keys() >= VERL:
        return _verl(_synchronous(function), None if any_name else frozenset(plain))
    known_names = frozenset(name for name in plain if name in (*_OURS, *FACTS))
    if "completion" in known_names and needed <= known_names:
        part = CompletionReward(function, known_names, needed)
        return TogetherReward(part) if inspect.iscoroutinefunction(function) else part
    try:
        inspect.signature(function).bind("completion", "answer", {})
        ours = next(iter(parameters)) not in (*_FOREIGN, "self")
    except TypeError:
        ours = False
    if not ours:
        raise UserError(f"task.reward.parts: {path!r} takes ({', '.join(parameters)}); write it as {WANTED}.")
    return _synchronous(function)


def _function_of(path: str, found: Any, called: bool) -> Function:
    """Returns the function that computes the reward: what was found, or the method `__call__` of the object or class
    that was found. An object of a class is made only if the function is to be `called`. Raises UserError for a class
    whose objects cannot be made without arguments, or not called."""
    if inspect.isclass(found):
        require(
            _calls(found),
            f"task.reward.parts: {path!r} is a class without a method __call__: give it one, or name a function",
        )
        try:
            inspect.signature(found).bind()
            found = found() if called else partial(found.__call__, None)
        except Exception as error:  # the user's own constructor may raise anything
            raise UserError(
                f"task.reward.parts: {path!r} is a class, and none of its objects can be made without arguments "
                f"({first_line(error)}): make one in the file, as in reward = {path.rpartition(':')[2]}(…), and name "
                "that object"
            ) from error
    return found.__call__ if _calls(type(found)) else found


def _calls(kind: type) -> bool:
    """Tells whether a class defines `__call__` itself, in Python. Functions and methods are objects of classes too."""
    return inspect.isfunction(inspect.getattr_static(kind, "__call__", None))


_STARRED = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


def _verl(function: Function, names: frozenset[str] | None) -> Function:
    """Adapts a function with verl's signature. Its `data_source` and `extra_info` are read from the data's columns."""

    def part(completion: str, answer: str, metadata: Mapping[str, Any]) -> Any:
        columns = {name: metadata.get(name) for name in ("data_source", "extra_info")}
        arguments = {**columns, "solution_str": completion, "ground_truth": answer}
        return function(**{name: value for name, value in arguments.items() if names is None or name in names})

    return part


def _synchronous(function: Function) -> Function:
    """Returns a synchronous form of a function that may be async."""
    if not inspect.iscoroutinefunction(function):
        return function
    return lambda *arguments, **options: asyncio.run(function(*arguments, **options))


def carried(names: Iterable[str]) -> dict[str, bytes]:
    """Pickles those of the named functions that only this process has, for its own grading workers.

    The pickles go from this process to its workers, and nothing else is ever unpickled there. Raises UserError for a
    function that cannot be pickled.
    """
    pickled = {}
    for name in names:
        if name in given:
            import cloudpickle

            try:
                pickled[name] = cloudpickle.dumps(given[name])
            except Exception as error:  # whatever the function refers to may raise anything
                raise UserError(
                    f"the reward {name} cannot be sent to the grading processes ({first_line(error)}): what it uses "
                    "must be possible to pickle, or put it into a .py file and import it from there"
                ) from error
    return pickled


@contextmanager
def _deadline() -> Iterator[None]:
    """Raises TimeoutError in the main thread when what it does takes longer than `START_SECONDS`."""

    def late(*_: object) -> None:
        raise TimeoutError(f"it takes longer than {START_SECONDS:g} s, so find out what it waits for")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, START_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _imported(path: str) -> Function:
    try:
        with _deadline():
            return imported(path)
    except (Exception, SystemExit) as error:  # a module may raise anything while it is imported
        of_class = "; a method has no name here: write a function" if "." in path.rpartition(":")[2] else ""
        reason = f"{type(error).__name__}: {first_line(error)}{place_of(error)}{of_class}"
        raise UserError(f"task.reward.parts: cannot import {path!r}: {reason}.") from error
