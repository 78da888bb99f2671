# Light: imported before torch, or without it.
"""This module runs one episode: functions as tools, an environment class, a function, or a program.

The first three talk to the model through a chat, which gives the next message of the assistant. A program talks to an
address with OpenAI's interface.
"""

import asyncio
import copy
import inspect
import json
import math
import os
import re
import shlex
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO

from grpo.config import LimitsConfig
from grpo.config.errors import UserError
from grpo.config.task import LARGEST_REWARD
from grpo.episodes.messages import Message, messages_of
from grpo.episodes.ready_tools import READY
from grpo.episodes.tool_schemas import methods_of, schema_of
from grpo.types import Problem
from grpo.types.imported import imported

Chat = Callable[..., Awaitable[Message]]
"""A chat takes the messages so far, and tools as functions or as JSON schemas, and returns the assistant's message. It
raises `EpisodeOver` once the episode has reached a limit."""

Tool = Callable[[Mapping[str, Any]], Awaitable[Any]]
"""A tool takes the arguments of a call by their names."""

TOOLS, ENVIRONMENT, FUNCTION, PROGRAM = "tools", "an environment", "a function", "a program"
LAST_CHARACTERS = 2**20
PROGRAM_WORD, VERIFIERS_WORD = "program:", "verifiers:"


class EpisodeOver(Exception):
    """This error ends an episode that has reached its limit of turns or tokens. It needs no handler."""


@dataclass(frozen=True, slots=True)
class Form:
    """A form is what `task.episode` names: functions that are tools, a class of environments and perhaps functions
    beside it, a function, or the words of a program's command."""

    kind: str
    functions: tuple[Callable[..., Any], ...] = ()
    schemas: tuple[Mapping[str, Any], ...] = ()
    words: tuple[str, ...] = ()


def form_of(path: str, limits: LimitsConfig | None = None) -> Form:
    """Imports what `path` names: ``"file.py:name,name"`` or ``"package.module:name"``, or ``"program: COMMAND"``, or
    ``"verifiers:ID"``. Tools that come with grpo stand before it, as in ``"python,file.py:name"``, or alone. They keep
    to `limits`.

    A class with a method `reset` is an environment, and functions may be named beside it. A function whose first
    parameter is `chat` leads its own conversation. All other functions are tools. Raises UserError for everything else.
    """
    if path.startswith(PROGRAM_WORD):
        return _program(path)
    if path.startswith(VERIFIERS_WORD):
        return _environment_of_verifiers(path)
    if path.startswith("["):
        raise UserError(f"task.episode={path!r} is a list: write the names as one text, as in file.py:name,name")
    before, colon, names = path.rpartition(":")
    *first, module = before.split(",") if colon else (*path.split(","), "")
    unknown = [name for name in map(str.strip, first) if name not in READY]
    if unknown or bool(module) != bool(names if colon else "") or not (first or module):
        raise UserError(
            f"task.episode={path!r} must be written as file.py:name, or file.py:name,name for several tools; "
            f"{' and '.join(READY)} come with grpo, and may stand alone or before them, and a program is written "
            '"program: COMMAND"'
        )
    found = [READY[name.strip()](limits or LimitsConfig()) for name in first]
    found += [imported(f"{module}:{name.strip()}") for name in names.split(",") if colon]
    if sum(map(inspect.isclass, found)) == 1:
        return _environment(path, found)
    names, leads = _parameters(found[0]), _parameters(found[0])[:1] == ["chat"]
    if "chat" in names[1:] or (inspect.iscoroutinefunction(found[0]) and not leads and not found[0].__doc__):
        raise UserError(
            f"task.episode: {path} is read as a tool, since its first parameter is not named chat: to lead a "
            f"conversation write async def {found[0].__name__}(chat, problem)"
        )
    if len(found) == 1 and leads:
        if inspect.isasyncgenfunction(found[0]):
            raise UserError(f"task.episode: {path} yields: write return, with the reward")
        if not inspect.iscoroutinefunction(found[0]):
            raise UserError(f"task.episode: {path} leads a conversation, so write it as async def")
        _require_takes(found[0], 2, f"{path} is called with two arguments: write async def NAME(chat, problem)")
        return Form(FUNCTION, (found[0],))
    return Form(TOOLS, tuple(found), _schemas(path, found))


def _environment(path: str, found: Sequence[Any]) -> Form:
    """Returns the form of a class of environments, and of functions that are tools beside its methods."""
    kind, *functions = sorted(found, key=inspect.isclass, reverse=True)
    if not callable(getattr(kind, "reset", None)):
        raise UserError(f"task.episode: {path} is a class without a method reset: an environment needs one")
    if inspect.isgeneratorfunction(kind.reset) or inspect.isasyncgenfunction(kind.reset):
        raise UserError(f"task.episode: the method reset of {path} yields: write return, with what the model reads")
    _require_takes(kind, 0, f"{path} is made anew for each episode, so its __init__ takes no argument but self")
    return Form(ENVIRONMENT, (kind, *functions), _schemas(path, [*functions, *methods_of(kind).values()]))


def _schemas(path: str, tools: Sequence[Any]) -> tuple[Mapping[str, Any], ...]:
    """Describes tools. Raises UserError for what is none, and for two with one name."""
    for one in tools:
        leads = _parameters(one)[:1] == ["chat"]
        if leads or callable(getattr(one, "reset", None)):
            what = "leads a conversation" if leads else "is one of several environments"
            raise UserError(f"task.episode={path}: {one.__name__} {what}, and so stands alone: leave out the others")
    schemas = tuple(map(schema_of, tools))
    called = Counter(schema["function"]["name"] for schema in schemas)
    if twice := [name for name, times in called.items() if times > 1]:
        raise UserError(
            f"task.episode={path}: {len(schemas)} tools, and more than one has the name {twice[0]}: rename it"
        )
    return schemas


def _parameters(function: Any) -> list[str]:
    return [] if inspect.isclass(function) else [*inspect.signature(function).parameters]


def _require_takes(function: Callable[..., Any], count: int, complaint: str) -> None:
    """Raises UserError where a function cannot be called with `count` arguments."""
    try:
        inspect.signature(function).bind(*range(count))
    except ValueError:
        return  # classes on top of dict, among others, have no signature
    except TypeError as error:
        raise UserError(f"task.episode: {complaint} ({error})") from error


def _program(path: str) -> Form:
    try:
        words = shlex.split(path.removeprefix(PROGRAM_WORD))
    except ValueError as error:
        raise UserError(f"task.episode={path!r} is no command ({error})") from error
    if shell := {"|", "&&", "||", ";", "<", ">", ">>", "2>"}.intersection(words):
        raise UserError(f"task.episode={path!r}: no shell reads {min(shell)}: write program: bash -c 'COMMAND'")
    if words and Path(words[0]).is_file() and not os.access(words[0], os.X_OK):
        raise UserError(
            f"task.episode={path!r}: {words[0]} may not be executed: chmod +x {words[0]}, or write before it "
            f"what runs it, such as node {words[0]}"
        )
    if words and Path(words[0]).is_file() and not shutil.which(words[0]):
        raise UserError(
            f"task.episode={path!r}: {words[0]} is a file here and no program on the PATH: write ./{words[0]}, or what "
            f"runs it before it, such as node {words[0]}"
        )
    if not words or not shutil.which(words[0]):
        raise UserError(f"task.episode={path!r}: there is no program {(words or [''])[0]!r} to be run")
    return Form(PROGRAM, words=tuple(words))


def _environment_of_verifiers(path: str) -> Form:
    try:
        from grpo.episodes.verifiers_bridge import player
    except ModuleNotFoundError as error:
        raise UserError(
            f"task.episode={path} needs a Python that has verifiers ({error}): run bash launch/verifiers.sh, and set "
            "task.python=.venv-verifiers/bin/python"
        ) from error
    return Form(FUNCTION, (player(shlex.split(path.removeprefix(VERIFIERS_WORD))),))


@dataclass(slots=True)
class Outcome:
    """The outcome of an episode is what its own code says of it. `state` is what an environment holds at its end."""

    rewards: dict[str, float]
    counts: Counter[str]
    state: dict[str, Any] = field(default_factory=dict)


async def played(form: Form, chat: Chat, problem: Problem, row: Mapping[str, Any]) -> Outcome:
    """Runs one episode to its end. `row` has the problem's columns, for an environment's `reset`. Passes on what a
    user's own code raises, but for tools."""
    counts: Counter[str] = Counter()
    messages = [dict(message) for message in problem.messages]
    try:
        if form.kind == FUNCTION:
            return Outcome(_rewards(await form.functions[0](chat, problem)), counts)
        if form.kind == PROGRAM:
            return Outcome(_rewards(await _run(form.words, problem, row)), counts)
        if form.kind == TOOLS:
            tools = {function.__name__: partial(_called, function) for function in form.functions}
            await _converse(chat, messages, form, tools, counts)
            return Outcome({}, counts)
        # Some things belong to the thread that has made them, such as connections of sqlite3.
        thread = ThreadPoolExecutor(1)
        environment = await _called(form.functions[0], {}, thread)
        columns = _accepted(environment.reset, {**row, "prompt": copy.deepcopy(messages)})
        observation = await _called(environment.reset, columns, thread)
        if observation is not None:
            _require_no_messages(observation)
            shown, content = _shown(observation), messages[-1]["content"]
            parts = content + shown if isinstance(shown, str) else [{"type": "text", "text": content}, *shown]
            messages[-1] = {**messages[-1], "content": parts}
        methods = methods_of(form.functions[0])
        tools = {name: partial(_called, getattr(environment, name), thread=thread) for name in methods}
        tools |= {function.__name__: partial(_called, function, thread=thread) for function in form.functions[1:]}
    except EpisodeOver:
        return Outcome({}, counts)
    with suppress(EpisodeOver):
        await _converse(chat, messages, form, tools, counts)
    own_reward = getattr(environment, "get_reward", None)
    reward = await _called(own_reward if callable(own_reward) else partial(_reward_of, environment), {}, thread)
    return Outcome(_rewards(reward), counts, await _called(partial(_state, environment), {}, thread))


def _require_no_messages(observation: Any) -> None:
    if isinstance(observation, list) and any(isinstance(part, Mapping) and "role" in part for part in observation):
        raise TypeError("reset returned messages: return text, which the model reads behind the question")


def _reward_of(environment: Any) -> Any:
    """Returns an environment's attribute `reward`, or None if it has none. Passes on an error within a property."""
    try:
        return environment.reward
    except AttributeError:
        if inspect.getattr_static(environment, "reward", None) is None:
            return None
        raise


def _state(environment: Any) -> dict[str, Any]:
    """Returns the public attributes of an environment that JSON can hold."""
    state: dict[str, Any] = {}
    for name in dir(environment):
        # A property may raise anything, and an open file has no JSON.
        with suppress(Exception):
            if not name.startswith("_") and not callable(value := getattr(environment, name)):
                state[name] = json.loads(json.dumps(value, default=_plain))
    return state


async def _run(words: Sequence[str], problem: Problem, row: Mapping[str, Any]) -> Any:
    """Runs a program, which reads the problem as JSON. If the last line that it prints is JSON, that is its reward.

    It speaks to the address in OPENAI_BASE_URL. Raises RuntimeError if it fails.
    """
    # Files end with the program. Pipes stay open as long as a process that it leaves behind.
    with TemporaryFile() as asked, TemporaryFile() as written, TemporaryFile() as complaints:
        asked.write(json.dumps({**asdict(problem), "row": row}, default=str).encode() + b"\n")
        asked.seek(0)
        process = await asyncio.create_subprocess_exec(
            *words, stdin=asked, stdout=written, stderr=complaints, env=os.environ
        )
        code = await process.wait()
        printed, said = (_last_lines(file) for file in (written, complaints))
    if code:
        # Node.js writes its version behind an error.
        errors = [line for line in said if re.match(r"\w*(Error|Exception)\b", line)]
        reason = (errors or said or ["it said nothing"])[-1]
        raise RuntimeError(f"{words[0]} ended with exit code {code}: {reason}")
    try:
        reward = json.loads(printed[-1] if printed else "")
    except ValueError:
        return None
    return reward if isinstance(reward, int | float | dict) else None


def _last_lines(file: BinaryIO) -> list[str]:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - LAST_CHARACTERS))
    return file.read().decode(errors="replace").strip().splitlines()


async def _converse(
    chat: Chat, messages: list[Message], form: Form, tools: Mapping[str, Tool], counts: Counter[str]
) -> None:
    """Lets the model call tools until it calls none. Functions that it calls in one message run together, and methods
    of an environment one after another, since each may change it."""
    while calls := (message := await chat(messages, form.schemas)).get("tool_calls"):
        coming = (_result(tools, call, counts) for call in calls)
        one_by_one = form.kind == ENVIRONMENT
        results = [await result for result in coming] if one_by_one else await asyncio.gather(*coming)
        messages += [message, *results]
    messages.append(message)


async def _result(tools: Mapping[str, Tool], call: Mapping[str, Any], counts: Counter[str]) -> Message:
    """Returns the message that answers a call. A tool's exception is a message too, which the model can read."""
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    counts["calls"] += 1
    try:
        if name not in tools:
            raise LookupError(f"there is no tool {name!r}, only {', '.join(sorted(tools))}")
        # A tool may change what it gets, and the model's own words stay as they are.
        content = _shown(await tools[name](copy.deepcopy(arguments)))
        messages_of([{"role": "tool", "content": content}])
    except BaseException as error:  # such as the panics of libraries in Rust
        if isinstance(error, GeneratorExit) or (
            isinstance(error, asyncio.CancelledError) and asyncio.current_task().cancelling()
        ):
            raise
        counts["failed_calls"] += 1
        content = _shown({"error": _said_by(error)})
    return {"role": "tool", "tool_call_id": call["id"], "name": name, "content": content}


def _said_by(error: BaseException) -> str:
    """Returns the kind of an error and its message, which may itself raise an error."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__


def _shown(returned: Any) -> str | list[Any]:
    """Returns what a tool or an environment has returned as the content of a message: text, parts of one, or JSON.

    Raises TypeError for bytes and iterators.
    """
    parts = isinstance(returned, list) and all(isinstance(part, Mapping) and "type" in part for part in returned)
    return (
        returned
        if isinstance(returned, str) or (parts and returned)
        else json.dumps(returned, default=_text, ensure_ascii=False)
    )


def _plain(value: Any) -> Any:
    """Returns a number or an array of numpy or torch as Python's own. Raises TypeError for anything else."""
    if type(value).__module__ not in ("numpy", "torch") or not hasattr(value, "tolist"):
        raise TypeError
    return value.tolist()


def _text(value: Any) -> Any:
    with suppress(TypeError):
        return _plain(value)
    is_unreadable = isinstance(value, bytes | bytearray | set | frozenset | Iterator | AsyncIterator)
    # An object without a text of its own shows its address, which differs from one episode to the next.
    if is_unreadable or re.search(r"<.+ at 0x[0-9a-fA-F]+", text := str(value)):
        raise TypeError(f"it returned {type(value).__name__}, which no model reads: return text, or what JSON can hold")
    return text


async def _called(function: Callable[..., Any], arguments: Mapping[str, Any], thread: Executor | None = None) -> Any:
    """Calls a function that may be async. Several that are not run in threads beside each other, or all in `thread`."""
    if inspect.iscoroutinefunction(function):
        return await function(**arguments)
    loop = asyncio.get_running_loop()
    returned = await loop.run_in_executor(thread, copy_context().run, _returned, function, arguments)
    return await returned if inspect.isawaitable(returned) else returned


def _returned(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    try:
        return function(**arguments)
    except StopIteration as error:
        # A future cannot hold it.
        raise RuntimeError(f"it raised StopIteration: {error}") from error


def _accepted(function: Callable[..., Any], columns: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those of a problem's columns that a function takes. Raises TypeError where it takes others too."""
    signature = inspect.signature(function)
    takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    accepted = {name: value for name, value in columns.items() if takes_all or name in signature.parameters}
    try:
        signature.bind(**accepted)
    except TypeError as error:
        raise TypeError(f"{function.__name__}: {error}; the row has {', '.join(columns)}") from error
    return accepted


def _rewards(returned: Any) -> dict[str, float]:
    """Returns an episode's rewards by name: a number is its "reward", a mapping has a "reward" or a "score" among
    further numbers. None gives none. Raises ValueError for anything else, and for more than `LARGEST_REWARD`."""
    if returned is None:
        return {}
    named = dict(returned) if isinstance(returned, Mapping) else {"reward": returned}
    if "reward" not in named and "score" in named:
        named["reward"] = named.pop("score")
    rewards = {}
    for name, value in named.items():
        with suppress(TypeError, ValueError):
            rewards[str(name)] = float(value)
        if not abs(rewards.get(str(name), math.inf)) <= LARGEST_REWARD:
            limits = f"between -{LARGEST_REWARD:.0e} and {LARGEST_REWARD:.0e}"
            raise ValueError(f"it returned {name}={value!r:.60}: every reward is a number {limits}")
    return rewards
