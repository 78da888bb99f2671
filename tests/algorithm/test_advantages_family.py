"""These tests compare MaxRL, pass@k, REINFORCE++ and GDPO with formulas in float64 and with numbers of other
frameworks."""

import math
from dataclasses import replace
from itertools import combinations
from statistics import fmean, pstdev

import pytest
import torch

from grpo.algorithm.batches import BatchMaker
from grpo.algorithm.normalization import Moments, advantages
from grpo.audit import reference
from grpo.config import NormalizationConfig, TrainConfig
from grpo.types import Completion, Grade, GroupWithLogprobs, Problem, Prompt, RolloutGroup, RoundPlan, ScoredGroup
from tests.fakes import SingleRank, on_ranks


def one(rewards, step=None, **settings):
    values = torch.tensor(rewards, dtype=torch.float64)
    return advantages([values], NormalizationConfig(**settings), step or Moments(math.nan, math.nan))[0].tolist()


def test_maxrl_divides_by_the_mean():
    # prime-rl 559b44772 orchestrator/algo/max_rl.py: (r − mean)/mean; the winner of eight gets (1 − 1/8)·8 = 7.
    assert one([1, 0, 0, 0, 0, 0, 0, 0], exponent=0, mean_exponent=1) == pytest.approx([7.0, *[-1.0] * 7])
    assert one([1, 0.5, 0, 0.5], exponent=0, mean_exponent=1) == pytest.approx([1.0, 0.0, -1.0, 0.0])
    assert one([0, 0, 0], exponent=0, mean_exponent=1) == one([1, 1, 1], exponent=0, mean_exponent=1) == [0.0] * 3


@pytest.mark.parametrize("exponents", [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (0.5, 0.75), (1.0, -0.5), (2.0, 1.0)])
@pytest.mark.parametrize("correct", [1, 3, 7])
def test_the_group_gradient_is_sigma_and_the_mean_to_their_powers(exponents, correct):
    alpha, beta = exponents
    rewards = [1.0] * correct + [0.0] * (8 - correct)
    scores = torch.randn(8, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(correct))
    values = torch.tensor(one(rewards, exponent=alpha, mean_exponent=beta), dtype=torch.float64)
    p = correct / 8
    expected = (p * (1 - p)) ** (1 - alpha / 2) * p**-beta * (scores[:correct].mean(0) - scores[correct:].mean(0))
    torch.testing.assert_close((values[:, None] * scores).mean(0), expected)


def test_a_group_whose_mean_is_not_above_zero_has_no_advantage():
    assert one([-1.0, 1.0], mean_exponent=1.0) == [0.0, 0.0]
    assert one([-1.0, 1.0], mean_exponent=0.0) == [-1.0, 1.0]


@pytest.mark.parametrize("rewards", [[1, 0, 0, 0, 0], [1, 0, 1, 0, 0, 0, 1], [0.3, -1.0, 2.0, 0.3, 0.0, 1.5]])
@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("exponent", [0.0, 1.0, 0.5])
def test_pass_at_k_is_the_mean_over_all_subsets(rewards, k, exponent):
    settings = {"name": "pass_at_k", "k": k, "exponent": exponent}
    subsets = [*combinations(range(len(rewards)), k)]
    best = [max(rewards[i] for i in subset) for subset in subsets]
    pairs = [*zip(best, subsets, strict=True)]
    with_it = [fmean(value for value, subset in pairs if i in subset) for i in range(len(rewards))]
    enumerated = [(value - fmean(best)) / pstdev(best) ** exponent for value in with_it]
    advantages, audited = one(rewards, **settings), reference.pass_at_k(rewards, (), NormalizationConfig(**settings))
    assert advantages == pytest.approx(enumerated, rel=1e-12) and audited == pytest.approx(enumerated, rel=1e-12)
    assert sum(advantages) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(("right", "wrong", "k"), [(1, 7, 4), (3, 5, 2), (2, 14, 8), (5, 123, 16), (100, 412, 64)])
def test_pass_at_k_equals_the_papers_closed_form(right, wrong, k):
    # arXiv:2508.10751, section 3: the advantages of positive and negative responses
    size = right + wrong
    mean = 1 - math.comb(wrong, k) / math.comb(size, k)
    std = (mean * (1 - mean)) ** 0.5
    expected = [(1 - mean) / std] * right
    expected += [(1 - mean - math.comb(wrong - 1, k - 1) / math.comb(size - 1, k - 1)) / std] * wrong
    rewards, settings = [1.0] * right + [0.0] * wrong, {"name": "pass_at_k", "k": k}
    assert one(rewards, **settings) == pytest.approx(expected, rel=1e-12)
    assert reference.pass_at_k(rewards, (), NormalizationConfig(**settings)) == pytest.approx(expected, rel=1e-12)


def test_pass_at_one_is_grpo_and_a_sure_best_is_silent():
    rewards = [1.0, 0.0, 0.5, 0.0]
    assert one(rewards, name="pass_at_k", k=1) == pytest.approx(one(rewards), rel=1e-12)
    # Every pair of these holds a right one: its best is 1, whichever it is.
    assert one([0.3, 0.1 + 0.2, 0.3, 0.0], name="pass_at_k", k=2) == [0.0] * 4
    assert one([1.0, 0.0], name="pass_at_k", k=3) == [0.0, 0.0]


def test_reinforce_plus_plus_compares_with_the_step():
    assert one([1.0, 1.0], Moments(0.25, 0.5), name="reinforce_plus_plus") == [1.5, 1.5]
    assert one([1.0, 0.0], Moments(0.25, 0.5), name="reinforce_plus_plus", exponent=0) == [0.75, -0.25]
    assert one([1.0, 1.0], Moments(1.0, 0.0), name="reinforce_plus_plus") == [0.0, 0.0]
    assert one([0.3, 0.1 + 0.2], Moments(0.3, 3e-17), name="reinforce_plus_plus") == [0.0, 0.0]


def graded(parts_of_completions):
    completions = tuple(Completion((3, 4), (-1.0, -1.0), "", False) for _ in parts_of_completions)
    group = RolloutGroup(Prompt(Problem("p", "q", "a"), (1,)), completions, 0, 0)
    parts = [dict(zip("abc", values, strict=False)) for values in parts_of_completions]
    grades = tuple(Grade(sum(by_part.values()), False, by_part) for by_part in parts)
    return GroupWithLogprobs(ScoredGroup(group, grades, (True,) * len(grades)))


def advantages_of(groups, weights=None, ranks=1, **settings):
    """Returns the advantages of all completions in their order, computed by `ranks` ranks."""
    config = TrainConfig()
    config.learner.skip_silent_groups = False
    for name, value in settings.items():
        setattr(config.normalization, name, value)

    def on_one(collective):
        make = BatchMaker(config.normalization, config.objective, config.learner, collective, weights)
        mine = len(groups) // ranks
        [batch] = make([groups[collective.rank * mine :][:mine]], RoundPlan(2, 1, len(groups)))
        return sorted([v for micro in batch.micro_batches for v in micro.advantages[::2].tolist()])

    results = on_ranks(ranks, on_one)
    return sorted(value for values in results for value in values)


GROUPS = [graded([(1, 0), (0, 1), (0, 0.5)]), graded([(1, 1), (1, 0), (1, 0)])]


@pytest.mark.parametrize("ranks", [1, 2])
def test_gdpo_normalizes_each_part_by_itself_and_their_sum_by_the_step(ranks):
    # TRL 1.16 multi_objective_aggregation=normalize_then_sum, with its sample σ and without its ε of 1e-4.
    columns = torch.tensor([[[1, 0], [0, 1], [0, 0.5]], [[1, 1], [1, 0], [1, 0]]], dtype=torch.float64)
    std = columns.std(dim=1, keepdim=True)
    normalized = torch.where(std > 0, (columns - columns.mean(1, keepdim=True)) / std, 0.0)
    total = (normalized * torch.tensor([1.0, 0.25])).sum(-1).flatten()
    expected = sorted((total / total.std()).tolist())
    advantages = advantages_of(GROUPS, {"a": 1.0, "b": 0.25}, ranks, parts="each", ddof=1)
    assert advantages == pytest.approx(expected, rel=1e-6)


def test_gdpo_is_refused_without_the_weights_of_the_parts():
    with pytest.raises(ValueError, match="parts=each needs the weights of the reward's parts"):
        BatchMaker(NormalizationConfig(parts="each"), TrainConfig().objective, TrainConfig().learner, SingleRank())


def test_gdpo_learns_from_parts_that_cancel_in_the_sum():
    cancelling = [graded([(1, 0), (0, 1)]), graded([(1, 1), (0, 0)])]
    weights = {"a": 1.0, "b": 1.0}
    assert advantages_of(cancelling, weights) == pytest.approx([-1.0, 0.0, 0.0, 1.0])
    assert advantages_of(cancelling, {"a": 2.0, "b": 1.0}, parts="each") != [0.0] * 4


def test_gdpo_learns_nothing_where_the_normalized_parts_cancel_up_to_rounding():
    opposite = [graded([(1, 0), (0, 1), (0, 1)]), graded([(1, 0), (1, 0), (0, 1)])]
    assert advantages_of(opposite, {"a": 1.0, "b": 1.0}, parts="each") == [0.0] * 6


@pytest.mark.parametrize("ranks", [1, 2])
def test_reinforce_plus_plus_learns_from_silent_groups_on_any_number_of_ranks(ranks):
    groups = [graded([(1,), (1,), (1,)]), graded([(0,), (0,), (1,)])]
    # verl 0.9.1 compute_reinforce_plus_plus_outcome_advantage whitens by tokens, which are equally many here: mean 2/3,
    # and its σ is that of a sample. Ours is that of the population, √2/3.
    std = 2**0.5 / 3
    expected = sorted([*[1 / 3 / std] * 4, *[-2 / 3 / std] * 2])
    assert advantages_of(groups, ranks=ranks, name="reinforce_plus_plus") == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    "settings", [{"name": "reinforce_plus_plus"}, {"scope": "batch"}, {"parts": "each"}], ids=lambda s: str(*s.values())
)
def test_a_group_that_could_not_be_graded_changes_no_advantage_of_the_others(settings):
    zeros = graded([(0, 0), (0, 0), (0, 0)])
    unanswered = tuple(replace(grade, outcome="unanswered") for grade in zeros.scored.grades)
    spoilt = replace(zeros, scored=replace(zeros.scored, grades=unanswered, included=(False,) * 3))
    weights = {"a": 1.0, "b": 0.25}
    assert advantages_of([*GROUPS, spoilt], weights, **settings) == advantages_of(GROUPS, weights, **settings)
    assert advantages_of([*GROUPS, zeros], weights, **settings)[:6] != advantages_of(GROUPS, weights, **settings)
