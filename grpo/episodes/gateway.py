"""This module answers programs that speak OpenAI's chat interface. Each episode under way has an address of its own.

    POST /episode/ID/v1/chat/completions    gives the model's next turn, as a whole or as a stream of events
    GET  /episode/ID/v1/models              names the policy

ID is a secret that nobody can guess, so a program reaches its own episode alone. The run decides how tokens are
sampled, whatever temperature a request names.
"""

import asyncio
import json
import logging
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from aiohttp import web

from grpo.config.errors import UserError, first_line
from grpo.episodes.messages import POLICY, Unreadable, json_of, messages_of, tools_of
from grpo.episodes.processes import Answer, Link, Question

logger = logging.getLogger(__name__)

LARGEST_REQUEST = 2**26

UNSUPPORTED = {
    "n": (None, 1),
    "stop": (None, [], ""),
    "logit_bias": (None, {}),
    "response_format": (None, {"type": "text"}),
    "tool_choice": (None, "auto"),
    "functions": (None, []),
    "logprobs": (None, False),
    "top_logprobs": (None, 0),
    "audio": (None,),
    # vLLM's server knows these further ones.
    **dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"), (None,)),
    **dict.fromkeys(("chat_template", "stop_token_ids", "bad_words", "allowed_token_ids"), (None,)),
    **dict.fromkeys(("ignore_eos", "continue_final_message", "use_beam_search"), (None, False)),
    **dict.fromkeys(("add_generation_prompt", "parallel_tool_calls", "skip_special_tokens"), (None, True)),
    "best_of": (None, 1),
    "echo": (None, False),
    "function_call": (None, "auto"),
    "length_penalty": (None, 1),
    "min_tokens": (None, 0),
    "modalities": (None, ["text"]),
}
"""A request may give these only the values that change nothing."""

IGNORED = (
    *("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty"),
    *("seed", "reasoning_effort", "chat_template_kwargs"),
)
"""The run's own values hold for these."""

TAKEN = (
    *("model", "messages", "tools", "stream", "stream_options", "max_tokens", "max_completion_tokens"),
    *("metadata", "prompt_cache_key", "safety_identifier", "service_tier", "store", "user", "verbosity"),
)
"""A request may give these. Those of the second line change no tokens."""

KNOWN = {*UNSUPPORTED, *IGNORED, *TAKEN}


class Gateway:
    """A gateway serves the episodes of one learner rank. `host` is the address at which programs reach it."""

    def __init__(self, host: str):
        self._host = host
        self._links: dict[str, Link] = {}
        self._replies: dict[str, set[asyncio.Future[Answer | None]]] = {}
        self._warned = False
        self._port = 0
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Begins to listen, at a port that is free. Raises UserError for a host that is not this machine's."""
        application = web.Application(client_max_size=LARGEST_REQUEST)
        application.router.add_post("/episode/{id}/v1/chat/completions", self._chat)
        application.router.add_get("/episode/{id}/v1/models", self._models)
        application.router.add_route("*", "/{path:.*}", _elsewhere)
        # An answer that nobody waits for any more is no part of the episode.
        self._runner = web.AppRunner(
            application, handler_cancellation=True, access_log=None, shutdown_timeout=0.0, auto_decompress=False
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, 0)
        try:
            await site.start()
        except OSError as error:
            raise UserError(
                f"task.gateway={self._host} is no address of this machine ({error.strerror}): name one that the "
                "programs of episodes can reach, or 127.0.0.1"
            ) from error
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Ends listening."""
        if self._runner:
            await self._runner.cleanup()

    @contextmanager
    def address(self, link: Link) -> Iterator[str]:
        """Opens an address for an episode, and closes it at the end of the context."""
        name = secrets.token_urlsafe(16)
        self._links[name], self._replies[name] = link, set()
        try:
            # An address of IPv6 stands in brackets.
            host = f"[{self._host}]" if ":" in self._host else self._host
            yield f"http://{host}:{self._port}/episode/{name}/v1"
        finally:
            del self._links[name]
            for reply in self._replies.pop(name):
                _answered(reply, None)

    async def _models(self, request: web.Request) -> web.Response:
        if request.match_info["id"] not in self._links:
            return _ended()
        return web.json_response({"object": "list", "data": [{"id": POLICY, "object": "model", "owned_by": "grpo"}]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        link = self._links.get(request.match_info["id"])
        if link is None:
            return _ended()
        try:
            body = await _read(request)
            _check(body)
            messages, tools = messages_of(body.get("messages")), tools_of(body.get("tools"))
        except (ValueError, RecursionError, Unreadable) as error:
            return _refused(str(error), "invalid_request_error")
        self._warn(body)
        reply: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()
        if (replies := self._replies.get(request.match_info["id"])) is None:
            # The episode has ended while its request came.
            return _ended()
        replies.add(reply)
        most = body.get("max_completion_tokens") or body.get("max_tokens")
        link.put(Question(messages, tools, partial(_answered, reply), most, reply.cancelled))
        if (answer := await reply) is None:
            return _refused(
                "the episode is over: it has reached this model's maximum context length, or task.limits.turns",
                "context_length_exceeded",
            )
        whole = _completion(answer, str(body.get("model", POLICY)))
        if not body.get("stream"):
            return web.json_response(whole)
        usage = bool((body.get("stream_options") or {}).get("include_usage"))
        return await _streamed(request, whole, usage)

    def _warn(self, body: Mapping[str, Any]) -> None:
        if not self._warned and (named := [name for name in IGNORED if body.get(name) is not None]):
            self._warned = True
            logger.warning(
                "an episode's program asks for its own %s: the run's configuration holds instead", ", ".join(named)
            )


async def _read(request: web.Request) -> Any:
    coding = request.headers.get("Content-Encoding", "identity")
    if coding != "identity":
        raise Unreadable(f"the request has Content-Encoding {coding!r:.40}: send plain JSON")
    try:
        return json_of(await request.read())
    except web.HTTPRequestEntityTooLarge:
        raise Unreadable(f"the request has more than {LARGEST_REQUEST >> 20} MiB") from None
    except Exception as error:  # of a body that breaks off, or is no JSON
        raise Unreadable(f"the request cannot be read ({first_line(error)}): send JSON") from error


def _answered(reply: asyncio.Future[Answer | None], answer: Answer | None) -> None:
    if not reply.done():
        reply.set_result(answer)


def _check(body: Any) -> None:
    """Raises Unreadable for a request that the policy cannot fulfil as it stands."""
    if not isinstance(body, Mapping):
        raise Unreadable("the request must be a JSON object")
    without_tools = ("none",) if not body.get("tools") else ()
    for name, neutral in {**UNSUPPORTED, "tool_choice": (*UNSUPPORTED["tool_choice"], *without_tools)}.items():
        if body.get(name) not in neutral:
            raise Unreadable(f"{name}={body[name]!r:.80} is for the run to say, and for no request: leave it out")
    for name in body.keys() - KNOWN:
        if body[name] is not None:
            raise Unreadable(f"{name!r:.80} is no word of this address: leave it out")
    if not isinstance(body.get("stream"), bool | None):
        raise Unreadable(f"stream={body['stream']!r:.80} must be true or false")
    if not isinstance(body.get("stream_options"), Mapping | None):
        raise Unreadable(f"stream_options={body['stream_options']!r:.80} must be a JSON object")
    for name in ("max_tokens", "max_completion_tokens"):
        most = body.get(name)
        if most is not None and (type(most) is not int or most < 1):
            raise Unreadable(f"{name}={most!r} must be a whole number above 0")


def _refused(message: str, code: str, status: int = 400) -> web.Response:
    error = {"message": message, "type": "invalid_request_error", "code": code, "param": None}
    return web.json_response({"error": error}, status=status)


def _ended() -> web.Response:
    return _refused("there is no such episode, or it has ended", "not_found", 404)


async def _elsewhere(request: web.Request) -> web.Response:
    return _refused(
        f"the policy answers POST /episode/ID/v1/chat/completions, not {request.method} {request.path}",
        "not_found",
        404,
    )


def _completion(answer: Answer, model: str) -> dict[str, Any]:
    """Returns an answer as OpenAI's interface writes it."""
    message = {"role": "assistant", **answer.message}
    calls = [
        {**call, "type": "function", "function": {**call["function"], "arguments": _written(call)}}
        for call in message.pop("tool_calls", None) or ()
    ]
    if calls:
        message["tool_calls"] = calls
    reason = "length" if answer.turn.truncated else "tool_calls" if calls else "stop"
    written = len(answer.turn.token_ids)
    return {
        "id": f"chatcmpl-{secrets.token_hex(8)}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": reason, "logprobs": None}],
        "usage": {
            "prompt_tokens": answer.num_read,
            "completion_tokens": written,
            "total_tokens": answer.num_read + written,
        },
    }


def _written(call: Mapping[str, Any]) -> str:
    return json.dumps(call["function"]["arguments"], ensure_ascii=False)


async def _streamed(request: web.Request, whole: Mapping[str, Any], with_usage: bool) -> web.StreamResponse:
    """Sends a completion as events: the message, why it ended, and the usage if it is wanted."""
    [choice] = whole["choices"]
    message = dict(choice["message"])
    if "tool_calls" in message:
        message["tool_calls"] = [{"index": place, **call} for place, call in enumerate(message["tool_calls"])]
    base = {**whole, "object": "chat.completion.chunk"}
    del base["usage"]
    deltas: list[tuple[Mapping[str, Any], str | None]] = [(message, None), ({}, choice["finish_reason"])]
    events = [{**base, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]} for delta, reason in deltas]
    if with_usage:
        events.append({**base, "choices": [], "usage": whole["usage"]})
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    # A client may have read enough, and hang up.
    with suppress(ConnectionError):
        await response.prepare(request)
        for event in [*map(json.dumps, events), "[DONE]"]:
            await response.write(f"data: {event}\n\n".encode())
        await response.write_eof()
    return response
