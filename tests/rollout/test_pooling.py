"""Ranks that share an engine ask it for the same prompts, and each has its own back."""

import pytest

from grpo.rollout.vllm_sampler import pooled
from tests.fakes import on_ranks

# Ranks do not have equally many prompts.
ITEMS = [["a", "b"], [], ["c"], ["d", "e", "f"]]


def test_the_ranks_of_an_engine_have_the_same_list_in_the_same_order_and_know_their_place():
    answers = on_ranks(4, lambda ranks: pooled(ranks, 2, ITEMS[ranks.rank]))
    # Ranks take turns. Otherwise the last one's groups would all come last, and an evaluation's deadline might end it.
    assert [items for items, _ in answers] == [["a", "b"], ["a", "b"], [*"cdef"], [*"cdef"]]
    assert [[items[place] for place in own] for items, own in answers] == ITEMS
    both = on_ranks(2, lambda ranks: pooled(ranks, 2, [["a", "b", "c"], ["d", "e"]][ranks.rank]))
    assert both == [([*"adbec"], [0, 2, 4]), ([*"adbec"], [1, 3])]


@pytest.mark.parametrize(("together", "expected"), [(4, ITEMS), (1, ITEMS)])
def test_one_engine_may_have_all_ranks_or_one(together, expected):
    answers = on_ranks(4, lambda ranks: pooled(ranks, together, ITEMS[ranks.rank]))
    assert [[items[place] for place in own] for items, own in answers] == expected


def test_a_rank_with_an_engine_of_its_own_asks_nobody():
    assert pooled(None, 1, ["a"]) == (["a"], [0])
