"""These tests check how full an engine's KV cache was, how often it ran out of room, and when a run warns of it."""

import asyncio
from types import SimpleNamespace

import pytest

from grpo.config import TrainConfig
from grpo.config.parts import SamplerSettings
from grpo.rollout.engine_use import FEW, EngineUse, ServerUse, few_at_once, room_of, use_of_all
from grpo.rollout.server_middleware import TAKE, MeasuredMiddleware


@pytest.fixture
def config():
    """A step asks for 32 completions."""
    value = TrainConfig()
    value.model.max_length = 512
    value.dynamics.group_size, value.dynamics.prompts_per_step = 8, 4
    return value


def test_room_for_few_completions_is_reported_with_the_key_that_makes_more(config):
    line = few_at_once(2.53, SamplerSettings.of(config), 2, "rollout.kv_cache_gib")
    assert "room for 2.5 completions of model.max_length=512 tokens at a time" in line
    assert line.endswith(": raise rollout.kv_cache_gib")
    config.rollout.engine, config.rollout.servers.urls = "vllm_server", ["http://a:1"]
    line = few_at_once(2.53, SamplerSettings.of(config), 2, "rollout.servers.gpu_memory_fraction")
    assert line.endswith(": start the servers with a higher rollout.servers.gpu_memory_fraction")


def test_the_cache_is_not_reported_where_enough_are_sampled_at_a_time_or_no_more_are_asked(config):
    assert (
        few_at_once(None, SamplerSettings.of(config), 1, "")
        == few_at_once(FEW, SamplerSettings.of(config), 1, "")
        == ""
    )
    assert few_at_once(FEW - 0.1, SamplerSettings.of(config), 1, "")
    assert few_at_once(4.0, SamplerSettings.of(config), 8, "") == "", "each of eight engines is asked for four"
    config.rollout.max_concurrent = 2
    assert few_at_once(2.0, SamplerSettings.of(config), 1, "") == ""


def test_a_server_says_how_many_completions_of_full_length_its_cache_holds():
    labels = 'block_size="32",engine="0",kv_cache_max_concurrency="{}",kv_cache_size_tokens="1024"'
    counters = "# HELP vllm:cache_config_info Information.\nvllm:cache_config_info{{" + labels + "}} 1.0\nother 2.0\n"
    assert room_of(counters.format(2.5)) == 2.5
    assert room_of(counters.format(364.0)) == 364
    assert room_of(counters.format(None)) is None
    assert room_of("") is None


def scheduler(usage, queries=0, hits=0):
    return SimpleNamespace(kv_cache_usage=usage, prefix_cache_stats=SimpleNamespace(queries=queries, hits=hits))


def test_the_fullest_moment_and_all_interruptions_of_a_round_are_reported_once():
    use = EngineUse()
    use.record(scheduler(0.5, queries=8, hits=2), SimpleNamespace(num_preempted_reqs=1), mm_cache_stats=None)
    use.record(scheduler(0.75, queries=8, hits=6), SimpleNamespace(num_preempted_reqs=2))
    use.record(scheduler(0.25), None)
    assert use.take() == {
        "rollout/cache_peak_fraction": 0.75,
        "rollout/preemptions": 3.0,
        "rollout/prefix_hit_fraction": 0.5,
    }
    assert use.take() == {}


def page(preempted, queries, hits, peak=0.5):
    return (
        f'vllm:num_preemptions_total{{engine="0"}} {preempted}\n'
        f'vllm:prefix_cache_queries_total{{engine="0"}} {queries}\n'
        f'vllm:prefix_cache_hits_total{{engine="0"}} {hits}\n# HELP vllm:prefix_cache_hits_total Hits.\n'
        f"rollout/cache_peak_fraction {peak}\n"
    )


def test_counters_of_servers_become_the_use_since_the_last_look():
    use = ServerUse()
    assert use.since({"a": page(1.0, 100, 50), "b": page(0.0, 100, 50)})["rollout/preemptions"] == 1.0
    later = use.since({"a": page(3.0, 200, 150), "b": page(1.0, 100, 50)})
    peak = {"rollout/cache_peak_fraction": 0.5}
    assert later == peak | {"rollout/preemptions": 3.0, "rollout/prefix_hit_fraction": 1.0}
    # A server that was started anew counts from 0, and one without an answer not at all.
    anew = {"rollout/preemptions": 2.0, "rollout/prefix_hit_fraction": 0.5}
    assert use.since({"a": page(2.0, 10, 5)}) == peak | anew
    assert use.since({}) == {}
    peaks = {"a": page(2.0, 20, 5, peak=0.25), "b": page(1.0, 110, 50, peak=0.75)}
    assert use.since(peaks)["rollout/cache_peak_fraction"] == 0.75


def test_a_server_tells_its_peak_to_the_run_and_to_nobody_else():
    async def app(scope, receive, send):
        if scope["path"] == "/generate":
            for use in loggers:
                use.record(scheduler(0.75, queries=8), None)
                use.record(scheduler(0.25), None)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"page"})

    loggers = []
    manager = SimpleNamespace(stat_loggers=loggers)
    models = SimpleNamespace(lora_requests={})
    engine = SimpleNamespace(logger_manager=manager)
    vllm = SimpleNamespace(state=SimpleNamespace(engine_client=engine, openai_serving_models=models))
    server = MeasuredMiddleware(app)

    def answered(path, *headers):
        sent = []

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "path": path, "headers": headers, "app": vllm}
        asyncio.run(server(scope, None, send))
        return dict(sent[0]["headers"])

    take = (TAKE.encode(), b"1")
    for _ in range(2):
        answered("/generate")
    assert len(loggers) == 1
    # Requests may ask for the learner's adapter by name.
    assert [request.lora_int_id for request in models.lora_requests.values()] == [1]
    assert answered("/metrics") == answered("/generate", take) == {}
    assert answered("/metrics", take) == {TAKE.encode(): b"0.75"}
    assert answered("/metrics", take) == {TAKE.encode(): b"0.0"}


def test_the_fullest_of_several_engines_counts_and_interruptions_add_up():
    uses = [{"rollout/cache_peak_fraction": 0.5, "rollout/preemptions": 1.0}, {"rollout/cache_peak_fraction": 0.9}]
    assert use_of_all(uses) == {"rollout/cache_peak_fraction": 0.9, "rollout/preemptions": 1.0}
