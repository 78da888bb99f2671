"""These tests compare selections among all tokens of a step with verl and TRL, for several partitions of the step."""

import random
from dataclasses import replace

import pytest
import torch

from grpo.algorithm.loss import policy_loss, tokens_of
from grpo.algorithm.token_losses import Tokens
from grpo.algorithm.token_selection import apply_selection, largest, select
from grpo.config import ObjectiveConfig, TokenSelectionConfig
from tests.fakes import on_ranks

from . import test_family
from .peer_inputs import ADVANTAGES, NEW, OLD, SEQUENCE_INDEX, flat
from .test_loss import micro_batch, objective


def settings(choice, share=0.2, **other):
    return objective(selection=TokenSelectionConfig(name=choice, share=share, low=0.1), **other)


def loss_and_gradient(chosen, entropies=None):
    logprobs = flat(NEW).requires_grad_()
    entropies = torch.zeros_like(logprobs).detach() if entropies is None else entropies
    micro = micro_batch()
    if chosen.selection.name != "none":
        [selected] = select([tokens_of(logprobs, entropies, micro, chosen)], list, chosen)
        micro = replace(micro, selected=selected)
    loss, _ = policy_loss(logprobs, entropies, micro, chosen)
    loss.backward()
    return loss.item(), logprobs.grad


def test_kl_cov_equals_that_of_verl():
    # verl 0.9.1 compute_policy_loss_kl_cov, kl_cov_ratio=0.2, ppo_kl_coef=1, token-mean: two of fourteen tokens
    loss, gradient = loss_and_gradient(settings("kl_cov", name="unclipped"))
    assert loss == pytest.approx(-0.48232340923337347, rel=1e-12)
    expected = [
        -0.11841116979381937, -0.07182000493238992, -0.17664870757501372, -0.10714285714285714, -0.10714285714285714,
        0.026457793595775637, 0.04820924312771439, 0.03571428571428571, -0.08524712557950116, -0.05714285714285714,
        -0.02837630307379483, -0.06979444332343829, -0.019440229167488568, 0.14131896606001096,
    ]  # fmt: skip
    torch.testing.assert_close(gradient, torch.tensor(expected, dtype=torch.float64), rtol=1e-10, atol=1e-14)


def test_kl_cov_leaves_alone_what_has_moved_by_rounding_only():
    """The policy has not moved, and its log-probabilities were computed in rows of another layout before."""
    chosen = settings("kl_cov", share=1.0, name="unclipped")
    now, losses = torch.tensor([-1.0, -2.0, -3.0], requires_grad=True), torch.zeros(3)
    moved = torch.tensor([1e-6, -1e-6, 0.5])
    tokens = Tokens(now, now.detach() - moved, now.exp(), losses, losses, torch.zeros(3).long())
    apply_selection(losses, tokens, torch.ones(3), chosen).sum().backward()
    assert now.grad.tolist() == [0.0, 0.0, 1.0]


def test_clip_cov_is_the_expectation_of_verls_draws():
    """The expectation is exact, over all pairs: verl zeroes 2 of the eligible tokens, each pair with equal
    probability."""
    chosen = settings("clip_cov")
    loss, gradient = loss_and_gradient(chosen)
    new, old = flat(NEW), flat(OLD)
    advantages = torch.tensor(ADVANTAGES, dtype=torch.float64)[SEQUENCE_INDEX]
    covariance = (advantages - advantages.mean()) * (new - new.mean())
    ratio = (new - old).exp()
    bounded = torch.maximum(-ratio * advantages, -ratio.clamp(0.8, 1.28) * advantages)
    plain = bounded > -ratio * advantages
    eligible = ((covariance > 0.1) & (covariance < 5) & ~plain).nonzero().flatten().tolist()
    assert len(eligible) > 2
    pairs = [(a, b) for a in eligible for b in eligible if a < b]
    expected = sum((bounded.sum() - bounded[a] - bounded[b]) / 14 for a, b in pairs) / len(pairs)
    assert loss == pytest.approx(expected.item(), rel=1e-12)
    # The mean of 4,000 draws of verl 0.9.1 compute_policy_loss_clip_cov, clip_cov_ratio=0.2, bounds 0.1 and 5.
    assert loss == pytest.approx(-0.33669, abs=4 * 0.00116)
    drawn = [
        -0.11841116979382699, -0.07182000493238798, 0.0, -0.05290178571428691, -0.05466964285714412, 0.0,
        0.023935889212910576, 0.035714285714287294, 0.0, -0.028542857142858605, -0.028376303073795666,
        -0.06979444332343818, 0.0, 0.14131896606000147,
    ]  # fmt: skip
    torch.testing.assert_close(gradient, torch.tensor(drawn, dtype=torch.float64), rtol=0, atol=4e-3)


def test_top_entropy_is_that_of_trl():
    # TRL 1.16 get_high_entropy_mask(threshold=0.8) on ten tokens: those with entropies 0.9 and 1.0.
    entropies = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
    assert largest(entropies, int(0.2 * 10), list).nonzero().flatten().tolist() == [8, 9]
    entropies = torch.arange(14).double()
    _, gradient = loss_and_gradient(settings("top_entropy", share=0.5), entropies)
    assert gradient[:7].tolist() == [0.0] * 7
    _, everything = loss_and_gradient(objective())
    torch.testing.assert_close(gradient[7:], everything[7:])


@pytest.mark.parametrize(("share", "chosen"), [(0.29, 29), (0.57, 57), (0.299, 29), (2e-4, 1), (1.0, 100)])
def test_a_share_is_taken_as_it_is_written_and_rounded_down_to_at_least_one_token(share, chosen):
    numbers = torch.arange(100.0)
    tokens = Tokens(numbers, numbers, numbers, numbers, numbers, numbers.long())
    [weights] = select([tokens], list, settings("top_entropy", share=share))
    assert weights.sum() == chosen and weights[-chosen:].sum() == chosen


@pytest.mark.parametrize("number", [1, 2, 7, 40])
@pytest.mark.parametrize("ranks", [1, 3])
def test_the_largest_are_those_of_all_ranks(number, ranks):
    generator = random.Random(number)
    values = [generator.choice([0.0, -0.0, generator.gauss(0, 1), generator.gauss(0, 1e-30), -1e30]) for _ in range(60)]

    def mine(collective):
        return largest(torch.tensor(values[collective.rank :: ranks]), number, collective.sum).tolist()

    together = [None] * 60
    for rank, kept in enumerate(on_ranks(ranks, mine)):
        together[rank::ranks] = kept
    values = torch.tensor(values).tolist()
    threshold = sorted(values)[-number]
    share = (number - sum(value > threshold for value in values)) / values.count(threshold)
    assert together == pytest.approx([1.0 * (value > threshold) or share * (value == threshold) for value in values])
    assert sum(together) == pytest.approx(number)


def test_tokens_that_differ_by_rounding_share_what_the_others_leave():
    """The first tokens of three completions of a prompt have one entropy, which each layout rounds differently."""
    entropies = torch.tensor([1.9, 2.4, 1.7, 1.7 - 1e-6, 1.7 + 1e-6, 1.69, 0.2])
    zeros = torch.zeros(7)
    tokens = Tokens(zeros, zeros, zeros + 1, zeros, entropies, zeros.long())
    chosen = [select([tokens], list, settings("top_entropy", share=number / 7.0 + 0.01))[0] for number in (3, 4, 5)]
    for choice, share in zip(chosen, (1 / 3, 2 / 3, 1), strict=True):
        assert choice.tolist() == pytest.approx([1, 1, share, share, share, 0, 0])


def test_a_rank_without_tokens_takes_part():
    kept = on_ranks(2, lambda rank: largest(torch.tensor([1.0, 3.0, 2.0][: 3 * rank.rank]), 2, rank.sum).tolist())
    assert kept == [[], [0.0, 1.0, 1.0]]


@pytest.mark.parametrize("name", ["clip_cov", "kl_cov", "top_entropy"])
def test_a_choice_is_the_same_for_every_cut_of_the_step(name):
    chosen = ObjectiveConfig(selection=TokenSelectionConfig(name=name, share=0.3, low=0.05))
    micro = test_family.drawn(4)
    entropies = torch.rand(len(micro.new), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    tokens = tokens_of(micro.new, entropies, micro, chosen)
    [whole] = select([tokens], list, chosen)

    def part(completions):
        kept = torch.isin(micro.sequence_index, torch.tensor(completions, dtype=torch.long))
        return type(tokens)(*(getattr(tokens, field)[kept] for field in tokens.__slots__))

    parts = [[part([0, 1]), part([])], [part([2]), part([3, 4])]]
    results = on_ranks(2, lambda rank: select(parts[rank.rank], rank.sum, chosen))
    joined = torch.cat([values for values in results for values in values])
    assert joined.tolist() == pytest.approx(whole.tolist(), abs=1e-12)
    assert 0 < whole.sum() < len(whole)
