import pytest
import torch

from grpo.algorithm.batches import BatchMaker
from grpo.algorithm.packing import ONE_A_ROW, Branch, LooseTree, attention_mask, pack, pad, rows_of, trees_of
from grpo.config import TrainConfig
from grpo.types import Completion, Grade, GroupWithLogprobs, Problem, Prompt, RolloutGroup, RoundPlan, ScoredGroup, Tree
from tests.fakes import SingleRank, on_ranks


def branch(*tokens):
    return Branch(Completion(tokens, tuple(-0.1 * token for token in tokens), "", False), 0.0, 1.0)


def test_a_shared_prompt_is_laid_out_once_and_positions_restart_after_it():
    micro = pack([LooseTree((10, 11, 12), (branch(1, 2, 3), branch(4), branch(5, 6)))])
    # A completion's last token predicts nothing, so it is a target and no input.
    assert micro.token_ids.tolist() == [10, 11, 12, 1, 2, 5]
    assert micro.position_ids.tolist() == [0, 1, 2, 3, 4, 3]
    assert micro.targets.tolist() == [1, 2, 3, 4, 5, 6]
    # First tokens are predicted by the prompt's last position, later ones by the token before.
    assert micro.predictors.tolist() == [2, 3, 4, 2, 2, 5]
    assert micro.sequence_index.tolist() == [0, 0, 0, 1, 2, 2]
    assert micro.trees == (Tree(0, 3, (2, 0, 1)),)


def test_a_completion_sees_the_prompt_and_itself_and_never_its_siblings():
    mask = attention_mask(Tree(0, 2, (2, 1)))
    assert mask.int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0],
        [1, 1, 0, 0, 1],
    ]


EXAMPLES = tuple(range(20, 30))


def test_a_row_holds_the_common_beginning_of_its_prompts_once():
    trees = [LooseTree((*EXAMPLES, 1, 2), (branch(3, 4), branch(5))), LooseTree((*EXAMPLES, 6), (branch(7, 8),))]
    micro = pack(trees)
    assert micro.token_ids.tolist() == [*EXAMPLES, 1, 2, 3, 6, 7]
    assert micro.position_ids.tolist() == [*range(10), 10, 11, 12, 10, 11]
    assert micro.predictors.tolist() == [11, 12, 11, 13, 14]
    assert micro.trees == (Tree(0, 10, ()), Tree(10, 12, (1, 0), 10), Tree(13, 11, (1,), 10))
    assert micro.trees[-1].end == len(micro.token_ids)


def test_prompts_that_are_the_same_keep_their_last_token_which_predicts_the_first_of_a_completion():
    micro = pack([LooseTree(EXAMPLES, (branch(1),)), LooseTree(EXAMPLES, (branch(2),))])
    assert micro.token_ids.tolist() == [*EXAMPLES[:-1], 29, 29]
    assert micro.predictors.tolist() == [9, 10]


@pytest.mark.parametrize("prompts", [((1, 2, 3), (1, 2, 4)), (EXAMPLES,), (EXAMPLES, (9, *EXAMPLES))])
def test_little_or_nothing_in_common_is_not_shared(prompts):
    micro = pack([LooseTree(prompt, (branch(1),)) for prompt in prompts])
    assert len(micro.token_ids) == sum(map(len, prompts)) and {tree.shared for tree in micro.trees} == {0}


@pytest.mark.parametrize("layout", ["packed", "padded", ONE_A_ROW])
def test_only_the_shared_layout_shares_what_prompts_begin_with(layout):
    assert len(pack([LooseTree(EXAMPLES, (branch(1),))] * 2, layout).trees) == 2


def test_a_tree_sees_the_beginning_of_the_row_before_its_own_tokens():
    mask = attention_mask(Tree(8, 3, (1, 1), shared=2))
    assert mask.int().tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 0, 1]]
    window = attention_mask(Tree(8, 3, (1, 1), shared=2), window=2)
    assert window.int().tolist() == [[0, 1, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 1, 0, 1]]


def test_padding_adds_positions_and_no_targets():
    padded = pad([LooseTree((10,), (branch(1, 2, 3),)), LooseTree((11,), (branch(4),))])
    micro = pack(padded)
    assert micro.token_ids.tolist() == [10, 1, 2, 11, 0, 0]
    assert micro.targets.tolist() == [1, 2, 3, 4]
    assert micro.predictors.tolist() == [0, 1, 2, 3]


def test_trees_split_at_the_budget_and_repeat_their_prompt():
    branches = [((10, 11), branch(1, 2, 3)), ((10, 11), branch(4, 5, 6)), ((10, 11), branch(7, 8, 9))]
    trees = trees_of(branches, "shared", row_tokens=6)
    assert [len(tree.branches) for tree in trees] == [2, 1]
    assert [tree.length for tree in trees] == [6, 4]
    assert [len(tree.branches) for tree in trees_of(branches, "packed", row_tokens=6)] == [1, 1, 1]


def test_rows_are_filled_first_fit_decreasing_and_a_large_tree_stands_alone():
    trees = [LooseTree((0,) * length, (branch(1),)) for length in (3, 12, 5, 4, 2)]
    assert [[tree.length for tree in row] for row in rows_of(trees, 8)] == [[12], [5, 3], [4, 2]]


def test_rows_of_their_own_are_within_the_budget_once_they_are_as_long_as_the_longest_beside_them():
    trees = [LooseTree((0,) * length, (branch(1),)) for length in (12, 6, 2, 2, 1, 1, 1, 1, 1, 1)]
    filled = rows_of(trees, 8, ONE_A_ROW)
    assert [[tree.length for tree in row] for row in filled] == [[12], [6], [2, 2, 1, 1], [1, 1, 1, 1]]
    assert sum(map(len, filled)) == len(trees)


def test_a_rank_without_work_computes_one_token_that_nothing_learns_from():
    micro = pack([])
    assert micro.token_ids.tolist() == [0]
    assert micro.targets.numel() == micro.token_weights.numel() == 0


def group(rewards, lengths, included=None, sampler_logprob=-1.0):
    completions = tuple(Completion(tuple(range(3, 3 + n)), (sampler_logprob,) * n, "", False) for n in lengths)
    rollout = RolloutGroup(Prompt(Problem("p", "q", "a"), (1, 2)), completions, 0, 0)
    grades = tuple(Grade(reward, reward == 1, {}) for reward in rewards)
    return GroupWithLogprobs(ScoredGroup(rollout, grades, tuple(included or [True] * len(rewards))))


def make_batch(groups, collective=None, **changes):
    config = TrainConfig()
    for path, value in changes.items():
        room, name = path.split("__")
        setattr(getattr(config, room), name, value)
    make = BatchMaker(config.normalization, config.objective, config.learner, collective or SingleRank())
    [batch] = make([groups], RoundPlan(2, 1, len(groups)))
    return batch


def test_token_weights_add_up_to_one_over_kept_and_skipped_groups():
    batch = make_batch([group([1, 0], [4, 2]), group([1, 1], [3, 5])])
    [micro] = batch.micro_batches
    # 14 tokens in the step; the silent group's 8 are counted and not computed.
    assert micro.targets.numel() == 6
    torch.testing.assert_close(micro.token_weights, torch.full((6,), 1 / 14))
    assert micro.advantages.tolist() == [1.0] * 4 + [-1.0] * 2


def test_masked_completions_shape_the_baseline_and_are_not_learned_from():
    [micro] = make_batch([group([1, 0, 0], [4, 2, 3], [True, True, False])]).micro_batches
    assert micro.targets.numel() == 6
    torch.testing.assert_close(micro.token_weights, torch.full((6,), 1 / 6))
    torch.testing.assert_close(micro.advantages[0].item(), 2 / 3 / (2 / 9) ** 0.5)


def test_silent_groups_are_computed_when_an_entropy_term_needs_them():
    [micro] = make_batch([group([1, 1], [3, 5])], objective__entropy_coefficient=0.01).micro_batches
    assert micro.targets.numel() == 8


def kl_in_reward(steps, plan, exponent=0.0):
    config = TrainConfig()
    config.objective.kl.coefficient, config.objective.kl.place, config.objective.kl.estimator = 0.5, "reward", "k1"
    config.normalization.exponent = exponent
    return BatchMaker(config.normalization, config.objective, config.learner, SingleRank())(steps, plan)


def test_kl_in_the_reward_is_the_learners_and_subtracted_before_normalization():
    old = (torch.tensor([-1.0, -1.0]), torch.tensor([-1.0, -1.0]))
    references = (torch.tensor([-1.5, -1.0]), torch.tensor([-1.0, -2.0]))
    groups = [
        GroupWithLogprobs(group([1.0, 0.0], [2, 2], sampler_logprob=-3.0).scored, old, references) for _ in range(2)
    ]
    first, second = kl_in_reward([groups[:1], groups[1:]], RoundPlan(2, 2, 1))
    # k1 sums: (−1 + 1.5) + 0 = 0.5 and 0 + 1 = 1: rewards 0.75 and −0.5, mean 0.125
    for batch in (first, second):
        assert batch.micro_batches[0].advantages.tolist() == [0.625, 0.625, -0.625, -0.625]
    # In the first step after a refresh the current log-probabilities are the old ones, to the last bit.
    assert first.micro_batches[0].old_logprobs is None
    assert second.micro_batches[0].old_logprobs.tolist() == [-1.0] * 4


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0])
def test_a_kl_in_the_reward_leaves_silent_groups_silent(exponent):
    noise = (torch.tensor([-1.0, -1.0]), torch.tensor([-1.0, -1.0 + 1e-6]))
    silent = GroupWithLogprobs(group([0.3, 0.1 + 0.2], [2, 2]).scored, noise, (noise[0], noise[0]))
    [batch] = kl_in_reward([[silent]], RoundPlan(2, 1, 1), exponent)
    assert batch.micro_batches[0].targets.numel() == 0


def test_a_group_that_is_silent_but_for_rounding_is_counted_and_not_computed():
    [micro] = make_batch([group([1, 0], [4, 2]), group([0.3, 0.1 + 0.2], [3, 5])]).micro_batches
    assert micro.targets.numel() == 6
    torch.testing.assert_close(micro.token_weights, torch.full((6,), 1 / 14))


def test_a_second_pass_learns_from_the_same_samples_and_compares_with_the_policy_that_wrote_them():
    old = (torch.tensor([-1.0, -2.0]), torch.tensor([-3.0]))
    steps = [[GroupWithLogprobs(group(rewards, [2, 1]).scored, old)] for rewards in ([1, 0], [0, 1])]
    config = TrainConfig()
    make = BatchMaker(config.normalization, config.objective, config.learner, SingleRank())
    batches = make(steps, RoundPlan(2, 4, 1, passes=2))
    rows = [(micro.advantages[0].item(), micro.old_logprobs) for batch in batches for micro in batch.micro_batches]
    assert [advantage for advantage, _ in rows] == [1.0, -1.0, 1.0, -1.0]
    # Only in the round's first step is the current policy the old one.
    assert [None if known is None else known.tolist() for _, known in rows] == [None, *[[-1.0, -2.0, -3.0]] * 3]
    assert RoundPlan(2, 4, 8, passes=2).prompts_per_round == 16
    # Before the run's end there may be room for one step more.
    assert len(make(steps[:1], RoundPlan(2, 1, 1, passes=2))) == 1


@pytest.mark.parametrize("offset", [0.0, 1e6, 1e8])
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_std_of_a_batch_is_exact_whatever_all_rewards_have_in_common(offset, ranks):
    groups = [group([offset + 1, offset], [1, 1]), group([offset + 1, offset, offset, offset], [1, 1, 1, 1])]

    def advantages_of(collective):
        batch = make_batch(groups[collective.rank :: ranks], collective, normalization__scope="batch")
        return [value for micro in batch.micro_batches for value in micro.advantages.tolist()]

    advantages = [value for values in on_ranks(ranks, advantages_of) for value in values]
    # Two of six are right: σ = √2/3. The groups' means are 1/2 and 1/4.
    std = 2**0.5 / 3
    expected = [0.5 / std, -0.5 / std, 0.75 / std, *[-0.25 / std] * 3]
    assert advantages == pytest.approx(expected, rel=1e-6)
