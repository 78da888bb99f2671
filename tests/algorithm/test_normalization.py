"""These tests compare the dial with other frameworks' printed numbers, closed forms and exact enumeration
(arXiv:2607.00152)."""

import math

import pytest
import torch

from grpo.algorithm.normalization import Moments, advantages
from grpo.config import NormalizationConfig

WINNER = torch.tensor([1.0, 0, 0, 0, 0, 0, 0, 0], dtype=torch.float64)
TWO_GROUPS = [torch.tensor([1.0, 0, 0, 1.0]).double(), torch.tensor([0.5, 0.25, 1.0, 0.0], dtype=torch.float64)]


# Where the group alone decides.
NO_STEP = Moments(math.nan, math.nan)


def one(rewards, **settings):
    return advantages([rewards], NormalizationConfig(**settings), NO_STEP)[0]


@pytest.mark.parametrize(
    ("settings", "winner", "others", "source"),
    [
        (
            {"ddof": 1, "epsilon": 1e-6},
            2.474866734172715,
            -0.35355239059610216,
            "verl 0.9.1 compute_grpo_outcome_advantage",
        ),
        ({"ddof": 1, "epsilon": 1e-4}, 2.4741739320868312, -0.3534534188695473, "TRL 1.16.0 scale_rewards=group"),
        ({"ddof": 1, "epsilon": 1e-9}, 2.474873727152916, -0.3535533895932737, "OpenRLHF 0.11.2 group_norm"),
        ({"exponent": 0}, 0.875, -0.125, "verl 0.9.1 norm_adv_by_std=False, TRL 1.16.0 none, OpenRLHF 0.11.2 dr_grpo"),
        ({"exponent": 0, "leave_one_out": True}, 1.0, -0.14285714285714285, "verl 0.9.1 rloo, OpenRLHF 0.11.2 rloo"),
        ({}, math.sqrt(7), -1 / math.sqrt(7), "open-instruct: population σ"),
        ({"exponent": 2}, 8.0, -8 / 7, "closed form: 0.875 / (7/64)"),
    ],
)
def test_advantages_equal_those_of_peers(settings, winner, others, source):
    expected = torch.tensor([winner] + [others] * 7, dtype=torch.float64)
    # verl and OpenRLHF add ε in float64 on float32 tensors in part; 1e-6 relative covers their rounding.
    torch.testing.assert_close(one(WINNER, **settings), expected, rtol=1e-6, atol=0)


def test_two_groups_equal_trl_with_group_and_batch_scope():
    group = advantages(TWO_GROUPS, NormalizationConfig(ddof=1, epsilon=1e-4), NO_STEP)
    # TRL 1.16.0, scale_rewards="group"
    torch.testing.assert_close(group[0][0].item(), 0.8658754297607016, rtol=1e-9, atol=0)
    expected = [0.14635073325637735, -0.43905219976913207, 1.3171565993073961, -1.0244551327946414]
    torch.testing.assert_close(group[1], torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=0)
    # TRL 1.16.0, scale_rewards="batch": the group's mean, the batch's σ
    step = Moments(0.0, torch.cat(TWO_GROUPS).std().item())
    batch = advantages(TWO_GROUPS, NormalizationConfig(ddof=1, epsilon=1e-4, scope="batch"), step)
    torch.testing.assert_close(batch[0][0].item(), 1.0607311609572743, rtol=1e-9, atol=0)
    expected = [0.13259139511965928, -0.3977741853589778, 1.1933225560769334, -0.9281397658376149]
    torch.testing.assert_close(batch[1], torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=0)


@pytest.mark.parametrize("exponent", [-1.0, 0.0, 0.5, 1.0, 2.0, 3.0])
@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1])
def test_silent_groups_and_groups_of_one_have_no_advantage(exponent, reward):
    for size in (1, 2, 7):
        assert one(torch.full((size,), reward).double(), exponent=exponent).tolist() == [0.0] * size


@pytest.mark.parametrize(("exponent", "power"), [(0.0, 2), (0.5, 1.5), (1.0, 1), (2.0, 0)])
@pytest.mark.parametrize("correct", [1, 3, 7])
def test_group_gradient_is_sigma_to_the_two_minus_alpha_times_the_score_difference(exponent, power, correct):
    group_size = 8
    rewards = torch.tensor([1.0] * correct + [0.0] * (group_size - correct), dtype=torch.float64)
    scores = torch.randn(group_size, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(correct))
    gradient = (one(rewards, exponent=exponent)[:, None] * scores).mean(0)
    difference = scores[:correct].mean(0) - scores[correct:].mean(0)
    sigma = math.sqrt(correct * (group_size - correct)) / group_size
    torch.testing.assert_close(gradient, sigma**power * difference)


def group_gain(correct, group_size):
    """Returns (1/G) Σ Â_i r_i. This is the group gradient when every score is its reward, so that s̄₊ − s̄₋ = 1."""
    rewards = torch.tensor([1.0] * correct + [0.0] * (group_size - correct), dtype=torch.float64)
    return float((one(rewards) * rewards).sum()) / group_size


def fidelity(group_size, p):
    """Returns E[g]/√pq over the outcomes of G draws with pass rate p. Each outcome is passed through the code."""
    drift = sum(
        math.comb(group_size, k) * p**k * (1 - p) ** (group_size - k) * group_gain(k, group_size)
        for k in range(group_size + 1)
    )
    return drift / math.sqrt(p * (1 - p))


def test_fidelity_equals_the_printed_values():
    assert fidelity(8, 0.5) == pytest.approx(0.9278, abs=5e-5)
    assert fidelity(8, 0.05) == pytest.approx(0.5390, abs=5e-5)


@pytest.mark.parametrize(
    ("p", "smallest"),
    [(0.5, (7, 11, 51)), (0.3, (9, 14, 61)), (0.1, (22, 36, 144)), (0.05, (42, 69, 273))],
)
def test_smallest_groups_for_a_fidelity_equal_the_printed_table(p, smallest):
    for wanted, group_size in zip((0.90, 0.95, 0.99), smallest, strict=True):
        assert fidelity(group_size, p) >= wanted > fidelity(group_size - 1, p)


def test_signed_rewards_double_dr_grpo_and_leave_grpo():
    signed = 2 * WINNER - 1
    torch.testing.assert_close(one(signed, exponent=0), 2 * one(WINNER, exponent=0))
    torch.testing.assert_close(one(signed, exponent=1), one(WINNER, exponent=1))


def test_groups_below_the_smallest_std_are_silenced_and_epsilon_enters_where_configured():
    rewards = torch.tensor([0.0, 0.1], dtype=torch.float64)  # σ = 0.05
    assert one(rewards, min_std=0.0501).tolist() == [0.0, 0.0]
    assert one(rewards, min_std=0.0499)[1].item() == pytest.approx(1.0)
    assert one(rewards, epsilon=0.05)[1].item() == pytest.approx(0.05 / 0.1)
    assert one(rewards, epsilon=0.0075, epsilon_in="variance")[1].item() == pytest.approx(0.05 / 0.1)


# Of weights .3, .1 and .2: one part right, or the two others, which add up to the same on paper.
ROUNDED = torch.tensor([0.3, 0.1 + 0.2, 0.3, 0.1 + 0.2], dtype=torch.float64)


@pytest.mark.parametrize("exponent", [-1.0, 0.0, 0.5, 1.0, 2.0, 3.0])
@pytest.mark.parametrize("scope", ["group", "batch"])
@pytest.mark.parametrize("rewards", [ROUNDED, ROUNDED * 1e12, ROUNDED * 1e-12, ROUNDED + 1e6, 2 * ROUNDED - 1])
def test_rewards_that_are_equal_but_for_rounding_have_no_advantage(rewards, scope, exponent):
    settings = NormalizationConfig(exponent=exponent, scope=scope)
    [values] = advantages([rewards], settings, Moments(0.0, 0.4))
    assert values.tolist() == [0.0] * 4


@pytest.mark.parametrize("rewards", [[1e-12, 2e-12], [0.3, 0.3 * (1 + 1e-13)], [1e6, 1e6 + 1e-7], [1e12, 1e12 + 1]])
def test_rewards_that_differ_by_little_still_differ(rewards):
    low, high = one(torch.tensor(rewards, dtype=torch.float64)).tolist()
    assert (low, high) == pytest.approx((-1.0, 1.0), rel=1e-2)
