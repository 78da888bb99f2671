"""These tests send requests over several servers that fail in all the ways servers do. The servers answer at once: what
is tested is which server is asked what, and how often."""

import asyncio
import threading
from collections import Counter
from contextlib import asynccontextmanager, contextmanager

import pytest
from aiohttp import web

from grpo.config import UserError
from grpo.config.errors import SamplerLost
from grpo.rollout.dispatch import Dispatcher
from grpo.rollout.replica import Replica, ReplicaLost, ServerState


@contextmanager
def server(answer, paused=200):
    """Starts a server in a thread. `answer(payload, number of earlier requests)` makes its response. `paused` is the
    status with which it answers whether it is paused. Yields its URL and the payloads that it got."""
    got, ready, place = [], threading.Event(), {}

    async def handle(request):
        got.append(await request.json())
        return await answer(got[-1], len(got) - 1)

    async def is_paused(request):
        return web.Response(status=paused)

    async def serve():
        application = web.Application()
        application.router.add_post("/inference/v1/generate", handle)
        application.router.add_get("/is_paused", is_paused)
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


def asked_for(seed, max_tokens):
    return {"token_ids": [1, 2], "sampling_params": {"seed": seed, "max_tokens": max_tokens}}


def seed_of(payload):
    return payload["sampling_params"]["seed"]


async def well(payload, before):
    await asyncio.sleep(0.005)
    return web.json_response({"choices": [{"seed": seed_of(payload)}]})


REQUESTS = [{sample: asked_for(10 * index + sample, max_tokens=8) for sample in range(4)} for index in range(12)]
EXPECTED = [{sample: {"seed": 10 * index + sample} for sample in range(4)} for index in range(12)]


def draw(requests, servers, at_once):
    dispatcher = Dispatcher(servers, at_once)
    try:
        return [answer.result(20) for answer in dispatcher.ask(requests)]
    finally:
        dispatcher.close()


@pytest.mark.slow
def test_samples_that_do_not_come_in_time_are_given_up_and_hold_nobody_up():
    async def one_is_slow(payload, before):
        await asyncio.sleep(5.0 if seed_of(payload) == 31 else 0.0)
        return await well(payload, before)

    with server(one_is_slow) as (url, _):
        dispatcher = Dispatcher(replicas(url), at_once=8, group_seconds=2.0)
        answers = [answer.result(20) for answer in dispatcher.ask(REQUESTS)]
        dispatcher.close()
    assert answers[3] == {sample: EXPECTED[3][sample] for sample in (0, 2, 3)}
    assert answers[:3] + answers[4:] == EXPECTED[:3] + EXPECTED[4:]


def replicas(*urls, seconds=5.0):
    return [Replica(url, "", seconds) for url in urls]


def test_every_sample_is_answered_once_and_a_prompt_stays_with_one_server():
    with server(well) as (first, asked_first), server(well) as (second, asked_second):
        assert draw(REQUESTS, replicas(first, second), at_once=8) == EXPECTED
    by_first, by_second = ({seed_of(payload) // 10 for payload in asked} for asked in (asked_first, asked_second))
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


@pytest.mark.slow
@pytest.mark.parametrize("failure", ["error", "hang", "drop"])
def test_requests_that_a_lost_server_leaves_behind_go_to_another(failure):
    async def fails(payload, before):
        if before < 6:
            return await well(payload, before)
        if failure == "hang":
            await asyncio.sleep(30)
        if failure == "drop":
            raise ConnectionResetError
        return web.Response(status=500, text="engine dead")

    with server(fails) as (bad, _), server(well) as (good, asked):
        servers = [*replicas(bad, seconds=0.5), *replicas(good, seconds=30.0)]
        assert draw(REQUESTS, servers, at_once=8) == EXPECTED
    assert [replica.alive for replica in servers] == [False, True]
    assert max(Counter(seed_of(payload) for payload in asked).values()) == 1


def test_requests_that_wait_fail_when_no_server_is_left():
    async def dies(payload, before):
        return web.Response(status=503)

    with server(dies) as (first, _), server(dies) as (second, _):
        servers = replicas(first, second)
        with pytest.raises(SamplerLost, match="no vLLM server is left"):
            draw(REQUESTS, servers, at_once=8)
    assert [replica.alive for replica in servers] == [False, False]


def test_a_refused_request_is_an_error_of_the_user():
    async def refuses(payload, before):
        return web.Response(status=400, text="max_tokens is too large")

    with server(refuses) as (url, _), pytest.raises(UserError, match="refused .* 400: max_tokens is too large"):
        draw(REQUESTS, replicas(url), at_once=8)


def test_a_request_that_one_server_refuses_goes_to_another():
    async def refuses(payload, before):
        return web.Response(status=401, text="another key") if before == 5 else await well(payload, before)

    with server(refuses) as (bad, _), server(well) as (good, _):
        servers = replicas(bad, good)
        assert draw(REQUESTS, servers, at_once=8) == EXPECTED
    assert [replica.alive for replica in servers] == [False, True]


def test_requests_that_two_servers_lose_at_the_same_moment_are_not_forgotten():
    """Work can move to a server that is lost before it begins. It then goes on to the third."""

    async def refuses(payload, before):
        await asyncio.sleep(0.2)
        return web.Response(status=503)

    with server(refuses) as (first, _), server(refuses) as (second, _), server(well) as (third, _):
        servers = replicas(first, second, third)
        assert draw(REQUESTS, servers, at_once=99) == EXPECTED
    assert [replica.alive for replica in servers] == [False, False, True]


class Scripted:
    """This replica answers in memory, once it has `together` requests."""

    url = "http://scripted"

    def __init__(self, state, answer, together=1):
        self.state, self._answer, self._together = state, answer, together
        self._came = 0

    alive = Replica.alive

    @asynccontextmanager
    async def session(self):
        yield self

    async def post(self, session, route, request):
        self._came += 1
        while self._came < self._together:
            await asyncio.sleep(0)
        return self._answer(seed_of(request))


@pytest.mark.parametrize("lost", [0, 1])
def test_a_request_that_moves_to_another_server_is_settled_by_that_one_only(lost):
    """A server is lost at the very moment at which it answers another prompt with nonsense."""

    def fails(seed):
        if seed == lost:
            raise ReplicaLost("it is gone")
        return {}

    other = Scripted(ServerState.JOINING, lambda seed: {"choices": [{"seed": seed}]})
    dispatcher = Dispatcher([Scripted(ServerState.READY, fails, together=2), other], at_once=8)
    try:
        answers = dispatcher.ask([{0: asked_for(seed, 8)} for seed in range(2)])
        while dispatcher._servers[0].replica.alive:
            threading.Event().wait(0.001)
        other.state = ServerState.READY
        dispatcher.look_again()
        assert answers[lost].result(20) == {0: {"seed": lost}}
        # The other prompt was settled before its server was lost, or is answered as well.
        nonsense = answers[1 - lost].exception(20)
        assert isinstance(nonsense, UserError) or answers[1 - lost].result() == {0: {"seed": 1 - lost}}
        # Nothing is left over, and the next prompt is answered.
        assert [answer.result(20) for answer in dispatcher.ask([{0: asked_for(7, 8)}])] == [{0: {"seed": 7}}]
        assert not any(server.tasks for server in dispatcher._servers)
    finally:
        dispatcher.close()


def test_the_server_with_the_fewest_tokens_to_write_is_asked():
    long = [{0: asked_for(index, max_tokens=100 if index == 0 else 10)} for index in range(8)]

    async def slow(payload, before):
        await asyncio.sleep(0.3)
        return web.json_response({"choices": [{}]})

    with server(slow) as (first, asked_first), server(slow) as (second, asked_second):
        draw(long, replicas(first, second), at_once=99)
    # One long completion against seven short ones.
    assert sorted(len(asked) for asked in (asked_first, asked_second)) == [1, 7]


@pytest.mark.slow
def test_a_server_that_is_given_up_elsewhere_gives_back_its_work():
    started = threading.Event()

    async def hangs(payload, before):
        started.set()
        await asyncio.sleep(30)
        return web.Response(status=503)

    with server(hangs) as (bad, _), server(well) as (good, _):
        servers = replicas(bad, good, seconds=60)
        dispatcher = Dispatcher(servers, at_once=99)
        answers = dispatcher.ask(REQUESTS)
        started.wait(10)
        # As after a refresh in which it did not answer.
        servers[0].state = ServerState.LOST
        dispatcher.look_again()
        assert [answer.result(20) for answer in answers] == EXPECTED
        dispatcher.close()


def test_a_server_that_came_back_is_asked_once_it_has_its_weights():
    with server(well) as (back, asked_back), server(well) as (other, asked_other):
        servers = replicas(back, other)
        servers[0].state = ServerState.JOINING
        dispatcher = Dispatcher(servers, at_once=99)
        assert [answer.result(20) for answer in dispatcher.ask(REQUESTS)] == EXPECTED
        assert asked_back == [] and len(asked_other) == 48
        servers[0].state = ServerState.READY
        assert [answer.result(20) for answer in dispatcher.ask(REQUESTS)] == EXPECTED
        dispatcher.close()
    assert len(asked_back) == len(asked_other) - 48 == 24


@pytest.mark.parametrize("answer", [{}, {"choices": []}, [], "well"])
def test_an_answer_that_holds_no_completion_is_one_line(answer):
    async def answers_oddly(payload, before):
        return web.json_response(answer)

    with server(answers_oddly) as (url, _), pytest.raises(UserError, match="without a completion"):
        draw(REQUESTS, replicas(url), at_once=8)


def test_a_later_turn_goes_to_the_server_that_had_the_earlier_one_while_that_has_room():
    first, second = (
        Scripted(ServerState.READY, lambda seed, name=name: {"choices": [{"by": name}]}) for name in ("first", "second")
    )
    dispatcher = Dispatcher([first, second], at_once=2)

    def by(*turns):
        answers = dispatcher.ask([{0: asked_for(seed, 8)} for seed in range(len(turns))], turns)
        return [answer.result(20)[0]["by"] for answer in answers]

    try:
        assert by(("a", 0), ("b", 0)) == ["first", "second"]
        # Alone, each would go to the first.
        assert [by(("b", 1)), by(("a", 1)), by(("b", 2)), by(("c", 1))] == [
            ["second"],
            ["first"],
            ["second"],
            ["first"],
        ]
        assert by(("b", 3), ("b", 3), ("b", 3)) == ["second", "second", "first"]
        second.state = ServerState.LOST
        assert by(("b", 4)) == ["first"]
    finally:
        dispatcher.close()
