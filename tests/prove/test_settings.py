"""Settings follow from what was measured, by rules that can be checked by hand."""

import dataclasses

import pytest

from grpo.prove import settings
from grpo.prove.settings import Basis, settings_of
from grpo.types import MachineConstants

# 64 completions at once: 1,000 tokens/s. So one engine needs 64 s for 64,000 tokens; a step of 80,000 takes 40 s.
CONSTANTS = MachineConstants("a GPU", 1_000_000_000, ((8, 200.0), (64, 1000.0)), 2000.0, 1.0, 4.0)
ROWS = ((8192, 1900.0, 30.0), (16384, 1950.0, 40.0), (32768, 2000.0, 71.0), (65536, 2100.0, 79.0))
BASIS = Basis(4, 80.0, 30.0, ROWS, 80_000, False, 4096, 100_000, 3.0, 8.0, 64, 64_000)


def words(basis=BASIS, constants=CONSTANTS):
    return [setting.word for setting in settings_of(constants, basis)]


def placed(basis=BASIS, constants=CONSTANTS):
    """Returns the words after those of the learner, which are three on a GPU."""
    return words(basis, constants)[3:]


def test_a_round_takes_as_long_as_its_parts():
    # Four engines with 16 completions each: 200 + 800 · 8/56 tokens/s. L/N is 10 s, R and O are 5 s.
    assert settings.seconds_in_turns(CONSTANTS, BASIS) == pytest.approx(16_000 / (200 + 800 * 8 / 56) + 10 + 5)
    # Two engines with 32 each beside two learners: the longer is sampling.
    assert settings.seconds_beside(CONSTANTS, BASIS, 2) == pytest.approx(32_000 / (200 + 800 * 24 / 56) + 4 + 1)
    assert settings.seconds_beside(CONSTANTS, dataclasses.replace(BASIS, packed_tokens=800_000), 2) == 200 + 1


def test_rows_are_the_shortest_that_are_fast_and_fit():
    assert words()[0] == "learner.micro_batch_tokens=16384"
    # The rows that reach 97 % of the fastest only take too much memory.
    slower = [(tokens, speed * (0.5 if tokens < 32768 else 1.0), peak) for tokens, speed, peak in ROWS]
    assert words(dataclasses.replace(BASIS, rows=tuple(slower)))[0] == "learner.micro_batch_tokens=32768"


def test_activations_are_kept_and_chunks_of_logits_grow_as_far_as_memory_allows():
    # 12 bytes of 100,000 logits of 12,288 tokens more are 13.7 GiB; 40 and these are less than 72.
    assert words()[1:3] == ["learner.gradient_checkpointing=false", "learner.logit_chunk_tokens=16384"]
    # 60 and 4.6 GiB are less than 72, and 60 and 13.7 more.
    fuller = [(tokens, speed, peak + 20) for tokens, speed, peak in ROWS]
    assert words(dataclasses.replace(BASIS, rows=tuple(fuller)))[2] == "learner.logit_chunk_tokens=8192"
    assert words(dataclasses.replace(BASIS, checkpointing=True))[1] == "learner.logit_chunk_tokens=16384"


def test_gpus_take_turns_and_the_sampler_has_what_the_learner_leaves():
    # (80 − 30 − 3) / 80 = 0.5875, and the step below it. Of 44 GiB 3 are weights; 64 completions take 8.
    expected = ["rollout=vllm", "hardware.ranks_per_node=4", "rollout.gpu_memory_fraction=0.55"]
    assert placed() == [*expected, "rollout.max_concurrent=328"]
    assert placed(dataclasses.replace(BASIS, cache_gib=1.0))[-1] == "rollout.max_concurrent=1024"


def test_servers_are_asked_for_where_they_make_a_round_shorter():
    """Decoding of few completions is as slow as of many, so that two engines are quicker than half of four."""
    latency_bound = dataclasses.replace(CONSTANTS, sampling_tokens_per_second=((64, 1000.0),))
    basis = dataclasses.replace(BASIS, packed_tokens=250_000)
    # In turns 64 + 125/4 + 5 s; one server beside three learners max(64 + 4, 125/3) + 1 s.
    assert settings.seconds_in_turns(latency_bound, basis) == pytest.approx(100.25)
    assert settings.seconds_beside(latency_bound, basis, 1) == pytest.approx(69)
    servers = ["rollout=vllm_server", "pipeline=one_round", "hardware.ranks_per_node=3", "rollout.servers.replicas=1"]
    assert placed(basis, latency_bound) == [*servers, "rollout.servers.first_gpu=3"]


def test_servers_are_asked_for_where_the_learner_leaves_no_room():
    # 80 − 73 − 3 GiB is less than 3 GiB of weights and a quarter of the cache.
    assert placed(dataclasses.replace(BASIS, at_rest_gib=73.0))[0] == "rollout=vllm_server"
    assert placed(dataclasses.replace(BASIS, at_rest_gib=72.0))[0] == "rollout=vllm"


def test_one_gpu_without_room_is_reported():
    one = dataclasses.replace(BASIS, gpus=1, at_rest_gib=78.0)
    assert "too much for a sampler" in settings_of(CONSTANTS, one)[-2].reason


@pytest.mark.parametrize(("cache", "word"), [(0.001, "0.125"), (0.3, "0.375"), (2.0, "2")])
def test_a_cpu_has_a_cache_for_the_completions_of_a_round(cache, word):
    cpu = dataclasses.replace(BASIS, gpus=0, cache_gib=cache)
    assert words(cpu)[1:] == ["rollout=vllm", f"rollout.kv_cache_gib={word}"]
