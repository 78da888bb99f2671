# Light: imported before torch, or without it.
"""This module is the middleware of a vLLM server: it asks for the run's key, lets one run at a time use the server, and
measures how full the KV cache was.

vLLM itself requires a key on the routes of completions, but not on those that replace weights or call methods of its
workers. Here a request without the key gets /health only.

Two runs would sample from each other's weights. So a run claims a server before it sends weights, and tells its name
with each request. The claim ends when the run releases it, or `LEASE_SECONDS` after the run's last request. The answer
to a claim is what the server runs, so that a run can refuse a server of another model.

vLLM's own gauge (`vllm:kv_cache_usage_perc`) holds the share of the present step, so polling it would miss the peak
since the run last asked.

vLLM imports this module in the server's process, by --middleware, so it imports little.
"""

import os
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import unquote

from grpo.rollout.engine_use import EngineUse
from grpo.types import metrics as m
from grpo.types.weights import ADAPTER, ADAPTER_NUMBER, NO_FILE

OPEN = "/health"
Application = Callable[[Mapping[str, Any], Any, Any], Awaitable[None]]
CLAIM_ROUTE, RELEASE_ROUTE = "/claim", "/release"
# Requests of a run hold its name, percent-encoded, under this header.
RUN = "x-grpo-run"
# This environment variable of a server holds what it runs, as JSON.
SERVED_VARIABLE = "GRPO_SERVED"
LEASE_SECONDS = 30.0
CONFLICT = 409
UNCLAIMED = "no run has claimed it since it was started or released"
COUNTERS_ROUTE = "/metrics"
# A request with this header takes the peak, which the answer holds under the same name. Others, such as Prometheus,
# take nothing away.
TAKE = "x-grpo-cache-peak"


class KeyMiddleware:
    """Refuses requests without the key, as ASGI middleware. The key is `VLLM_API_KEY`, as for vLLM's own check; without
    this variable the server does not start."""

    def __init__(self, app: Application):
        self._app = app
        self._expected = f"Bearer {os.environ['VLLM_API_KEY']}".encode()

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        guarded = scope["type"] in ("http", "websocket") and scope["path"] != OPEN
        if not guarded or secrets.compare_digest(dict(scope["headers"]).get(b"authorization", b""), self._expected):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b"the run's key is needed"})


class ClaimMiddleware:
    """Refuses requests of a run while another run has claimed the server, as ASGI middleware.

    Requests without a run's name, such as those of Prometheus, go through. So does every GET, which changes nothing.
    """

    def __init__(self, app: Application, clock: Callable[[], float] = time.monotonic):
        self._app, self._clock = app, clock
        self._owner, self._until = b"", 0.0

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        run = dict(scope.get("headers", ())).get(RUN.encode(), b"")
        if scope["type"] != "http" or not run:
            await self._app(scope, receive, send)
            return
        claims = scope["path"] == CLAIM_ROUTE
        if claims and self._clock() >= self._until:
            self._owner = run
        if run == self._owner:
            self._until = self._clock() + LEASE_SECONDS
            if scope["path"] == RELEASE_ROUTE:
                # A request of this run that comes late does not claim the server again.
                self._owner, self._until = b"", 0.0
        if claims and run == self._owner:
            await _answer(send, 200, os.environ.get(SERVED_VARIABLE, "{}"))
        elif scope["path"] == RELEASE_ROUTE:
            await _answer(send, 200, "{}")
        elif run == self._owner or (scope["method"] == "GET" and not claims):
            await self._app(scope, receive, send)
        else:
            serving = f"it serves the run in {unquote(self._owner.decode())}" if self._owner else UNCLAIMED
            await _answer(send, CONFLICT, serving)


class MeasuredMiddleware:
    """Answers a request for the counters with the peak of the KV cache's use, as ASGI middleware.

    With the first request it adds an `EngineUse` to vLLM's loggers, which record each step of the engine. It also gives
    a name to the adapter that a learner sends, by which requests may ask for it.
    """

    def __init__(self, app: Application):
        self._app = app
        self._use: EngineUse | None = None

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http" and self._use is None:
            from vllm.lora.request import LoRARequest

            self._use, state = EngineUse(), scope["app"].state
            state.engine_client.logger_manager.stat_loggers.append(self._use)
            state.openai_serving_models.lora_requests[ADAPTER] = LoRARequest(ADAPTER, ADAPTER_NUMBER, NO_FILE)
        if scope["type"] != "http" or scope["path"] != COUNTERS_ROUTE or TAKE.encode() not in dict(scope["headers"]):
            await self._app(scope, receive, send)
            return
        peak = self._use.take().get(m.CACHE_PEAK, 0.0)

        async def send_with_peak(message: Mapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (TAKE.encode(), str(peak).encode())]}
            await send(message)

        await self._app(scope, receive, send_with_peak)


class ServerMiddleware(KeyMiddleware):
    """Guards a server by the run's key, lets one run at a time use it, and measures its use. vLLM takes one class."""

    def __init__(self, app: Application):
        super().__init__(ClaimMiddleware(MeasuredMiddleware(app)))


async def _answer(send: Any, status: int, text: str) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})
