"""These tests check what is reported of an engine's KV cache: how full it was, and how often it ran out of room."""

from types import SimpleNamespace

from grpo.rollout.engine_use import EngineUse, ServerUse, use_of_all


def scheduler(usage, queries=0, hits=0):
    return SimpleNamespace(kv_cache_usage=usage, prefix_cache_stats=SimpleNamespace(queries=queries, hits=hits))


def test_the_fullest_moment_and_all_interruptions_of_a_round_are_told_once():
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


def page(preempted, queries, hits):
    return (
        f'vllm:num_preemptions_total{{engine="0"}} {preempted}\n'
        f'vllm:prefix_cache_queries_total{{engine="0"}} {queries}\n'
        f'vllm:prefix_cache_hits_total{{engine="0"}} {hits}\n# HELP vllm:prefix_cache_hits_total Hits.\n'
    )


def test_counters_of_servers_become_the_use_since_the_last_look():
    use = ServerUse()
    assert use.since({"a": page(1.0, 100, 50), "b": page(0.0, 100, 50)})["rollout/preemptions"] == 1.0
    later = use.since({"a": page(3.0, 200, 150), "b": page(1.0, 100, 50)})
    assert later == {"rollout/preemptions": 3.0, "rollout/prefix_hit_fraction": 1.0}
    # A server that was started anew counts from 0, and one without an answer not at all.
    assert use.since({"a": page(2.0, 10, 5)}) == {"rollout/preemptions": 2.0, "rollout/prefix_hit_fraction": 0.5}
    assert use.since({}) == {}


def test_of_several_engines_the_fullest_counts_and_interruptions_add_up():
    uses = [{"rollout/cache_peak_fraction": 0.5, "rollout/preemptions": 1.0}, {"rollout/cache_peak_fraction": 0.9}]
    assert use_of_all(uses) == {"rollout/cache_peak_fraction": 0.9, "rollout/preemptions": 1.0}
