"""This module lets a vLLM server say how full its KV cache was at the fullest moment since the run last asked.

vLLM's own gauge (`vllm:kv_cache_usage_perc`) holds the share of the present step, so polling it would miss the peak.
This module is imported in the server's process, by vLLM's --middleware, and so imports little.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grpo.rollout.engine_use import PEAK, EngineUse
from grpo.rollout.server_claim import ClaimMiddleware
from grpo.rollout.server_key import Application, KeyMiddleware

COUNTERS_ROUTE = "/metrics"
# A request with this header takes the peak, which the answer holds under the same name. Others, such as Prometheus,
# take nothing away.
TAKE = "x-grpo-cache-peak"


class MeasuredMiddleware:
    """Answers a request for the counters with the peak of the KV cache's use, as ASGI middleware.

    With the first request it adds an `EngineUse` to vLLM's loggers, which record each step of the engine.
    """

    def __init__(self, app: Application):
        self._app = app
        self._use: EngineUse | None = None

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http" and self._use is None:
            self._use = EngineUse()
            scope["app"].state.engine_client.logger_manager.stat_loggers.append(self._use)
        if scope["type"] != "http" or scope["path"] != COUNTERS_ROUTE or TAKE.encode() not in dict(scope["headers"]):
            await self._app(scope, receive, send)
            return
        peak = self._use.take().get(PEAK, 0.0)

        async def send_with_peak(message: Mapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (TAKE.encode(), str(peak).encode())]}
            await send(message)

        await self._app(scope, receive, send_with_peak)


class ServerMiddleware(KeyMiddleware):
    """Guards a server by the run's key, lets one run at a time use it, and measures its use. vLLM takes one class."""

    def __init__(self, app: Application):
        super().__init__(ClaimMiddleware(MeasuredMiddleware(app)))
