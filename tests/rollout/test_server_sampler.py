"""These tests let servers fail while they are given weights. The servers are stand-ins that receive what is sent."""

import asyncio
import os
import threading
import time
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from fnmatch import fnmatch
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from aiohttp import web

from benchmarks.ranks_in_threads import Rank
from benchmarks.small_models import tiny_tokenizer
from grpo.config import TrainConfig, UserError
from grpo.config.errors import Interrupted, SamplerLost
from grpo.config.parts import SamplerSettings
from grpo.host.network import free_port
from grpo.host.signals import HURRY, StopRequest, handled_as_before, interruptible
from grpo.rollout import fleet
from grpo.rollout.claims import served
from grpo.rollout.engine_arguments import sleep_arguments
from grpo.rollout.member import Member, empty_cache
from grpo.rollout.replica import Replica, ReplicaLost, ServerState
from grpo.rollout.server_middleware import CLAIM_ROUTE, RELEASE_ROUTE
from grpo.rollout.server_sampler import PendingGroup, ServerSampler, wait_for
from grpo.types import Problem, Prompt
from grpo.weight_sync.channel import Manifest, Meeting, open_end
from grpo.weight_sync.server_link import MemoryLink
from tests.fakes import SingleRank, on_ranks
from tests.learner.models import files_of, tiny_llama

BUCKETS = [[("a", torch.arange(4.0))], [("b", torch.ones(2, 3))]]
ROUTES = ["/start_weight_update", "/update_weights", "/finish_weight_update", "/collective_rpc", "/resume"]


class Alone(SingleRank):
    deadline = None

    def apart(self, deadline_seconds):
        self.deadline = deadline_seconds
        return self


class StandIn:
    """This stands in for a vLLM server that is given weights. From refresh number `since` on, it answers requests to
    `route` with `failure`. It claims to run what `model` needs."""

    serves: ClassVar = {}

    def __init__(self, route=None, failure=None, since=2):
        self._route, self._failure, self.received, self._refreshes, self._since = route, failure, [], 0, since
        self.released, self.page = 0, ""

    async def answer(self, request):
        if request.path == RELEASE_ROUTE:
            self.released += 1
            return web.Response()
        payload = await request.json()
        self._refreshes += request.path == "/start_weight_update"
        if request.path == CLAIM_ROUTE:
            return web.json_response(self.serves)
        if request.path == self._route and self._refreshes >= self._since:
            return await self._failure(request)
        if request.path == "/init_weight_transfer_engine":
            await asyncio.to_thread(self._meet, **payload["init_info"])
        if request.path == "/update_weights":
            manifest = Manifest(**payload["update_info"])
            self.received += await asyncio.to_thread(self._channel.receive, manifest)
        return web.json_response({"results": [{"all": len(self.received)}]})

    def _meet(self, meeting, seconds):
        meeting = Meeting(**meeting)
        store = meeting.join(seconds)
        self._channel = open_end(store, meeting.host, 1, meeting.world_size, torch.device("cpu"), seconds)


@contextmanager
def serving(stand_in):
    ready, place = threading.Event(), {}

    async def serve():
        application = web.Application()
        application.router.add_get("/is_paused", lambda request: asyncio.sleep(0, web.Response()))
        application.router.add_get("/metrics", lambda request: asyncio.sleep(0, web.Response(text=stand_in.page)))
        application.router.add_post("/{route:.*}", stand_in.answer)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        place.update(port=runner.addresses[0][1], loop=asyncio.get_running_loop(), stop=asyncio.Event())
        ready.set()
        await place["stop"].wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    ready.wait(10)
    try:
        yield f"http://127.0.0.1:{place['port']}"
    finally:
        place["loop"].call_soon_threadsafe(place["stop"].set)
        thread.join(10)


async def cut(request):
    """Breaks the connection, as a process that is killed does."""
    request.transport.abort()
    return web.Response()


async def half(request):
    return web.Response(text='{"results": [', content_type="application/json")


async def nothing(request):
    return web.json_response(None)


async def error(request):
    return web.Response(status=500, text="EngineDeadError")


async def hang(request):
    await asyncio.sleep(30)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    directory = tiny_llama(tmp_path_factory.mktemp("model"), tied=True)
    tiny_tokenizer().save_pretrained(directory)
    StandIn.serves = served(SamplerSettings.of(TrainConfig()), directory)
    return directory


def configured(*urls, **settings):
    """Returns the configuration of a run that asks the servers at these addresses."""
    config = TrainConfig()
    config.rollout.servers = replace(config.rollout.servers, urls=[*urls], **settings)
    return config


def connected(config, model, collective=None):
    files = files_of(model, tiny_tokenizer())
    return ServerSampler(SamplerSettings.of(config), files, torch.device("cpu"), collective or Alone())


def refresh(sampler, version):
    sampler.begin_refresh()
    for bucket in BUCKETS:
        sampler.load_weights(bucket)
    sampler.finish_weights(version)
    return sampler.checksums()


def test_a_server_of_another_model_is_refused_on_all_ranks_and_released(model):
    stranger = StandIn()
    stranger.serves = StandIn.serves | {"hidden_size of the model": 1}
    with serving(stranger) as url, pytest.raises(UserError, match="hidden_size of the model is 1 there"):
        connected(configured(url), model)
    assert stranger.released == 1


@pytest.mark.parametrize(("sync", "answer", "given"), [(20.0, 100.0, 5.0), (20.0, 8.0, 2.0)])
def test_a_server_that_hangs_in_a_refresh_is_given_up_long_before_the_run_is(sync, answer, given, model, monkeypatch):
    stranger, links, alone = StandIn(), [], Alone()
    stranger.serves = {}
    monkeypatch.setattr(fleet, "ServerLink", lambda workers, device, seconds, host: links.append(seconds))
    with serving(stranger) as url:
        config = configured(url, request_seconds=answer)
        config.rollout.deadline_seconds, config.weight_sync.deadline_seconds = 7200.0, sync
        with pytest.raises(UserError, match="is None there"):
            connected(config, model, alone)
    assert links == [given]
    # Ranks that draw together wait as long as sampling may take.
    assert alone.deadline == 7200.0


def test_the_smallest_cache_of_the_servers_is_reported_where_it_has_room_for_few(model, capsys):
    small, large = StandIn(), StandIn()
    small.page, large.page = (
        f'vllm:cache_config_info{{kv_cache_max_concurrency="{room}"}} 1.0\n' for room in (2.5, 99.0)
    )
    with serving(large) as first, serving(small) as second:
        config = configured(first, second)
        config.rollout.engine = "vllm_server"
        connected(config, model).close()
    [note] = [line for line in capsys.readouterr().err.splitlines() if "KV cache" in line]
    assert "room for 2.5 completions" in note and note.endswith("start the servers with a higher rollout.kv_cache_gib")


def test_the_ranks_of_one_machine_share_the_servers_and_all_know_what_one_of_them_has_lost(model, monkeypatch, capsys):
    monkeypatch.setattr(Rank, "apart", lambda self, seconds: self, raising=False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    servers = StandIn(), StandIn("/update_weights", error), StandIn()

    def two_refreshes(collective):
        sampler = connected(config, model, collective)
        sums = [refresh(sampler, 1), refresh(sampler, 2)]
        opened = [member.link._channel is not None for member in sampler._fleet._members]
        return sums, opened, [replica.alive for replica in sampler.servers]

    with ExitStack() as stack:
        urls = [stack.enter_context(serving(server)) for server in servers]
        config = configured(*urls, request_seconds=12.0)
        # The third rank is on another machine.
        of_ranks = on_ranks(3, two_refreshes)
    sums = [[{"all": 2}] * 3, [{"all": 4}] * 2]
    alive = [True, False, True]
    assert of_ranks == [
        (sums, [True, False, True], alive), (sums, [False, True, False], alive), (sums, [False] * 3, alive)
    ]  # fmt: skip
    assert capsys.readouterr().err.count("was lost: 500 at /update_weights") == 1


@pytest.mark.parametrize(("seconds", "at_once"), [(0.0, 12), (30.0, 4)])
def test_ranks_with_a_deadline_send_no_more_than_a_server_does_at_once(seconds, at_once, model, monkeypatch):
    """The time of a group runs once it is sent, and in a server's queue nothing comes of it."""
    monkeypatch.setattr(Rank, "apart", lambda self, seconds: self, raising=False)

    def sent(collective):
        return connected(config, model, collective)._dispatcher._at_once

    with serving(StandIn()) as url:
        config = configured(url)
        config.rollout.group_deadline_seconds, config.rollout.max_concurrent = seconds, 12
        StandIn.serves = served(SamplerSettings.of(config), model)
        assert on_ranks(3, sent) == [at_once] * 3
    StandIn.serves = served(SamplerSettings.of(TrainConfig()), model)


@pytest.mark.slow
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("failure", [cut, half, nothing, error, hang])
def test_a_server_lost_in_a_refresh_is_given_up_and_the_other_has_its_weights(route, failure, model, capsys):
    # An answer that says nothing is a failure only where one is read.
    harmless = failure is nothing and route != "/collective_rpc"
    bad, good = StandIn(route, failure), StandIn()
    with serving(bad) as first, serving(good) as second:
        sampler = connected(configured(first, second, request_seconds=12.0), model)
        assert refresh(sampler, 1) == [{"all": 2}, {"all": 2}]
        if harmless and route == "/update_weights":
            return  # it says that it has received what it has not: the checksums tell
        counts = refresh(sampler, 2)
        assert {"all": 4} in counts and (harmless or len(counts) == 1)
        assert sampler.policy_version == 2
        lost = [line for line in capsys.readouterr().err.splitlines() if "was lost" in line]
        assert len(lost) == (0 if harmless else 1) and all(first in line for line in lost)
        sampler.close()


@pytest.mark.slow
def test_a_server_that_comes_back_with_another_model_is_refused_in_one_line_and_not_in_every_round(model, capsys):
    returning = StandIn("/update_weights", cut)
    with serving(returning) as first, serving(StandIn()) as second:
        sampler = connected(configured(first, second, request_seconds=12.0), model)
        refresh(sampler, 1)
        refresh(sampler, 2)
        returning.serves = StandIn.serves | {"hidden_size of the model": 1}
        for version in (3, 4, 5):
            assert len(refresh(sampler, version)) == 1
        returning.serves, returning._route = StandIn.serves, ""
        assert len(refresh(sampler, 6)) == 2
        lost, refused, back = [line for line in capsys.readouterr().err.splitlines() if first in line]
        assert lost.startswith(f"grpo: the vLLM server at {first} was lost: ")
        assert refused.startswith(f"grpo: the vLLM server at {first} does not run what this run needs: hidden_size")
        assert back == f"grpo: the vLLM server at {first} is back"
        sampler.close()


@pytest.mark.slow
def test_weights_that_no_server_could_ever_load_are_a_models_matter_and_not_a_lost_servers(model):
    def sampler_of(*servers):
        return connected(configured(*servers, request_seconds=12.0), model)

    bad, worse = (StandIn("/update_weights", error, since=1) for _ in range(2))
    with serving(bad) as first, serving(worse) as second, serving(StandIn()) as good:
        alone = sampler_of(first, second)
        with pytest.raises(UserError, match=r"no vLLM server could load this model's .*EngineDead.*=transformers"):
            refresh(alone, 1)
        alone.close()
        # With one that can, the other is merely lost.
        together = sampler_of(first, good)
        assert refresh(together, 1) == [{"all": 2}]
        together.close()
    with serving(StandIn("/update_weights", error)) as later:
        sampler = sampler_of(later)
        refresh(sampler, 1)
        assert refresh(sampler, 2) == []
        sampler.close()


class Started:
    """This stands in for the process of a server that the run started."""

    def __init__(self):
        self.ended, self.restarts = False, 0

    def restart(self):
        self.ended, self.restarts = False, self.restarts + 1

    def check(self):
        """Does nothing, since the process lives."""

    def ask_to_end(self):
        """Does nothing: `stop` ends it."""

    def stop(self):
        self.ended = True


def test_servers_that_do_not_answer_as_they_start_are_ended(model, monkeypatch):
    process = Started()
    url = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setattr(fleet, "start_servers", lambda *arguments: {url: process})
    with pytest.raises(UserError, match="did not answer within rollout.servers.start_seconds"):
        connected(configured(start_seconds=0.1), model)
    assert process.ended


@pytest.mark.parametrize(
    ("route", "answer", "complaint"),
    [
        ("/none", None, "answers with 404, so it is no server of `grpo serve`"),
        ("/is_paused", web.Response(text="<html>", content_type="text/html"), "answers with 404"),
        ("/is_paused", web.Response(status=302, headers={"Location": "/login"}), "answers with 302"),
    ],
)
def test_an_address_of_something_else_is_refused_at_its_first_answer(route, answer, complaint):
    async def ask():
        application = web.Application()
        application.router.add_get(route, lambda request: asyncio.sleep(0, answer))
        runner = web.AppRunner(application)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            await Replica(f"http://127.0.0.1:{runner.addresses[0][1]}", "", 5.0).wait(60.0)
        finally:
            await runner.cleanup()

    with pytest.raises(UserError, match=complaint):
        asyncio.run(ask())


def test_a_server_whose_name_nobody_knows_is_waited_for_and_then_named():
    with pytest.raises(UserError, match=r"did not answer within .*=0.1 \(Cannot connect to host no-such-host.invalid"):
        asyncio.run(Replica("http://no-such-host.invalid:8000", "", 5.0).wait(0.1))


@pytest.mark.slow
def test_a_server_that_ends_while_it_is_started_again_is_started_once_more(model):
    with serving(StandIn("/update_weights", cut)) as first, serving(StandIn()) as second:
        sampler = connected(configured(first, second, request_seconds=12.0), model)
        process = sampler._fleet.replicas[0].process = Started()
        refresh(sampler, 1)
        assert process.restarts == 0
        refresh(sampler, 2)
        assert process.restarts == 1
        # Where it starts nobody answers yet.
        sampler._fleet.replicas[0].url = f"http://127.0.0.1:{free_port()}"
        refresh(sampler, 3)
        assert process.restarts == 1
        process.ended = True
        refresh(sampler, 4)
        assert process.restarts == 2
        sampler.close()


def test_ranks_leave_their_servers_together_where_one_of_them_has_to_save_at_once():
    def raised(lost):
        def agreed(collective):
            sampler = object.__new__(ServerSampler)
            sampler._drawing, sampler._fleet = collective, SimpleNamespace(restart_lost=lambda: None)
            try:
                sampler.agree(lost[collective.rank])
            except Exception as error:
                return type(error)

        return on_ranks(2, agreed)

    assert raised([None, Interrupted()]) == raised([SamplerLost(), Interrupted()]) == [Interrupted] * 2
    assert raised([None, SamplerLost()]) == [SamplerLost] * 2
    assert raised([None, None]) == [None] * 2


@pytest.mark.slow
def test_a_server_answers_once_with_the_whole_completion(model):
    """Otherwise it would make an answer, and objects of log-probabilities, for every token of every completion."""
    from vllm.entrypoints.scale_out.token_in_token_out.protocol import GenerateRequest
    from vllm.sampling_params import RequestOutputKind

    with serving(StandIn()) as url:
        sampler = connected(config := configured(url), model)
        request = sampler._request(Prompt(Problem("p", "q", "a"), (3, 4)), 0, config.rollout.sampling)
        sampler.close()
    read = GenerateRequest.model_validate(request).sampling_params
    assert (read.output_kind, read.flat_logprobs) == (RequestOutputKind.FINAL_ONLY, True)


def test_tokens_of_a_server_that_was_sent_no_weights_are_those_of_version_0():
    spans = [{"version": "default", "start": 0, "end": 3}, {"version": "2", "start": 3, "end": 4}]
    assert object.__new__(ServerSampler)._versions({"weight_versions": spans}) == ((0, 3), (2, 1))


def test_a_completion_that_a_server_still_writes_is_left_where_the_run_has_to_save_at_once():
    pending = PendingGroup(None, range(1), Future(), dict)
    with handled_as_before():
        StopRequest(["hurry"])
        os.kill(os.getpid(), HURRY)
        with interruptible():
            groups, error = wait_for([pending])
    assert (groups, type(error)) == ([], Interrupted)


@pytest.mark.parametrize(("lost", "adapters", "level"), [([], False, 2), (["alibi_slopes"], False, 1), ([], True, 1)])
def test_a_server_beside_a_learner_sleeps_deeply_once_a_refresh_brings_everything_back(lost, adapters, level):
    calls = []

    async def post(route, payload):
        calls.append(payload.get("method", route))
        return {"results": [lost]}

    async def rounds(member):
        await member.sleep(post)
        await member.wake(post)
        await member.finish_refresh(post, 1, adapters, sleeps=True)
        await member.sleep(post)

    asyncio.run(rounds(Member(SimpleNamespace(), MemoryLink())))
    assert calls[:2] == ["/sleep?level=1", "/wake_up?tags=weights"]
    # Its cache gets memory once the weights have come, and is emptied before requests go on.
    refresh = ["/finish_weight_update", "lost_by_sleep", "/wake_up?tags=kv_cache", *["place_adapter"] * adapters]
    assert calls[2:] == [*refresh, "/reset_prefix_cache?reset_external=true", "/resume", f"/sleep?level={level}"]


def test_a_server_that_keeps_what_older_weights_have_computed_is_lost(monkeypatch):
    monkeypatch.setattr("grpo.rollout.member.AGAIN_SECONDS", 0.0)
    answers = [False, False, True]

    async def post(route, payload):
        return {"success": answers.pop(0)}

    # A request that was given up may hold its part of the cache for a moment.
    asyncio.run(empty_cache(post))
    assert not answers
    answers += [False] * 100
    with pytest.raises(ReplicaLost, match="did not empty its prefix cache after a refresh"):
        asyncio.run(empty_cache(post))


def test_an_engine_that_was_started_again_sleeps_before_it_has_weights_and_joins_in_the_next_refresh(model):
    """The learner's states return to the GPU once the engine sleeps."""
    asked = []

    class Asked(StandIn):
        async def answer(self, request):
            asked.append(request.path_qs)
            return await super().answer(request)

    with serving(Asked()) as url:
        sampler = connected(configured(url), model)
        refresh(sampler, 1)
        servers, [replica] = sampler._fleet, sampler._fleet.replicas
        servers._sleep, replica.state = "all", ServerState.LOST
        servers.wait_for_lost()
        servers.sleep()
        assert asked[-1] == "/sleep?level=1"
        refresh(sampler, 2)
        assert replica.state is ServerState.READY
        sampler.close()


def test_an_engine_takes_memory_once_all_ranks_that_share_it_have_given_theirs_back(model, monkeypatch):
    monkeypatch.setattr(Rank, "apart", lambda self, seconds: self, raising=False)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: events.append("a rank gives back"))
    events = []

    class Waking(StandIn):
        async def answer(self, request):
            if request.path == "/wake_up":
                events.append(request.path_qs)
            return await super().answer(request)

    def one_round(collective):
        sampler = connected(config, model, collective)
        refresh(sampler, 1)
        sampler._fleet._sleep = "all"
        # The last copies of one rank take longer.
        time.sleep(0.3 * collective.rank)
        sampler._fleet.wake()
        time.sleep(0.3 * collective.rank)
        refresh(sampler, 2)

    with serving(Waking()) as url:
        config = configured(url)
        assert on_ranks(2, one_round) == [None, None]
    gives = ["a rank gives back"] * 2
    assert events == [*gives, "/wake_up?tags=weights", *gives, "/wake_up?tags=kv_cache"]


@pytest.mark.parametrize("sleep", ["all", "cache"])
def test_an_engine_that_fails_as_it_falls_asleep_starts_again_once_the_learner_has_given_its_memory_back(sleep, model):
    """The learner would find no memory beside it, or it none beside the learner."""
    with serving(StandIn("/sleep", error, since=1)) as url:
        sampler = connected(configured(url), model)
        servers, [replica] = sampler._fleet, sampler._fleet.replicas
        process = replica.process = Started()
        refresh(sampler, 1)
        servers._sleep = sleep
        servers.sleep()
        servers.restart_lost()
        assert replica.state is ServerState.LOST and process.restarts == 0
        servers.wake()
        refresh(sampler, 2)
        assert replica.state is ServerState.READY and process.restarts == 1
        sampler.close()


def test_a_server_that_gives_back_its_cache_alone_stops_first():
    """vLLM releases a cache only once nothing is scheduled any more."""
    calls = []

    async def post(route, payload):
        calls.append(route)

    asyncio.run(Member(SimpleNamespace(), MemoryLink()).release_cache(post))
    assert calls == ["/sleep?level=0", "/release_kv_cache_memory"]


def test_the_engine_of_a_speculating_run_keeps_the_weights_of_its_draft_model():
    """vLLM loses all parameters at sleep level 2, except those with these names."""
    [kept] = sleep_arguments(speculates=True)["sleep_preserve_parameter_names"]
    assert fnmatch("draft.model.layers.0.mlp.down_proj.weight", kept)
    # Older versions of vLLM do not know the argument.
    assert sleep_arguments(speculates=False) == {"enable_sleep_mode": True}
