# Light: imported before torch, or without it.
"""This module measures how full an engine's KV cache gets, and how often completions are preempted because it is full.

    rollout/cache_peak_fraction   largest share of the cache in use at once
    rollout/preemptions           completions that were interrupted, and computed anew later, since the cache was full
    rollout/prefix_hit_fraction   share of the prompts' tokens that were in the cache already

A server is asked for its counters (vLLM: `/metrics`) and its peak (`grpo.rollout.server_middleware`) after each round.

It also says before the first round where an engine's KV cache is so small that sampling is slow.
"""

import re
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

from grpo.config.parts import SamplerSettings
from grpo.config.placement import uses_running_servers
from grpo.types import metrics as m

COUNTERS = ("vllm:num_preemptions_total", "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total")


# Preemptions cost more than the tokens themselves below that, see "A small KV cache" in benchmarks/results/speed.md.
FEW = 8
# vLLM's counters have this number among the labels of the cache's settings.
_LABEL = re.compile(r'^vllm:cache_config_info\{.*\bkv_cache_max_concurrency="([0-9.]+)"', re.MULTILINE)


class EngineUse:
    """This object replaces vLLM's own loggers (`LLMEngine.logger_manager`), which print. In a server it joins them.

    vLLM calls `record` after each engine step, so the cache's true peak is seen, which polling would miss.
    """

    def __init__(self) -> None:
        self._peak = 0.0
        self._num_preemptions = 0
        self._num_queries = self._num_hits = 0

    def record(self, scheduler_stats: Any, iteration_stats: Any, **others: Any) -> None:
        """Takes vLLM's statistics of one step. `iteration_stats` is None for a step without new tokens."""
        if scheduler_stats is not None:
            self._peak = max(self._peak, scheduler_stats.kv_cache_usage)
            self._num_queries += scheduler_stats.prefix_cache_stats.queries
            self._num_hits += scheduler_stats.prefix_cache_stats.hits
        if iteration_stats is not None:
            self._num_preemptions += iteration_stats.num_preempted_reqs

    def log(self) -> None:
        """Does nothing: vLLM would print here."""

    def record_sleep_state(self, sleep: int = 0, level: int = 0) -> None:
        """Does nothing: the run itself puts the engine to sleep."""

    def record_admission_rejection(self, reason: str) -> None:
        """Does nothing: the run asks again."""

    def take(self) -> dict[str, float]:
        """Returns the cache's peak, preemptions and prefix hits since the last call, and resets them. Returns {} when
        the engine was idle."""
        peak, preemptions, queries, hits = self._peak, self._num_preemptions, self._num_queries, self._num_hits
        EngineUse.__init__(self)
        if not queries and not peak:
            return {}
        use = {m.CACHE_PEAK: peak, m.PREEMPTIONS: float(preemptions)}
        return use | ({m.PREFIX_HITS: hits / queries} if queries else {})


class ServerUse:
    """This class turns servers' pages into the highest peak, and preemptions and prefix hits since the last call.

    A page holds vLLM's cumulative counters, and a line with the peak.
    """

    def __init__(self) -> None:
        self._before: dict[str, Mapping[str, float]] = {}

    def since(self, pages: Mapping[str, str]) -> dict[str, float]:
        """Returns the metrics since the last call, from the servers' pages by URL. A restarted server counts from 0."""
        preemptions, queries, hits = (
            sum(self._grown(url, counter, page) for url, page in pages.items()) for counter in COUNTERS
        )
        self._before |= {url: {counter: counted(page, counter) for counter in COUNTERS} for url, page in pages.items()}
        if not queries:
            return {}
        peak = max(counted(page, m.CACHE_PEAK) for page in pages.values())
        return {m.CACHE_PEAK: peak, m.PREEMPTIONS: preemptions, m.PREFIX_HITS: hits / queries}

    def _grown(self, url: str, counter: str, page: str) -> float:
        now, before = counted(page, counter), self._before.get(url, {}).get(counter, 0.0)
        return now - before if now >= before else now


def counted(page: str, counter: str) -> float:
    r"""Returns a counter of a page in Prometheus' text format, summed over its labels.

    >>> counted('# HELP hits Hits.\nhits{engine="0"} 3.0\nhits{engine="1"} 4.0\nhits_created 9.0', "hits")
    7.0
    """
    lines = (line.rpartition(" ") for line in page.splitlines())
    return sum(float(value) for name, _, value in lines if name.partition("{")[0] == counter)


def use_of_all(uses: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Combines the metrics of several engines: the highest peak, all preemptions, and the mean fraction of hits.

    >>> use_of_all([{"rollout/preemptions": 1.0}, {}, {"rollout/preemptions": 2.0}])
    {'rollout/preemptions': 3.0}
    """
    metrics: dict[str, float] = {}
    for name in dict.fromkeys(name for use in uses for name in use):
        values = [use[name] for use in uses if name in use]
        if name.endswith("preemptions"):
            metrics[name] = sum(values)
        else:
            metrics[name] = max(values) if name.endswith("peak_fraction") else sum(values) / len(values)
    return metrics


def room_of(page: str) -> float | None:
    r"""Returns how many completions of full length a server's cache holds, from its page of counters, or None where
    its vLLM does not tell.

    >>> room_of('# HELP\nvllm:cache_config_info{block_size="32",engine="0",kv_cache_max_concurrency="3.5"} 1.0')
    3.5
    """
    label = _LABEL.search(page)
    return float(label[1]) if label else None


def few_at_once(room: float | None, settings: SamplerSettings, num_engines: int, key: str) -> str:
    """Returns a line about a cache with room for fewer than `FEW` completions and fewer than a step asks of an engine,
    or else "".

    `room` is how many completions of `model.max_length` tokens, with their prompts, the cache of one of `num_engines`
    holds by vLLM's own count (`kv_cache_max_concurrency`), and `key` sets the cache's size.
    """
    asked = ceil(settings.step_completions / num_engines)
    if room is None or room >= min(FEW, asked, settings.rollout.max_concurrent):
        return ""
    where = "start the servers with a higher" if uses_running_servers(settings.rollout) else "raise"
    return (
        f"vLLM's KV cache has room for {room:.1f} completions of model.max_length={settings.model.max_length} tokens "
        f"at a time, and others wait, which is slow: {where} {key}"
    )
