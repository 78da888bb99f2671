"""This module guards a vLLM server: without the run's key, the server answers /health only.

vLLM itself requires a key on the routes of completions, but not on those that replace weights or call methods of its
workers. This module is imported in the server's process, by vLLM's --middleware, and so imports little.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

OPEN = "/health"
Application = Callable[[Mapping[str, Any], Any, Any], Awaitable[None]]


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
