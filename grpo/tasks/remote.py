"""This module asks servers for rewards: a reward service (`http`), or a language model that judges (`judge`).

A separate thread of the trainer's process makes many requests at once. A model's text is sent, but never run here.
"""

import asyncio
import hashlib
import json
import logging
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any
from urllib.parse import quote

from grpo.config import RewardPartConfig, RewardServerConfig, UserError
from grpo.config.credentials import PLACE
from grpo.config.task import remote_kind
from grpo.tasks.grading_worker import UNANSWERED, RawGrade, merged, numbers
from grpo.tasks.judge import Judge, excerpt
from grpo.tasks.own_rewards import FACTS, OF_EACH, reward_facts
from grpo.types import RolloutGroup

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 0.5
"""A request that failed is repeated after this pause, then after twice as long, and so on."""
MAX_CACHED = 100_000
"""At most this many answers of a server are cached; the oldest one is dropped first."""
FRUITLESS = 32
"""When this many requests in succession have failed, the run ends."""
LARGEST_ANSWER = 4 * 2**20
"""Not more bytes than these are read of an answer."""
RETRIED = (408, 409, 425, 429)
"""After these HTTP statuses a request is repeated, as after every status from 500 on."""


class _Failed(Exception):
    """This error says that a server gave no reward. The message says which URL and what came back."""

    outcome = "failed"


class _Unanswered(_Failed):
    """This error says that a server was out of reach, too slow or at fault, whatever it was asked."""

    outcome = UNANSWERED


class RemoteRewards:
    """Remote rewards are those parts of a reward that servers compute."""

    def __init__(self, parts: Sequence[RewardPartConfig]) -> None:
        """Takes a reward's parts. Raises `UserError` for an unset variable of a key, and for an invalid pattern."""
        self._parts = [_RemotePart(part) for part in parts if remote_kind(part.name)]
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def names(self) -> list[str]:
        """Returns the names of the parts."""
        return [part.name for part in self._parts]

    def ask(self, groups: Sequence[RolloutGroup]) -> Future[list[list[RawGrade]]]:
        """Requests the rewards of all completions. Returns a future of one list of grades per group.

        The future raises `UserError` when a server gives no rewards at all.
        """
        return asyncio.run_coroutine_threadsafe(self._graded(groups), self._running())

    def close(self) -> None:
        """Ends the thread. Requests under way are given up."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None

    def _running(self) -> asyncio.AbstractEventLoop:
        """Returns the thread's event loop, and starts it first if there is none."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="rewards from servers", daemon=True).start()
        return self._loop

    async def _graded(self, groups: Sequence[RolloutGroup]) -> list[list[RawGrade]]:
        by_part = await asyncio.gather(*(part.grade(groups) for part in self._parts))
        return [
            [merged([of_part[index][place] for of_part in by_part]) for place in range(len(group.completions))]
            for index, group in enumerate(groups)
        ]


class _RemotePart:
    """A remote part gets the reward of every completion from one server."""

    def __init__(self, part: RewardPartConfig) -> None:
        self.name, self._server = part.name, part.server or RewardServerConfig()
        self._judge = Judge(part.name, self._server) if remote_kind(part.name) == "judge" else None
        self._base = self._server.url.rstrip("/")
        # Messages name the address with the place of its key, not the key.
        self._url = self._base + ("/chat/completions" if self._judge else "")
        self._key, self._headers = "", {}
        if variable := self._server.key_variable:
            if not os.environ.get(variable):
                if not variable.isidentifier():
                    raise UserError(
                        f"task.reward.parts: key_variable of {part.name!r} is no name of an environment variable: "
                        "export the key in one, and give that name"
                    )
                raise UserError(
                    f"task.reward.parts: {part.name!r} takes its key from {variable}, which is not set: export it, or "
                    "leave key_variable empty"
                )
            self._key = os.environ[variable]
            if PLACE not in self._base:
                self._headers["Authorization"] = f"Bearer {self._key}"
        self._cache: OrderedDict[bytes, Any] = OrderedDict()
        self._answered, self._in_vain, self._warned = False, 0, False

    async def grade(self, groups: Sequence[RolloutGroup]) -> list[list[RawGrade]]:
        """Returns one grade per completion. Raises `UserError` when the server gives no rewards at all."""
        import aiohttp

        server = self._server
        connector = aiohttp.TCPConnector(limit=server.at_once)
        timeout = aiohttp.ClientTimeout(total=server.seconds)
        async with aiohttp.ClientSession(headers=self._headers, connector=connector, timeout=timeout) as session:
            turn = asyncio.Semaphore(server.at_once)
            if self._judge and not self._judge.model:
                self._judge.model = await self._only_model(session)
            requests = [
                json.dumps(self._request(group, place), sort_keys=True, default=str)
                for group in groups
                for place in range(len(group.completions))
            ]
            distinct = [*dict.fromkeys(requests)] if server.cache else requests
            distinct_answers = await asyncio.gather(*(self._value(session, turn, request) for request in distinct))
        by_request = dict(zip(distinct, distinct_answers, strict=True))
        answers = [by_request[request] for request in requests] if server.cache else distinct_answers
        self._judge_failures([answer for answer in answers if isinstance(answer, _Failed)], len(answers))
        values = iter(answers)
        return [[self._grade(next(values)) for _ in group.completions] for group in groups]

    def _judge_failures(self, failures: Sequence[_Failed], count: int) -> None:
        """Warns once of completions without a reward.

        Raises `UserError` when all completions failed and either the server never answered or the last `FRUITLESS`
        requests failed.
        """
        if failures and len(failures) == count and (not self._answered or self._in_vain >= FRUITLESS):
            raise UserError(f"reward part {self.name!r}: {failures[0]}; correct its server in task.reward.parts")
        if failures and not self._warned:
            self._warned = True
            logger.warning(
                "reward part %r: %s; %d of %d completions get no reward", self.name, failures[0], len(failures), count
            )

    def _keyed(self, url: str) -> str:
        """Returns a URL with the server's key in place of the place holder."""
        return url.replace(PLACE, quote(self._key, safe=""))

    def _named(self, text: Any) -> str:
        """Returns a text, such as a server's answer, with the place holder in place of the key, for a message."""
        # An address may quote any of the key's characters.
        forms = (f"(?:{re.escape(sign)}|(?i:{quoted(sign)}))" for sign in self._key)
        return re.sub("".join(forms), lambda _: PLACE, str(text)) if self._key else str(text)

    def _grade(self, answer: Mapping[str, float] | _Failed) -> RawGrade:
        return RawGrade({self.name: 0.0}, answer.outcome) if isinstance(answer, _Failed) else RawGrade(answer)

    def _request(self, group: RolloutGroup, place: int) -> Mapping[str, Any]:
        """Returns the body of the request for one completion."""
        problem, completion = group.prompt.problem, group.completions[place]
        if self._judge:
            return self._judge.request(problem.question, problem.answer, completion.text)
        facts = reward_facts(group, frozenset(FACTS) - {*OF_EACH})
        return {
            "completion": completion.text,
            "answer": problem.own_answer,
            "metadata": dict(problem.metadata),
            "truncated": completion.truncated,
            **facts,
        }

    async def _value(self, session: Any, turn: asyncio.Semaphore, request: str) -> Mapping[str, float] | _Failed:
        """Returns the server's numbers for a request (a JSON text), cached or new, or the failure."""
        # A request holds a whole completion, and the cache many of them.
        key = hashlib.blake2b(request.encode()).digest()
        if key in self._cache:
            return self._cache[key]
        try:
            async with turn:
                numbers_of_answer = self._read(await self._answer(session, request))
        except _Failed as failed:
            self._in_vain += 1
            return failed
        self._answered, self._in_vain = True, 0
        if self._server.cache:
            self._cache[key] = numbers_of_answer
            if len(self._cache) > MAX_CACHED:
                self._cache.popitem(last=False)
        return numbers_of_answer

    def _read(self, answer: Any) -> Mapping[str, float]:
        """Returns the numbers of a server's answer. Raises `_Failed` where it holds no reward."""
        try:
            return numbers(self.name, self._judge.score(answer) if self._judge else answer)
        except (TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
            raise _Failed(
                self._named(f"{self._url} answered {excerpt(answer)}, which holds no reward ({error})")
            ) from error

    async def _answer(self, session: Any, body: str) -> Any:
        """Posts a request and returns the JSON answer. Retries at most `retries` times, then raises `_Failed`."""
        problem = ""
        for attempt in range(self._server.retries + 1):
            if attempt:
                await asyncio.sleep(FIRST_PAUSE_SECONDS * 2 ** (attempt - 1))
            status, text = await self._post(session, body)
            if status is not None and status < 400:
                try:
                    return json.loads(text)
                except (ValueError, RecursionError):
                    raise _Failed(self._named(f"{self._url} answered {excerpt(text)}, which is not JSON")) from None
            problem = f"{self._url} answered {status}: {excerpt(text)}" if status else f"{self._url}: {text}"
            if status is not None and status < 500 and status not in RETRIED:
                raise _Failed(self._named(problem))
        raise _Unanswered(self._named(problem))

    async def _post(self, session: Any, body: str) -> tuple[int | None, str]:
        """Posts once. Returns the response's status and text, or None and the reason when no response came."""
        import aiohttp

        try:
            headers = {"Content-Type": "application/json"}
            async with session.post(self._keyed(self._url), data=body.encode(), headers=headers) as response:
                return response.status, await _text_of(response)
        except TimeoutError:
            return None, f"no answer within {self._server.seconds:g} s"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return None, f"{type(error).__name__}: {error}"

    async def _only_model(self, session: Any) -> str:
        """Returns the first model that the judge's server lists. Raises `UserError` when the server names none."""
        import aiohttp

        url = f"{self._base}/models"
        try:
            async with session.get(self._keyed(url)) as response:
                text = await _text_of(response)
                return json.loads(text)["data"][0]["id"]
        except (aiohttp.ClientError, OSError) as error:
            reason = self._named(f"{type(error).__name__}: {error}")
            raise UserError(
                f"reward part {self.name!r}: {url}: {reason}; start the server, or correct its url in task.reward.parts"
            ) from error
        except (ValueError, LookupError, TypeError) as error:
            answer = self._named(excerpt(text))
            raise UserError(
                f"reward part {self.name!r}: {url} answered {answer}, which names no model: set server.model"
            ) from error


async def _text_of(response: Any) -> str:
    """Reads a response. Raises aiohttp's ClientPayloadError for one that is too large, also if it was packed."""
    import aiohttp

    content = bytearray()
    async for chunk in response.content.iter_any():
        content += chunk
        if len(content) > LARGEST_ANSWER:
            raise aiohttp.ClientPayloadError(f"its answer has more than {LARGEST_ANSWER >> 20} MiB")
    return content.decode(errors="replace")


def quoted(sign: str) -> str:
    """Returns a character as an address quotes it.

    >>> quoted("="), quoted("ü")
    ('%3D', '%C3%BC')
    """
    return "".join(f"%{byte:02X}" for byte in sign.encode())
