"""These tests check that one run at a time uses a server, and only one that runs what the run needs."""

import asyncio
import json
import threading
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from grpo.config import TrainConfig, UserError
from grpo.config.parts import SamplerSettings
from grpo.host.network import free_port
from grpo.rollout import claims
from grpo.rollout.claims import Claims, claim, claim_all, remark_on_versions, require_same, served
from grpo.rollout.replica import Replica, ReplicaLost, RequestRefused
from grpo.rollout.server_middleware import LEASE_SECONDS, RELEASE_ROUTE, SERVED_VARIABLE, ClaimMiddleware


class Server:
    """This stands for a server that two runs reach, and for their clock. `run` of a request may be ""."""

    def __init__(self):
        self.now = 0.0
        self._guard = ClaimMiddleware(self._application, lambda: self.now)

    async def _application(self, scope, receive, send):
        await send({"status": "reached"})

    def ask(self, run, path, method="POST"):
        """Returns the status and the text of the answer, or "reached" where vLLM itself would answer."""
        sent = []

        async def send(message):
            sent.append(message)

        headers = [(b"x-grpo-run", run.encode())] if run else []
        asyncio.run(self._guard({"type": "http", "path": path, "method": method, "headers": headers}, None, send))
        status, *body = sent
        return (status["status"], body[0]["body"].decode()) if body else status["status"]


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv(SERVED_VARIABLE, '{"model.max_length": 64}')
    return Server()


TAKEN = (409, "it serves the run in /runs/a b")


def test_one_run_at_a_time_uses_a_server_until_it_is_released(server):
    assert server.ask("/runs/c", "/update_weights") == (409, "no run has claimed it since it was started or released")
    assert server.ask("/runs/a%20b", "/claim") == (200, '{"model.max_length": 64}')
    for path in ("/claim", "/init_weight_transfer_engine", "/update_weights", "/inference/v1/generate"):
        assert server.ask("/runs/c", path) == TAKEN
        assert server.ask("/runs/a%20b", "/update_weights") == "reached"
    assert server.ask("/runs/c", "/claim", "GET") == TAKEN, "a claim by another method"
    assert server.ask("/runs/c", "/is_paused", "GET") == server.ask("", "/pause") == "reached"
    server.ask("/runs/c", "/release")
    assert server.ask("/runs/c", "/claim") == TAKEN, "another run's release"
    server.ask("/runs/a%20b", "/release")
    assert server.ask("/runs/a%20b", "/is_paused", "GET") == "reached", "a late sign of life"
    assert server.ask("/runs/c", "/claim")[0] == 200
    assert server.ask("/runs/a%20b", "/update_weights") == (409, "it serves the run in /runs/c")


def test_a_claim_ends_some_time_after_the_runs_last_request(server):
    server.ask("/runs/a%20b", "/claim")
    for _ in range(3):
        server.now += LEASE_SECONDS - 1
        assert server.ask("/runs/c", "/claim") == TAKEN
        server.ask("/runs/a%20b", "/is_paused", "GET")
    server.now += LEASE_SECONDS
    assert server.ask("/runs/a%20b", "/update_weights") == "reached", "nobody else has come"
    server.now += LEASE_SECONDS
    assert server.ask("/runs/c", "/claim")[0] == 200
    server.now += 2 * LEASE_SECONDS
    assert server.ask("/runs/a%20b", "/inference/v1/generate")[0] == 409, "the weights are another run's by now"


@pytest.fixture
def described(tmp_path):
    def describe(engine_args=(), **words):
        (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 64, "_name_or_path": "x"} | words))
        config = TrainConfig()
        config.rollout.engine_args = dict(engine_args)
        return served(SamplerSettings.of(config), tmp_path)

    return describe


def test_a_server_of_another_model_version_or_precision_is_refused_in_one_line(described):
    ours = described()
    require_same("http://a:1", ours | {"model.max_length": ours["model.max_length"] + 1}, ours)
    require_same("http://a:1", described(_name_or_path="y", dtype="float32"), ours)
    for theirs, said in (
        (described(hidden_size=128), "hidden_size of the model is 128 there and 64 here"),
        (described(head_dim=16), "head_dim of the model is 16 there and None here"),
        (ours | {"the version of grpo": "0.0.1"}, "the version of grpo is '0.0.1' there and '"),
        (ours | {"rollout.precision": "float16"}, "rollout.precision is 'float16' there and 'auto' here"),
        (ours | {"rollout.servers.tensor_parallel": 2}, "rollout.servers.tensor_parallel is 2 there and 1 here"),
        ({}, "the version of grpo is None there"),
    ):
        with pytest.raises(UserError) as refused:
            require_same("http://a:1", theirs, ours)
        assert said in str(refused.value)
        assert "start `grpo serve` there with the words of this run" in str(refused.value)
    with pytest.raises(UserError, match=r"model\.max_length is -1 there"):
        require_same("http://a:1", ours | {"model.max_length": -1}, ours)


def test_a_server_with_other_arguments_of_vllm_is_refused_unless_they_only_spend_memory_and_time(described):
    ours = described({"kv_cache_dtype": "fp8", "max_num_batched_tokens": 4096, "hf_token": "secret"})
    assert "secret" not in str(ours)
    require_same("http://a:1", described({"kv-cache-dtype": "fp8", "max_num_batched_tokens": 512}), ours)
    guesses = {"speculative_config": {"method": "ngram"}}
    for theirs, said in (
        (described(), "rollout.engine_args.kv_cache_dtype is None there and 'fp8' here"),
        (described({"kv_cache_dtype": "auto"}), "rollout.engine_args.kv_cache_dtype is 'auto' there and 'fp8' here"),
        (
            described({"kv_cache_dtype": "fp8"} | guesses),
            "rollout.engine_args.speculative_config is {'method': 'ngram'} there and None here",
        ),
    ):
        with pytest.raises(UserError) as refused:
            require_same("http://a:1", theirs, ours)
        assert f"{said}: start `grpo serve` there with the words of this run, or" in str(refused.value)


def test_values_that_machines_choose_differently_have_to_be_named(described):
    ours = described() | {"rollout.precision": "float32"}
    with pytest.raises(UserError, match=r", and name rollout.precision there and here, since auto depends on"):
        require_same("http://a:1", ours | {"rollout.precision": "bfloat16"}, ours)


def test_several_versions_of_vllm_give_a_warning_and_no_error(described):
    ours = described() | {"the version of vLLM": "0.32.0"}
    other, older = ours | {"the version of vLLM": "0.32.1"}, {**ours}
    del older["the version of vLLM"]
    require_same("http://a:1", other, ours)
    assert remark_on_versions(ours, {"http://a:1": ours, "http://b:1": older}) == ""
    remark = remark_on_versions(ours, {"http://a:1": ours, "http://b:1": other})
    assert "0.32.0 at http://a:1, 0.32.1 at http://b:1, 0.32.0 at this machine" in remark
    # A learner needs no vLLM of its own.
    assert remark_on_versions(ours | {"the version of vLLM": ""}, {"http://b:1": other}) == ""


class Reached:
    """This stands for a replica: the server that the run `run` knows as `url`."""

    def __init__(self, url, guard, run):
        self.url, self._guard, self._run = url, guard, run

    @asynccontextmanager
    async def session(self, seconds):
        yield None

    async def post(self, session, route, payload):
        sent = []

        async def send(message):
            sent.append(message)

        # Another run's request may come in between.
        await asyncio.sleep(0.001)
        headers = [(b"x-grpo-run", self._run.encode())]
        await self._guard({"type": "http", "path": route, "method": "POST", "headers": headers}, None, send)
        start, body = sent
        if start["status"] != 200:
            raise RequestRefused("", start["status"], body["body"].decode())
        return json.loads(body["body"])


@pytest.fixture
def two_servers(described, monkeypatch):
    """Returns a function that starts two runs at once. It takes by which URLs each knows the same two servers, and
    returns which run has claimed each server after every run's end, and what the runs ended with."""
    monkeypatch.setattr(claims, "WAIT_SECONDS", 0.01)
    monkeypatch.setattr(claims, "LEASE_SECONDS", 1.0 - claims.BEAT_SECONDS)
    ours = described()
    monkeypatch.setenv(SERVED_VARIABLE, json.dumps(ours))

    def start(*urls_by_run):
        guards = [ClaimMiddleware(None), ClaimMiddleware(None)]

        async def all_at_once():
            runs = [
                claim_all(
                    [Reached(url, guard, f"/runs/{number}") for url, guard in zip(urls, guards, strict=True)], ours
                )
                for number, urls in enumerate(urls_by_run)
            ]
            return await asyncio.gather(*runs, return_exceptions=True)

        ends = asyncio.run(all_at_once())
        return {guard._owner.decode() for guard in guards}, ends

    return start


@pytest.mark.parametrize("second", [("http://a:1", "http://b:1"), ("http://z:1", "http://y:1")])
def test_one_of_two_runs_that_start_at_once_gets_both_servers_and_the_other_is_refused(two_servers, second):
    owners, ends = two_servers(("http://a:1", "http://b:1"), second)
    [winner] = owners
    refused = ends[1 - int(winner[-1])]
    assert ends[int(winner[-1])] is None
    assert isinstance(refused, UserError) and f"is in use: it serves the run in {winner}; wait" in str(refused)


class Claiming:
    """This stands for a replica whose server answers a claim by the next of `answers`. A release always succeeds."""

    url = "http://a:1"

    def __init__(self, *answers):
        self._answers, self.released = iter(answers), 0

    @asynccontextmanager
    async def session(self, seconds):
        yield None

    async def post(self, session, route, payload):
        if route == RELEASE_ROUTE:
            self.released += 1
            return {}
        answer = next(self._answers)
        if answer is None:
            raise ReplicaLost("no answer within 5 s")
        if isinstance(answer, int):
            raise RequestRefused("", answer, "it serves the run in /runs/b (process 7 on host)")
        return answer


def test_a_run_waits_for_the_claim_of_a_killed_one_and_no_longer(described, monkeypatch, capsys):
    monkeypatch.setattr(claims, "WAIT_SECONDS", 0.0)
    ours = described()
    asyncio.run(claim_all([Claiming(409, 409, ours)], ours))
    assert capsys.readouterr().err.count("is another run's") == 1
    monkeypatch.setattr(claims, "LEASE_SECONDS", -claims.BEAT_SECONDS)
    with pytest.raises(
        UserError, match=r"a:1 is in use: it serves the run in /runs/b \(process 7 on host\); wait until"
    ):
        asyncio.run(claim_all([Claiming(409, 409)], ours))


def test_servers_that_are_claimed_beside_one_that_is_refused_are_given_back(described):
    ours = described()
    first, second = Claiming(ours), Claiming(described(hidden_size=128))
    second.url = "http://b:1"
    with pytest.raises(UserError, match="hidden_size of the model is 128 there"):
        asyncio.run(claim_all([second, first], ours))
    assert first.released == second.released == 1


def test_a_server_that_does_not_answer_a_claim_is_reported_before_the_first_round(described):
    with pytest.raises(UserError, match="a:1 was lost before the first round: no answer within 5 s"):
        asyncio.run(claim_all([Claiming(None)], described()))


def test_a_server_that_knows_no_claims_was_started_otherwise(described):
    with pytest.raises(UserError, match=r"knows no claims \(404\): start it by the `grpo serve`"):
        asyncio.run(claim(Claiming(404), described()))


def test_a_server_that_does_not_answer_delays_no_claim_on_another(monkeypatch):
    asked, released, twice = [], threading.Event(), threading.Event()

    def ask(replica, route, method):
        asked.append((replica.url, method))
        if replica.url == "slow" and method == "GET":
            released.wait(10)
        if asked.count(("quick", "GET")) == 2:
            twice.set()

    monkeypatch.setattr(claims, "BEAT_SECONDS", 0.01)
    monkeypatch.setattr(claims, "_ask", ask)
    kept = Claims([Replica("slow", "", 5.0), Replica("quick", "", 5.0)])
    beaten = twice.wait(5)
    released.set()
    kept.close()
    assert beaten and asked[-2:] == [("slow", "POST"), ("quick", "POST")]


def test_claims_are_kept_alive_and_released_at_the_end(monkeypatch):
    asked, beaten = [], threading.Event()

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append((self.command, self.path, self.headers["x-grpo-run"]))
            beaten.set()
            self.send_response(409)
            self.end_headers()

        do_POST = do_GET

        def log_message(self, *_):
            pass

    monkeypatch.setattr(claims, "BEAT_SECONDS", 0.01)
    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever).start()
        gone = f"http://127.0.0.1:{free_port()}"
        kept = Claims(
            [Replica(gone, "", 5.0), Replica(f"http://127.0.0.1:{server.server_port}", "", 5.0, run="/runs/a b")]
        )
        assert beaten.wait(10)
        kept.close()
        server.shutdown()
    assert asked[0] == ("GET", "/is_paused", "/runs/a%20b") and asked[-1] == ("POST", "/release", "/runs/a%20b")
