"""This module starts the processes in which episodes run, speaks with them, and kills those that take too long."""

from __future__ import annotations

import asyncio
import json
import os
import select
import socket
import subprocess
import sys
import time
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from typing import Any

from grpo.config import LimitsConfig
from grpo.config.errors import UserError
from grpo.episodes.process import LONGEST_LINE

START_SECONDS = 300.0
"""The file of an episode may take this long to be imported."""


class Hanging(Exception):
    """This error says that an episode's own code took longer than it may."""


class Failed(Exception):
    """This error says that an episode's own code raised an exception, or that its process ended."""


class Processes:
    """This object forks a process for each episode of what `path` names, from one process that has imported it.

    Raises UserError if that cannot be imported.
    """

    def __init__(self, path: str, limits: LimitsConfig):
        self._path = path
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        words = [sys.executable, "-m", "grpo.episodes.process", str(theirs.fileno()), json.dumps(asdict(limits)), path]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
        self._process = subprocess.Popen(
            words, pass_fds=[theirs.fileno()], start_new_session=True, stdin=subprocess.DEVNULL, env=environment
        )
        theirs.close()
        ready = self._ready()
        self.kind: str = ready["kind"]
        self.tools: list[Mapping[str, Any]] = ready["tools"]

    def _ready(self) -> Mapping[str, Any]:
        """Waits until the file is imported, and returns what it has."""
        readable, _, _ = select.select([self._control], [], [], START_SECONDS)
        said = self._control.recv(LONGEST_LINE) if readable else b""
        ready = json.loads(said) if said else {"error": self._silence(bool(readable))}
        if "error" in ready:
            self.close()
            raise UserError(ready["error"])
        return ready

    def _silence(self, ended: bool) -> str:
        why = "its process ended" if ended else f"that has taken longer than {START_SECONDS:g} s"
        return f"task.episode={self._path} cannot be imported: {why}"

    @asynccontextmanager
    async def episode(self) -> AsyncIterator[Link]:
        """Begins an episode in a process of its own, which ends with the context."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._control, [b"begin"], [theirs.fileno()])
        reader, writer = await asyncio.open_connection(sock=ours, limit=LONGEST_LINE)
        link = Link(reader, writer)
        try:
            yield link
        finally:
            if link.pid:
                with suppress(OSError):
                    self._control.send(str(link.pid).encode())
            writer.close()

    def close(self) -> None:
        """Ends all episodes and the process that has forked them."""
        self._control.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._process.kill()
        self._process.wait()


class Link:
    """A link is the trainer's end of an episode's socket. `seconds` are those that the episode's own code took."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._reader, self._writer = reader, writer
        self.pid, self.seconds = 0, 0.0

    def send(self, values: Mapping[str, Any]) -> None:
        self._writer.write(json.dumps(values, default=str).encode() + b"\n")

    async def receive(self) -> Mapping[str, Any]:
        """Returns what the episode says next. Raises Failed if it failed or its process has ended."""
        try:
            line = await self._reader.readline()
            said = json.loads(line) if line else {"error": "its process ended"}
        except (ConnectionError, ValueError) as error:
            raise Failed(f"its process broke off what it said ({error})") from error
        if "pid" in said:
            self.pid = said["pid"]
            return await self.receive()
        if "error" in said:
            raise Failed(said["error"])
        return said

    async def said(self, answers: Collection[asyncio.Task[None]], limit: float) -> Mapping[str, Any]:
        """Returns what the episode says next. `answers` are those that it waits for. Its own code, while it waits for
        none, may take `limit` seconds in all. Raises Hanging after that, what an answer raised, and Failed."""
        receiving = asyncio.create_task(self.receive())
        try:
            while not receiving.done():
                began, waiting = time.monotonic(), [answer for answer in answers if not answer.done()]
                left = None if waiting else limit - self.seconds
                done, _ = await asyncio.wait([receiving, *waiting], timeout=left, return_when=FIRST_COMPLETED)
                self.seconds += 0.0 if waiting else time.monotonic() - began
                if not done:
                    raise Hanging
                for answer in done - {receiving}:
                    answer.result()
            return receiving.result()
        finally:
            receiving.cancel()
