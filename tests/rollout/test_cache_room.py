"""These tests check when a run warns of a small KV cache before its first round."""

import pytest

from grpo.config import TrainConfig
from grpo.rollout.engine_use import FEW, few_at_once, room_of


@pytest.fixture
def config():
    """A step asks for 32 completions."""
    value = TrainConfig()
    value.model.max_length = 512
    value.dynamics.group_size, value.dynamics.prompts_per_step = 8, 4
    return value


def test_room_for_few_completions_is_reported_with_the_key_that_makes_more(config):
    line = few_at_once(2.53, config, 2, "rollout.kv_cache_gib")
    assert "room for 2.5 completions of model.max_length=512 tokens at a time" in line
    assert line.endswith(": raise rollout.kv_cache_gib")
    config.rollout.engine, config.rollout.servers.urls = "vllm_server", ["http://a:1"]
    line = few_at_once(2.53, config, 2, "rollout.servers.gpu_memory_fraction")
    assert line.endswith(": start the servers with a higher rollout.servers.gpu_memory_fraction")


def test_the_cache_is_not_reported_where_enough_are_sampled_at_a_time_or_no_more_are_asked(config):
    assert few_at_once(None, config, 1, "") == few_at_once(FEW, config, 1, "") == ""
    assert few_at_once(FEW - 0.1, config, 1, "")
    assert few_at_once(4.0, config, 8, "") == "", "each of eight engines is asked for four"
    config.rollout.max_concurrent = 2
    assert few_at_once(2.0, config, 1, "") == ""


def test_a_server_says_how_many_completions_of_full_length_its_cache_holds():
    labels = 'block_size="32",engine="0",kv_cache_max_concurrency="{}",kv_cache_size_tokens="1024"'
    counters = "# HELP vllm:cache_config_info Information.\nvllm:cache_config_info{{" + labels + "}} 1.0\nother 2.0\n"
    assert room_of(counters.format(2.5)) == 2.5
    assert room_of(counters.format(364.0)) == 364
    assert room_of(counters.format(None)) is None
    assert room_of("") is None
