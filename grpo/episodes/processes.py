"""This module starts the processes in which episodes run, speaks with them, and kills those that take too long."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import select
import shutil
import socket
import subprocess
import sys
import time
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from grpo.config import LimitsConfig
from grpo.config.errors import UserError, first_line
from grpo.episodes.forms import FUNCTION
from grpo.episodes.messages import Message, Unreadable, json_of, messages_of, tools_of
from grpo.episodes.process import LONGEST_LINE
from grpo.sandbox.walls import kill_marked
from grpo.types import Completion, Problem
from grpo.types.imported import GIVEN, given

logger = logging.getLogger(__name__)

SLICE_SECONDS = 1.0
"""An episode's own time is counted in slices of at most this length, in which the trainer may work for longer."""
MARK = "GRPO_EPISODES"
"""This environment variable holds a mark of the process that forks episodes."""
START_SECONDS = 300.0
"""The file of an episode may take this long to be imported."""
NO_TURN = "it ended without a turn of the model"


class Failed(Exception):
    """This error says that an episode's own code raised an exception, or that its process ended."""


class Hanging(Failed):
    """This error says that an episode's own code took longer than it may."""


class Processes:
    """This object forks a process for each episode of what `path` names, from one process that has imported it.

    `python` is the interpreter of that process, "" the trainer's own. Raises UserError if `path` cannot be imported.
    """

    def __init__(self, path: str, limits: LimitsConfig, python: str = ""):
        if python and not shutil.which(python):
            raise UserError(f"task.python={python} is no program: name the python of an environment that has grpo")
        self._path, self._limits, self._python = path, limits, python
        self._starting = asyncio.Lock()
        ready = self._start()
        self.kind: str = ready["kind"]
        self._source: str = ready["source"]
        self.tools: list[Mapping[str, Any]] = ready["tools"]
        # The error of an episode that ends without a turn of the model.
        self.no_turn = NO_TURN + ", as where an await lacks before chat(…)" * (self.kind == FUNCTION)

    def _start(self) -> Mapping[str, Any]:
        """Starts the process that forks, and returns what it says of the file."""
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        begin = [str(theirs.fileno()), json.dumps(asdict(self._limits)), self._path]
        words = [self._python or sys.executable, "-m", "grpo.episodes.process", *begin]
        # Whatever an episode leaves behind inherits this.
        self._mark = secrets.token_hex(8)
        environment = {**os.environ, MARK: self._mark}
        if self._python:
            # Its own programs come first.
            environment["PATH"] = os.pathsep.join([str(Path(self._python).parent), environment.get("PATH", "")])
        with TemporaryFile() as objects:
            objects.write(_pickled(self._path))
            objects.seek(0)
            self._process = subprocess.Popen(
                words, pass_fds=[theirs.fileno()], start_new_session=True, stdin=objects, env=environment
            )
        theirs.close()
        return self._ready()

    def _ready(self) -> Mapping[str, Any]:
        """Waits until the file is imported, and returns what it has."""
        try:
            readable, _, _ = select.select([self._control], [], [], START_SECONDS)
        except BaseException:  # Ctrl-C
            self._process.kill()
            self.close()
            raise
        said = self._control.recv(LONGEST_LINE) if readable else b""
        ready = json.loads(said) if said else {"error": self._silence(bool(readable))}
        if "error" in ready:
            self.close()
            raise UserError(ready["error"])
        return ready

    def _silence(self, ended: bool) -> str:
        why = "its process ended" if ended else f"that has taken longer than {START_SECONDS:g} s"
        hint = f"; is grpo installed for {self._python}?" if ended and self._python else ""
        return f"task.episode={self._path} cannot be imported: {why}{hint}"

    @asynccontextmanager
    async def episode(self) -> AsyncIterator[Link]:
        """Begins an episode in a process of its own, which ends with the context."""
        ours, theirs = socket.socketpair()
        with theirs:
            await self._fork(theirs)
        reader, writer = await asyncio.open_connection(sock=ours, limit=LONGEST_LINE)
        link = Link(writer)
        listening = asyncio.create_task(link.listen(reader))
        try:
            yield link
        finally:
            listening.cancel()
            if link.pid:
                with suppress(OSError):
                    self._control.send(str(link.pid).encode())
            writer.close()

    async def _fork(self, theirs: socket.socket) -> None:
        """Has a process forked that speaks over `theirs`. Starts the process that forks again if it was killed, as the
        kernel does where memory is short."""
        async with self._starting:
            try:
                socket.send_fds(self._control, [b"begin"], [theirs.fileno()])
            except OSError:
                self.close()
                logger.warning("the process that begins episodes of %s was killed, and is started again", self._path)
                ready = await asyncio.to_thread(self._start)
                if ready["source"] != self._source:
                    raise UserError(
                        f"task.episode={self._path} was changed while the run went on, and the process that had "
                        "imported it was killed: resume the run to go on with what it holds now"
                    ) from None
                socket.send_fds(self._control, [b"begin"], [theirs.fileno()])

    def close(self) -> None:
        """Ends all episodes and the process that has forked them."""
        self._control.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._process.kill()
        self._process.wait()
        # That process ends what episodes leave, unless it was killed itself.
        kill_marked(f"{MARK}={self._mark}")


def _pickled(path: str) -> bytes:
    """Pickles the objects of `path` that only this process has. Raises UserError for one that cannot be pickled."""
    module, _, names = path.rpartition(":")
    if module != GIVEN:
        return b""
    import cloudpickle

    paths = [f"{GIVEN}:{name}" for name in names.split(",")]
    try:
        return cloudpickle.dumps({path: given[path] for path in paths if path in given})
    except Exception as error:  # whatever an object refers to may raise anything
        raise UserError(
            f"episode= cannot be sent to another process ({first_line(error)}): what it uses must be possible to "
            "pickle, or put it into a .py file and import it from there"
        ) from error


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer is the model's next turn: as a message, and as it was sampled after `num_read` tokens."""

    message: Message
    turn: Completion
    num_read: int


@dataclass(frozen=True, slots=True)
class Question:
    """A question asks for the model's next turn, of at most `max_tokens` tokens. `reply` takes the answer, or None once
    the episode has reached a limit. `gone` tells whether nobody waits for it any more."""

    messages: Sequence[Message]
    tools: Sequence[Message] | None
    reply: Callable[[Answer | None], None]
    max_tokens: int | None = None
    gone: Callable[[], bool] = lambda: False


@dataclass(frozen=True, slots=True)
class Ended:
    """This is what an episode's code says at its end."""

    rewards: Mapping[str, float]
    counts: Mapping[str, int]
    state: Mapping[str, Any] = field(default_factory=dict)


class Link:
    """A link is the trainer's end of an episode's socket. `seconds` are those that the episode's own code took."""

    def __init__(self, writer: asyncio.StreamWriter):
        self._writer = writer
        self._inbox: asyncio.Queue[Question | Ended | Failed] = asyncio.Queue()
        self.pid, self.seconds = 0, 0.0
        self._gone: set[int] = set()

    def send(self, values: Mapping[str, Any]) -> None:
        self._writer.write(json.dumps(values, default=str).encode() + b"\n")

    def begin(self, problem: Problem, column_names: tuple[str, str], seed: int, address: str) -> None:
        """Begins the episode of a problem, whose messages put it to the model. `column_names` are those of the question
        and of the answer, and `address` is a gateway's, or ""."""
        metadata, (question_name, answer_name) = dict(problem.metadata), column_names
        row = {question_name: problem.question, **metadata, answer_name: problem.typed_answer}
        asked = asdict(replace(problem, metadata=metadata, messages=tuple(problem.messages)))
        self.send({"problem": asked, "row": row, "seed": seed, "address": address})

    def put(self, said: Question | Ended | Failed) -> None:
        """Adds to what `said` returns."""
        self._inbox.put_nowait(said)

    async def listen(self, reader: asyncio.StreamReader) -> None:
        """Puts down what the episode's process says until it ends."""
        try:
            while line := await reader.readline():
                values = json_of(line)
                if "pid" in values:
                    self.pid = values["pid"]
                elif "gone" in values:
                    self._gone.add(values["gone"])
                else:
                    self.put(self._understood(values))
            self.put(Failed("its process ended"))
        except Unreadable as error:
            self.put(Failed(str(error)))
        except (ConnectionError, ValueError):
            self.put(Failed(f"its process broke off what it said, or said more than {LONGEST_LINE >> 20} MiB at once"))
        except Exception as error:
            # No other code looks at this task.
            self.put(Failed(f"what it said cannot be read ({type(error).__name__}: {first_line(error)})"))

    def _understood(self, values: Mapping[str, Any]) -> Question | Ended | Failed:
        if "error" in values:
            return Failed(values["error"])
        if "rewards" in values:
            return Ended(values["rewards"], values["counts"], values["state"])

        number, messages, tools = values["chat"], messages_of(values["messages"]), tools_of(values["tools"])

        def reply(answer: Answer | None) -> None:
            self.send({"chat": number, **({"message": answer.message} if answer else {"over": True})})

        return Question(messages, tools, reply, gone=lambda: number in self._gone)

    async def said(self, answers: Collection[asyncio.Task[None]], limit: float) -> Question | Ended:
        """Returns what the episode says next. `answers` are those that it waits for. Its own code, while it waits for
        none, may take `limit` seconds in all. Raises Hanging after that, what an answer raised, and Failed."""
        receiving = asyncio.create_task(self._inbox.get())
        try:
            while not receiving.done():
                began, waiting = time.monotonic(), [answer for answer in answers if not answer.done()]
                left = None if waiting else min(SLICE_SECONDS, max(0.0, limit - self.seconds))
                done, _ = await asyncio.wait([receiving, *waiting], timeout=left, return_when=FIRST_COMPLETED)
                self.seconds += 0.0 if left is None else min(left, time.monotonic() - began)
                if not done and self.seconds >= limit:
                    what = "it took longer" if self.pid else "its process took longer to begin"
                    raise Hanging(f"{what} than task.limits.seconds={limit:g}")
                for answer in done - {receiving}:
                    answer.result()
            said = receiving.result()
            if isinstance(said, Failed):
                raise said
            return said
        finally:
            receiving.cancel()
