"""Requests over several servers that fail in all the ways servers do. The servers answer at once: what is tested is
who is asked what, how often."""

import asyncio
import threading
from collections import Counter
from contextlib import contextmanager

import pytest
from aiohttp import web

from grpo.config import UserError
from grpo.rollout.dispatch import draw
from grpo.rollout.replica import Replica


@contextmanager
def server(answer):
    """A server in a thread; `answer(payload, how many before)` → response. Yields url and the payloads it got."""
    got, ready, place = [], threading.Event(), {}

    async def handle(request):
        got.append(await request.json())
        return await answer(got[-1], len(got) - 1)

    async def serve():
        application = web.Application()
        application.router.add_post("/v1/completions", handle)
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        place.update(port=runner.addresses[0][1], loop=asyncio.get_running_loop(), stop=asyncio.Event())
        ready.set()
        await place["stop"].wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    ready.wait(10)
    try:
        yield f"http://127.0.0.1:{place['port']}", got
    finally:
        place["loop"].call_soon_threadsafe(place["stop"].set)
        thread.join(10)


async def well(payload, before):
    await asyncio.sleep(0.005)
    return web.json_response({"choices": [{"seed": payload["seed"]}]})


REQUESTS = [{(index, sample): {"seed": 10 * index + sample} for sample in range(4)} for index in range(12)]
EXPECTED = {key: {"seed": request["seed"]} for each in REQUESTS for key, request in each.items()}


def replicas(*urls, seconds=5.0):
    return [Replica(index, url, "", seconds) for index, url in enumerate(urls)]


def test_every_sample_is_answered_once_and_a_prompt_stays_with_one_server():
    with server(well) as (first, asked_first), server(well) as (second, asked_second):
        assert draw(REQUESTS, replicas(first, second), at_once=8) == EXPECTED
    by_first, by_second = ({payload["seed"] // 10 for payload in asked} for asked in (asked_first, asked_second))
    assert not by_first & by_second and by_first | by_second == set(range(12))
    assert len(by_first) >= 3 and len(by_second) >= 3


def test_no_more_than_so_many_are_with_one_server():
    most, now = [0], [0]

    async def counting(payload, before):
        now[0] += 1
        most[0] = max(most[0], now[0])
        await asyncio.sleep(0.01)
        now[0] -= 1
        return await well(payload, before)

    with server(counting) as (url, _):
        draw(REQUESTS, replicas(url), at_once=8)
    assert most[0] == 8


@pytest.mark.parametrize("failure", ["error", "hang", "drop"])
def test_what_a_lost_server_leaves_behind_is_drawn_by_another(failure):
    async def fails(payload, before):
        if before < 6:
            return await well(payload, before)
        if failure == "hang":
            await asyncio.sleep(30)
        if failure == "drop":
            raise ConnectionResetError
        return web.Response(status=500, text="engine dead")

    with server(fails) as (bad, _), server(well) as (good, asked):
        found = replicas(bad, good, seconds=0.5)
        assert draw(REQUESTS, found, at_once=8) == EXPECTED
    assert [each.alive for each in found] == [False, True]
    assert max(Counter(payload["seed"] for payload in asked).values()) == 1


def test_with_no_server_left_answers_are_missing():
    async def dies(payload, before):
        return web.Response(status=503)

    with server(dies) as (first, _), server(dies) as (second, _):
        found = replicas(first, second)
        assert draw(REQUESTS, found, at_once=8) == {}
    assert [each.alive for each in found] == [False, False]


def test_a_request_that_is_refused_is_the_users_to_mend():
    async def refuses(payload, before):
        return web.Response(status=400, text="max_tokens is too large")

    with server(refuses) as (url, _), pytest.raises(UserError, match="refused .* 400: max_tokens is too large"):
        draw(REQUESTS, replicas(url), at_once=8)
