"""These tests check every loss of the family in value and gradient.

Each loss is compared with the specification (`grpo.audit.reference`), for one completion after another, and with
numbers from verl's own function. Ratios lie on both sides of the bounds, one completion has advantage 0, and one has a
single token.
"""

from types import SimpleNamespace

import pytest
import torch

from grpo.algorithm.loss import METRICS, policy_loss
from grpo.audit import reference
from grpo.config import CorrectionConfig, KlConfig

from .peer_inputs import NEW, flat
from .test_loss import micro_batch, objective

LENGTHS = (4, 1, 6, 3, 5)
ADVANTAGES = (1.2, -0.7, 0.0, 2.5, -1.6)


def drawn(seed):
    """Draws random log-probabilities and the rest of a micro-batch. A third of the ratios lie outside every bound used
    here."""
    generator = torch.Generator().manual_seed(seed)
    count = sum(LENGTHS)
    new, old, reference = (-3 * torch.rand(3, count, dtype=torch.float64, generator=generator)).unbind()
    index = torch.arange(len(LENGTHS)).repeat_interleave(torch.tensor(LENGTHS))
    lengths = torch.tensor(LENGTHS, dtype=torch.float64)
    return SimpleNamespace(
        new=new.requires_grad_(),
        old_logprobs=new.detach() + 0.4 * (old - new.detach()),
        reference_logprobs=reference,
        sampler_logprobs=new.detach() + 0.4 * (old - new.detach()),
        advantages=torch.tensor(ADVANTAGES, dtype=torch.float64)[index],
        token_weights=(1 / (lengths * len(LENGTHS)))[index],
        sequence_index=index,
        selected=None,
        targets=torch.zeros(count),
    )


def by_code(settings, micro):
    loss, _ = policy_loss(micro.new, torch.zeros_like(micro.new), micro, settings)
    return loss.item(), torch.autograd.grad(loss, micro.new)[0]


def by_formula(settings, micro, weigh=lambda length: 1.0):
    """Returns the mean over completions of their mean loss by the specification, and its gradient."""
    total = torch.zeros((), dtype=torch.float64)
    for number, advantage in enumerate(ADVANTAGES):
        mine = micro.sequence_index == number
        new, old = micro.new[mine], micro.old_logprobs[mine]
        stretch = reference.Stretch(new, torch.zeros_like(new), old, old, old, None, advantage, 1.0)
        losses = reference.surrogate(stretch, settings)
        total = total + losses.mean() * weigh(len(losses)) / len(ADVANTAGES)
    return total.item(), torch.autograd.grad(total, micro.new)[0]


MEMBERS = {
    "sapo": {"name": "sapo", "temperature_positive": 1.3, "temperature_negative": 2.0},
    "dppo": {"name": "dppo", "clip_low": 0.1, "clip_high": 0.05},
    "gmpo": {"name": "gmpo", "clip_low": 0.2, "clip_high": 0.3},
    "gspo": {"name": "clip", "ratio": "sequence", "clip_low": 0.1, "clip_high": 0.15},
    "gspo-token": {"name": "clip", "ratio": "sequence_token", "clip_low": 0.1, "clip_high": 0.15},
}


@pytest.mark.parametrize("member", MEMBERS)
@pytest.mark.parametrize("seed", range(5))
def test_value_and_gradient_are_those_of_the_formula(member, seed):
    settings, micro = objective(**MEMBERS[member]), drawn(seed)
    loss, gradient = by_code(settings, micro)
    expected, expected_gradient = by_formula(settings, micro)
    assert loss == pytest.approx(expected, rel=1e-12)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-10, atol=1e-14)
    assert gradient[micro.advantages == 0].abs().max() == 0


VERL = {
    "sapo, seq-mean-token-mean": (
        {"name": "sapo"}, "sequence_mean", -0.3421488759808339,
        [-0.08265903663870608, -0.04893231731964563, -0.11150539556897045, -0.07499999985, -0.07499999985,
         0.030302891498078178, 0.054388494041105136, 0.04166666652777777, -0.07025629851367589, -0.049999999875000006,
         -0.02332030250816277, -0.06032780786801833, 0.08720516970047247, 0.22070277362460672],
    ),
    # verl's loss is −A·sg(ρ)·log π: another value, and the same gradient.
    "dppo_tv, 0.05 and 0.03, token-mean": (
        {"name": "dppo", "clip_low": 0.05, "clip_high": 0.03}, "token_mean", None,
        [0.0, -0.07182000493238992, 0.0, -0.10714285714285714, -0.10714285714285714, 0.0, 0.04820924312771439,
         0.03571428571428571, 0.0, -0.05714285714285714, -0.02837630307379483, -0.06979444332343829, 0.0,
         0.14131896606001096],
    ),
    "geo_mean, 0.2 and 0.1": (
        {"name": "gmpo", "clip_low": 0.2, "clip_high": 0.1}, "sequence_mean", -0.05900825956281108,
        [-0.07205920765395214, -0.07205920765395214, 0.0, -0.07205920765395214, -0.07205920765395214, 0.0,
         0.04307896277108595, 0.04307896277108595, 0.0, -0.04412484492239456, -0.04412484492239456, 0.0, 0.0,
         0.17427513453578478],
    ),
    "gspo, 0.1": (
        {"ratio": "sequence_token", "clip_low": 0.1, "clip_high": 0.1}, "sequence_mean", -0.16036602337621575,
        [*[-0.0780608079083075] * 5, *[0.04166666652777778] * 3, *[-0.0487654954795029] * 4, *[0.14999999925] * 2],
    ),
}  # fmt: skip


@pytest.mark.parametrize("member", VERL)
def test_value_and_gradient_equal_those_of_verl(member):
    """The expected values are those of verl 0.9.1 on peer_inputs: compute_policy_loss_sapo, _dppo_tv, _geo_mean and
    _gspo. verl adds 1e-8 to a length."""
    settings, level, expected, gradient = VERL[member]
    logprobs = flat(NEW).requires_grad_()
    loss, _ = policy_loss(logprobs, torch.zeros_like(logprobs), micro_batch(level), objective(**settings))
    loss.backward()
    assert expected is None or loss.item() == pytest.approx(expected, rel=1e-7)
    torch.testing.assert_close(logprobs.grad, torch.tensor(gradient, dtype=torch.float64), rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("member", ["dppo_tv, 0.05 and 0.03, token-mean", "geo_mean, 0.2 and 0.1"])
def test_a_bound_counts_its_cuts_in_its_own_unit(member):
    """Five of the fourteen tokens have no gradient: two with a negative advantage, three with a positive one."""
    settings, level, _, gradient = VERL[member]
    logprobs = flat(NEW)
    _, sums = policy_loss(logprobs, torch.zeros_like(logprobs), micro_batch(level), objective(**settings))
    metrics = dict(zip(METRICS, sums.tolist(), strict=True))
    assert gradient.count(0.0) == 5
    assert (metrics["policy/clip_low_fraction"], metrics["policy/clip_high_fraction"]) == (2, 3)


def test_gspo_token_keeps_a_correction_at_its_own_token():
    """Each token's gradient is scaled by its own weight, as in verl's gspo. With `sequence` it is scaled by their
    mean."""
    correction = CorrectionConfig(level="token")
    wide = {"clip_low": 0.9, "clip_high": 9.0, "correction": correction}
    logprobs = flat(NEW).requires_grad_()
    micro = micro_batch("sequence_mean")
    loss, _ = policy_loss(logprobs, torch.zeros_like(logprobs), micro, objective(ratio="sequence_token", **wide))
    loss.backward()
    weight = (micro.old_logprobs - micro.sampler_logprobs).exp().clamp(max=2)
    difference = (flat(NEW) - micro.old_logprobs)[:5].mean().exp()
    torch.testing.assert_close(logprobs.grad[:5], -1.5 * difference * weight[:5] / 20)


def test_a_kl_by_the_ratio_is_that_of_trl():
    """TRL 1.16 multiplies per_token_kl by exp(log π − log π_old) with use_bias_correction_kl. The gradient goes through
    both."""
    micro = drawn(2)
    kl = KlConfig(coefficient=0.3, by_ratio=True)
    loss, gradient = by_code(objective(name="unclipped", kl=kl), micro)
    difference = micro.reference_logprobs - micro.new
    ratio = (micro.new - micro.old_logprobs).exp()
    losses = -ratio * micro.advantages + 0.3 * (difference.exp() - difference - 1) * ratio
    expected = (micro.token_weights * losses).sum()
    assert loss == pytest.approx(expected.item(), rel=1e-12)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, micro.new)[0])


def test_luspo_is_gspo_times_the_length():
    """TRL 1.16 has loss_type=luspo as the mean over completions of |o| times the sequence loss."""
    micro = drawn(3)
    micro.token_weights = torch.full_like(micro.new, 1 / len(LENGTHS)).detach()
    settings = objective(ratio="sequence", clip_low=0.1, clip_high=0.15)

    loss, gradient = by_code(settings, micro)
    expected, expected_gradient = by_formula(settings, micro, weigh=lambda length: length)
    assert loss == pytest.approx(expected, rel=1e-12)
    torch.testing.assert_close(gradient, expected_gradient)
