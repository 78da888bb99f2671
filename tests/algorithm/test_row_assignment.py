"""These tests hold that all ranks have equally many rows of equal work. test_properties.py says more of any rows."""

import pytest

from grpo.algorithm.balance import assign, cut, even_rows, imbalance, lay_out
from grpo.algorithm.batches import BatchMaker
from grpo.algorithm.packing import Branch, LooseTree, rows_of, trees_of
from grpo.config import TrainConfig
from grpo.types import Completion, RoundPlan
from tests.algorithm.test_balance import COST, drawn
from tests.fakes import on_ranks
from tests.learner.groups import uneven_groups


def branch(length):
    return Branch(Completion((1,) * (length + 1), (0.0,) * (length + 1), "", False), 0.0, 0.0)


def work(row):
    return sum(
        COST(0, len(tree.prompt)) + sum(COST(len(tree.prompt), length) for length in tree.lengths) for tree in row
    )


def ranks_trees(ranks, prompts, silent, row_tokens):
    """Returns every rank's trees after trees have moved between ranks."""
    lengths = drawn(ranks, prompts, silent, seed=0)
    trees = [
        [
            tree
            for prompt, own in rank
            for tree in trees_of([((1,) * prompt, branch(length)) for length in own], "shared", row_tokens)
        ]
        for rank in lengths
    ]
    costs = [
        [(COST(0, len(tree.prompt)), tuple(COST(len(tree.prompt), length) for length in tree.lengths)) for tree in own]
        for own in trees
    ]
    return [[cut(trees[piece.home][piece.tree], piece) for piece in share] for share in assign(costs)]


@pytest.mark.parametrize(("ranks", "prompts"), [(8, 128), (32, 256)])
@pytest.mark.parametrize("silent", [0.0, 0.5])
def test_ranks_that_compute_rows_in_step_wait_for_a_twentieth_of_the_work_at_most(ranks, prompts, silent):
    row_tokens = 16_384
    trees = ranks_trees(ranks, prompts, silent, row_tokens)

    def action(collective):
        return lay_out(trees[collective.rank], collective, "shared", row_tokens, COST)[0]

    rows = on_ranks(ranks, action)
    before = [rows_of(own, row_tokens) for own in trees]
    most = max(map(len, before))
    before = [[*map(work, own)] + [0.0] * (most - len(own)) for own in before]
    after = [[*map(work, own)] for own in rows]
    assert imbalance(before, in_step=True).value > 1.15
    assert imbalance(after, in_step=True).value <= 1.05
    # Prompts that are computed in two rows are waste.
    assert sum(map(sum, after)) < 1.015 * sum(map(sum, before))


def test_too_few_rows_are_refused_and_what_is_longer_than_a_row_has_one_alone():
    trees = [LooseTree((1,) * 10, (branch(50), branch(60))), LooseTree((1,) * 5, (branch(300),))]
    assert even_rows(trees, 1, 100, lambda before, tokens: tokens) is None
    long, *others = even_rows(trees, 3, 100, lambda before, tokens: tokens)
    assert [tree.lengths for tree in long] == [(300,)]
    assert sorted(length for row in others for tree in row for length in tree.lengths) == [50, 60]


def test_a_row_that_no_cut_makes_fit_leaves_rows_as_they_were():
    trees = [LooseTree((1,) * 90, (branch(50),)), LooseTree((1,) * 90, (branch(50),))]

    def action(collective):
        rows, own = lay_out(trees, collective, "shared", 100, lambda before, tokens: tokens)
        return [[tree.length for tree in row] for row in rows], [
            tree is kept for tree, kept in zip(own, trees, strict=True)
        ]

    assert on_ranks(2, action) == [([[140], [140]], [True, True])] * 2


@pytest.mark.parametrize("layout", ["shared", "packed", "padded"])
def test_every_layout_has_equally_many_rows_on_every_rank(layout):
    config = TrainConfig()
    config.learner.layout, config.learner.micro_batch_tokens = layout, 60

    def action(collective):
        make = BatchMaker(config.normalization, config.objective, config.learner, collective)
        [batch] = make([uneven_groups()[collective.rank :: 3]], RoundPlan(4, 1, 4))
        return [len(micro.targets) for micro in batch.micro_batches]

    targets = on_ranks(3, action)
    assert len({len(rows) for rows in targets}) == 1
    alone = on_ranks(1, action)[0]
    assert on_ranks(3, action) == targets and sum(map(sum, targets)) >= sum(alone)
