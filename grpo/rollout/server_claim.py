"""This module lets one run at a time use a vLLM server, since two runs would sample from each other's weights.

A run claims a server before it sends weights, and tells its name with each request. The claim ends when the run
releases it, or `LEASE_SECONDS` after the run's last request. The answer to a claim is what the server runs, so that a
run can refuse a server of another model. This module is imported in the server's process, by vLLM's --middleware, and
so imports little.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

from grpo.rollout.server_key import Application

CLAIM_ROUTE, RELEASE_ROUTE = "/claim", "/release"
# Requests of a run hold its name, percent-encoded, under this header.
RUN = "x-grpo-run"
# This environment variable of a server holds what it runs, as JSON.
SERVED_VARIABLE = "GRPO_SERVED"
LEASE_SECONDS = 30.0
CONFLICT = 409
UNCLAIMED = "no run has claimed it since it was started or released"


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


async def _answer(send: Any, status: int, text: str) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})
