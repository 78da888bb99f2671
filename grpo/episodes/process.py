# Light: imported before torch, or without it.
"""This program runs episodes, each in a process that it forks, so that one can be killed without harming another.

    python -m grpo.episodes.process SOCKET LIMITS PATH

It imports what `task.episode` names once, and forks when the trainer sends it a socket. Objects that a script has given
to `Trainer` come as pickles, once and before any fork, by the standard input. The episode's process talks to the
trainer over its socket by JSON lines, never by pickles, since what a model writes may run in it:

    to the trainer      {"pid": n}                                   names the process that is to be killed
                        {"chat": n, "messages": […], "tools": […]}   asks for the model's next turn
                        {"gone": n}                                  waits for that turn no more
                        {"rewards": {…}, "counts": {…}, "state": {…}} ends the episode
                        {"error": "…"}                               ends it as failed
    from the trainer    {"problem": {…}, "row": {…}, "seed": n, "address": "…"}
                        {"chat": n, "message": {…}}                  answers
                        {"chat": n, "over": true}                    says that a limit is reached

All processes of an episode are killed with it, and all episodes end when the trainer does.
"""

import asyncio
import gc
import hashlib
import inspect
import json
import os
import pickle
import random
import resource
import selectors
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from glob import glob
from pathlib import Path
from typing import Any

from grpo.config import LimitsConfig
from grpo.config.credentials import TRACKERS
from grpo.config.errors import UserError, first_line, place_of
from grpo.episodes.forms import FUNCTION, EpisodeOver, Form, form_of, played
from grpo.episodes.messages import POLICY, Message
from grpo.episodes.tool_schemas import schema_of
from grpo.sandbox.walls import adopt_orphans, end_first, end_with_parent, go_on_with_parents_end, limit
from grpo.types import Problem
from grpo.types.imported import given

LONGEST_LINE = 2**26
LOOK_SECONDS = 0.2


def main(arguments: Sequence[str]) -> int:
    descriptor, limits, path = int(arguments[0]), LimitsConfig(**json.loads(arguments[1])), arguments[2]
    control = socket.socket(fileno=descriptor)
    # The import may hang, and the trainer may end meanwhile.
    end_with_parent(os.getppid())
    for name in (*TRACKERS, "HF_TOKEN"):
        os.environ.pop(name, None)
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    # The working folder comes last (see `grpo.host.imports.look_here_last`), and programs of Python find it as usual.
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)
    os.environ.pop("PYTHONSAFEPATH", None)
    try:
        if objects := sys.stdin.buffer.read():
            given.update(pickle.loads(objects))
        # Programs of an episode find an empty standard input.
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
        form = form_of(path, limits)
        source = _source_of(form)
        ready = {"kind": form.kind, "tools": form.schemas, "source": hashlib.sha256(source).hexdigest()}
        if form.kind == FUNCTION and b"tools=" in source:
            # Each episode describes the functions that it shows the model, and would import this anew.
            from transformers.utils import chat_template_utils  # noqa: F401
        taken = _taken_gib()
        if limits.memory_gib < taken:
            ready = {
                "error": f"task.limits.memory_gib={limits.memory_gib:g} is less than the {taken:.2g} GiB that "
                f"{path} has taken after being imported: raise it"
            }
    except UserError as error:
        ready = {"error": str(error)}
    except BaseException as error:
        ready = {"error": f"task.episode={path} cannot be imported ({_described_error(error)})"}
    # An episode may stop this process, which then would not see its trainer end.
    go_on_with_parents_end()
    control.sendall(json.dumps(ready).encode() + b"\n")
    if "error" in ready:
        return 1
    _serve(control, form, int(limits.memory_gib * 2**30))
    return 0


def _source_of(form: Form) -> bytes:
    """Returns the files that hold the user's functions or class."""
    files: set[str] = set()
    for function in form.functions:
        with suppress(TypeError):  # a callable object has no file
            files.add(inspect.getfile(function))
    return b"".join(Path(file).read_bytes() for file in sorted(files) if Path(file).is_file())


def _serve(control: socket.socket, form: Form, memory: int) -> None:
    """Forks a process for each socket that comes, until the trainer ends. Kills all that an episode leaves behind."""
    # The collector of a child then passes over what is imported here, and copies no pages of it.
    gc.collect()
    gc.freeze()
    adopt_orphans()
    own, children, others = os.getpid(), set[int](), _children()
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        while True:
            children -= {child for child in children if os.waitpid(child, os.WNOHANG)[0]}
            # Processes that an ended episode has left behind, in whatever session, have this one as their parent now.
            strays = _children() - children - others
            _kill(strays)
            children |= strays
            if not selector.select(timeout=LOOK_SECONDS):
                continue
            line, sockets, _, _ = socket.recv_fds(control, 64, 1)
            if not line:
                break
            if not sockets:
                # A number names the child to be killed.
                _kill({int(line)} & children)
                continue
            child = os.fork()
            if not child:
                _be_child(own, control, sockets[0], form, memory)
            os.close(sockets[0])
            children.add(child)
    while left := _children() - others:
        _kill(left)
        for child in left:
            os.waitpid(child, 0)


def _taken_gib() -> float:
    """Returns the memory of its own that this process has taken, which the limit on memory counts."""
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    return pages * resource.getpagesize() / 2**30


def _children() -> set[int]:
    """Returns the children of this process."""
    children: set[int] = set()
    for task in glob("/proc/self/task/*/children"):
        # A thread may have ended.
        with suppress(OSError):
            children |= {int(child) for child in Path(task).read_text().split()}
    return children


def _kill(children: Set[int]) -> None:
    for child in children:
        os.kill(child, signal.SIGKILL)


def _be_child(parent: int, control: socket.socket, descriptor: int, form: Form, memory: int) -> None:
    """Runs one episode and ends the process."""
    os.setpgid(0, 0)
    end_with_parent(parent)
    adopt_orphans()
    with suppress(OSError):
        end_first()
    control.close()
    # Node reserves far more addresses than it has memory, so addresses are not limited.
    limit(resource.RLIMIT_DATA, memory)
    link = socket.socket(fileno=descriptor)
    try:
        asyncio.run(_episode(link, form))
    finally:
        # Threads of tools that hang do not hold up the end.
        os._exit(0)


async def _episode(link: socket.socket, form: Form) -> None:
    reader, writer = await asyncio.open_connection(sock=link, limit=LONGEST_LINE)
    trainer = _Trainer(reader, writer)
    trainer.send({"pid": os.getpid()})
    begin = json.loads(await reader.readline())
    if begin["address"]:
        # OpenAI's clients, and programs that use them, find their way by these.
        os.environ.update(OPENAI_BASE_URL=begin["address"], OPENAI_API_KEY=POLICY, OPENAI_MODEL=POLICY)
    random.seed(begin["seed"])
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(begin["seed"] % 2**32)
    listening = asyncio.create_task(trainer.listen())
    try:
        outcome = await played(form, trainer.chat, Problem(**begin["problem"]), begin["row"])
        trainer.send({"rewards": outcome.rewards, "counts": outcome.counts, "state": outcome.state})
    except EpisodeOver:
        trainer.send({"rewards": {}, "counts": {}, "state": {}})
    except MemoryError:
        trainer.send({"error": "it needs more memory than task.limits.memory_gib"})
    except BaseException as error:
        trainer.send({"error": _described_error(error)})
    listening.cancel()
    with suppress(ConnectionError):
        await writer.drain()


class _Trainer:
    """This end of the socket asks the trainer for turns."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._reader, self._writer = reader, writer
        self._asked: list[asyncio.Future[Message]] = []
        self._loop = asyncio.get_running_loop()

    def send(self, values: Mapping[str, Any], default: Callable[[Any], Any] | None = str) -> None:
        """Sends values as JSON. `default` turns others into some that JSON has; with None they raise TypeError."""
        self._writer.write(json.dumps(values, default=default).encode() + b"\n")

    async def chat(self, messages: Sequence[Message], tools: Sequence[Any] | None = None, **further: Any) -> Message:
        """Returns the assistant's next message. Raises EpisodeOver once the episode has reached a limit."""
        if further:
            raise TypeError(f"chat takes messages and tools alone: {min(further)} is for rollout.sampling to say")
        schemas = [schema_of(tool) if callable(tool) else tool for tool in tools or ()]
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("chat belongs to the event loop that the episode runs in: await it there")
        answer: asyncio.Future[Message] = self._loop.create_future()
        number = len(self._asked)
        self.send({"chat": number, "messages": list(messages), "tools": schemas}, default=None)
        self._asked.append(answer)
        try:
            return await answer
        except asyncio.CancelledError:
            self.send({"gone": number})
            raise

    async def listen(self) -> None:
        while line := await self._reader.readline():
            said = json.loads(line)
            answer = self._asked[said["chat"]]
            if answer.done():
                continue  # nobody waits for it any more, as after asyncio.wait_for
            if "over" in said:
                answer.set_exception(EpisodeOver())
            else:
                answer.set_result(said["message"])
        # The trainer has ended.
        os._exit(1)


def _described_error(error: BaseException) -> str:
    """Returns an error's kind and first line, and where in the user's own code it was raised."""
    text = f"{type(error).__name__}: {first_line(error)}"
    if isinstance(error, TypeError) and "'coroutine' object" in text:
        text += ": write await before chat(…)"
    return text + place_of(error)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
