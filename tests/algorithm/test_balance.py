"""These tests hold that trees move between ranks by cost: each branch is computed once, and no rank waits long."""

import random

import pytest

from grpo.algorithm.balance import Piece, assign, balanced, send_back
from grpo.algorithm.batches import BatchMaker
from grpo.algorithm.packing import Branch, LooseTree
from grpo.config import TrainConfig
from grpo.learner.flops import FlopCount
from grpo.types import Completion, RoundPlan
from tests.fakes import on_ranks
from tests.learner.groups import uneven_groups

# Qwen2.5-7B: operations of a token, of a target, of a pair.
COST = FlopCount(39.2e9, 3.3e9, 1.2e6).of_run


def drawn(ranks, prompts, silent, seed, group_size=16, longest=1536):
    """Draws (prompt length, completion lengths) of each rank's trees. Completion lengths are log-normal and longer for
    harder problems. The share `silent` of the prompts is left out."""
    generator = random.Random(seed)
    trees = []
    for _ in range(ranks):
        own = []
        for _ in range(prompts // ranks):
            prompt, hardness = generator.randint(60, 400), generator.gauss(0, 0.4)
            lengths = [min(longest, int(generator.lognormvariate(6.2 + hardness, 0.7))) for _ in range(group_size)]
            if generator.random() >= silent:
                own.append((prompt, lengths))
        trees.append(own)
    return trees


def slowest_over_mean(loads):
    return max(loads) * len(loads) / sum(loads)


@pytest.mark.parametrize(("ranks", "prompts"), [(8, 256), (8, 128), (32, 256), (32, 512)])
@pytest.mark.parametrize("silent", [0.0, 0.5, 0.7])
def test_the_slowest_of_many_ranks_is_within_a_twentieth_of_the_mean(ranks, prompts, silent):
    before, after = [], []
    for seed in range(5):
        lengths = drawn(ranks, prompts, silent, seed)
        costs = [[(COST(0, p), tuple(COST(p, tokens) for tokens in own)) for p, own in rank] for rank in lengths]
        loads = [sum(prompt + sum(branches) for prompt, branches in rank) for rank in costs]
        shares = assign(costs)
        evened = [
            sum(
                costs[piece.home][piece.tree][0]
                + sum(costs[piece.home][piece.tree][1][number] for number in piece.branches)
                for piece in share
            )
            for share in shares
        ]
        before.append(slowest_over_mean(loads))
        # Against the work that there was, so that prompts which are computed twice count as waste.
        after.append(max(evened) * ranks / sum(loads))
        branches = [(p.home, p.tree, number) for share in shares for p in share for number in p.branches]
        assert len(branches) == len(set(branches)) == sum(len(own) for rank in lengths for _, own in rank)
    assert max(after) <= 1.05
    if silent:
        assert sum(before) / len(before) > 1.25


def test_nothing_moves_where_ranks_are_even_and_all_silent_ranks_have_nothing():
    even = [[(1.0, (4.0, 4.0))], [(1.0, (5.0, 3.0))]]
    assert assign(even) == [[Piece(0, 0, (0, 1))], [Piece(1, 0, (0, 1))]]
    assert assign([[], []]) == [[], []]
    # A branch is never cut, and one that no rank can take does not keep the others from evening out.
    assert assign([[(1.0, (100.0,))], []]) == [[Piece(0, 0, (0,))], []]
    shares = assign([[(1.0, (100.0,))], [(1.0, (4.0, 4.0, 4.0, 4.0))], []])
    assert shares == [[Piece(0, 0, (0,))], [Piece(1, 0, (1, 2, 3))], [Piece(1, 0, (0,))]]


def branch(*tokens):
    return Branch(Completion(tokens, tuple(-0.1 * token for token in tokens), "", False), 1.0, 0.5)


def test_moved_groups_arrive_whole_with_all_that_their_loss_needs():
    trees = [LooseTree((1, 2, 3), tuple(branch(*([number] * 6)) for number in range(4, 12)))]

    def action(collective):
        own = trees if collective.rank == 0 else []
        return balanced(own, collective, lambda before, tokens: tokens).trees

    first, second = on_ranks(2, action)
    assert [tree.prompt for tree in first + second] == [(1, 2, 3), (1, 2, 3)]
    branches = [arrived for tree in first + second for arrived in tree.branches]
    assert sorted(branches, key=lambda arrived: arrived.completion.token_ids) == list(trees[0].branches)
    assert abs(len(first[0].branches) - len(second[0].branches)) <= 2


def test_results_computed_elsewhere_come_home_in_their_places():
    drawn = random.Random(0)
    trees = [
        [
            LooseTree((rank, tree), tuple(branch(*([token] * drawn.randint(1, 90))) for token in range(6)))
            for tree in (0, 1)
        ]
        for rank in (0, 1, 2)
    ]

    def action(collective):
        own = trees[collective.rank]
        share = balanced(own, collective, lambda before, tokens: before + tokens)
        values = [
            tuple((tree.prompt, own_branch.completion.token_ids) for own_branch in tree.branches)
            for tree in share.trees
        ]
        return share, send_back(own, share, values, collective)

    results = on_ranks(3, action)
    for own, (_, values) in zip(trees, results, strict=True):
        assert values == [
            tuple((tree.prompt, own_branch.completion.token_ids) for own_branch in tree.branches) for tree in own
        ]
    work = [sum(2 + 2 * len(tree.branches) + sum(tree.lengths) for tree in share.trees) for share, _ in results]
    assert [piece.home for share, _ in results for piece in share.pieces] != sorted([0, 1, 2] * 2)
    assert [share.imbalance for share, _ in results] == [pytest.approx(slowest_over_mean(work))] * 3


def test_a_rank_whose_groups_are_silent_computes_those_of_others():
    config = TrainConfig()
    config.learner.micro_batch_tokens = 10_000

    def action(collective):
        groups = uneven_groups() if collective.rank == 0 else []
        make = BatchMaker(config.normalization, config.objective, config.learner, collective)
        [batch] = make([groups], RoundPlan(4, 1, 4))
        return sum(len(micro.token_ids) for micro in batch.micro_batches), sum(
            len(micro.targets) for micro in batch.micro_batches
        )

    alone, alone_targets = on_ranks(1, action)[0]
    shared = on_ranks(3, action)
    assert sum(targets for _, targets in shared) == alone_targets
    assert max(tokens for tokens, _ in shared) < 0.5 * alone
