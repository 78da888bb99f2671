"""This module says before the first round where an engine's KV cache is so small that sampling is slow."""

from __future__ import annotations

import re
from math import ceil

from grpo.config import TrainConfig
from grpo.config.placement import uses_running_servers

# Preemptions cost more than the tokens themselves below that, see "A small KV cache" in benchmarks/results/speed.md.
FEW = 8
# vLLM's counters have this number among the labels of the cache's settings.
_LABEL = re.compile(r'^vllm:cache_config_info\{.*\bkv_cache_max_concurrency="([0-9.]+)"', re.MULTILINE)


def cache_key(on_gpu: bool) -> str:
    """Returns the key that sets the size of the cache of an engine in the learner's process."""
    return "rollout.gpu_memory_fraction" if on_gpu else "rollout.kv_cache_gib"


def room_of(page: str) -> float | None:
    r"""Returns how many completions of full length a server's cache holds, from its page of counters, or None where
    its vLLM does not tell.

    >>> room_of('# HELP\nvllm:cache_config_info{block_size="32",engine="0",kv_cache_max_concurrency="3.5"} 1.0')
    3.5
    """
    label = _LABEL.search(page)
    return float(label[1]) if label else None


def few_at_once(room: float | None, config: TrainConfig, num_engines: int, key: str) -> str:
    """Returns a line about a cache with room for fewer than `FEW` completions and fewer than a step asks of an engine,
    or else "".

    `room` is how many completions of `model.max_length` tokens, with their prompts, the cache of one of `num_engines`
    holds by vLLM's own count (`kv_cache_max_concurrency`), and `key` sets the cache's size.
    """
    asked = ceil(config.dynamics.group_size * config.dynamics.prompts_per_step / num_engines)
    if room is None or room >= min(FEW, asked, config.rollout.max_concurrent):
        return ""
    where = "start the servers with a higher" if uses_running_servers(config) else "raise"
    return (
        f"vLLM's KV cache has room for {room:.1f} completions of model.max_length={config.model.max_length} tokens at "
        f"a time, and others wait, which is slow: {where} {key}"
    )
