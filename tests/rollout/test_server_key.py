"""These tests hold that a server answers nothing without its key."""

import asyncio

import pytest

from grpo.config import UserError
from grpo.rollout.replica import Replica
from grpo.rollout.server_middleware import KeyMiddleware
from tests.rollout.test_dispatch import server


@pytest.fixture
def guarded(monkeypatch):
    """Returns a function that sends a request to a guarded application and returns the response."""
    monkeypatch.setenv("VLLM_API_KEY", "k3y")

    async def application(scope, receive, send):
        await send("reached")

    def ask(headers, path="/collective_rpc", kind="http"):
        sent = []

        async def send(message):
            sent.append(message)

        scope = {"type": kind, "path": path, "headers": headers}
        asyncio.run(KeyMiddleware(application)(scope, None, send))
        return sent

    return ask


@pytest.mark.parametrize("path", ["/collective_rpc", "/update_weights", "/inference/v1/generate", "/", "/health/x"])
def test_only_who_has_the_key_reaches_a_route(guarded, path):
    assert guarded([(b"authorization", b"Bearer k3y")], path) == ["reached"]
    for headers in ([], [(b"authorization", b"Bearer k3")], [(b"authorization", b"k3y")], [(b"x", b"Bearer k3y")]):
        assert guarded(headers, path)[0]["status"] == 401
    assert guarded([], path, "websocket") == [{"type": "websocket.close", "code": 1008}]


def test_whether_it_lives_may_be_asked_by_everybody_and_the_server_itself_may_start(guarded):
    assert guarded([], "/health") == guarded([], kind="lifespan") == ["reached"]


def test_without_a_key_there_is_no_server(monkeypatch):
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    with pytest.raises(KeyError, match="VLLM_API_KEY"):
        KeyMiddleware(None)


def test_a_server_that_wants_another_key_is_not_waited_for():
    async def never(payload, before):
        raise AssertionError

    with server(never, paused=401) as (url, _), pytest.raises(UserError, match="another key: set GRPO_SERVER_KEY"):
        asyncio.run(Replica(url, "k3y", 1.0).wait(30))
