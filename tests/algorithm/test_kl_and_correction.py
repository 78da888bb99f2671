import math

import pytest
import torch

from grpo.algorithm.correction import corrected, importance_weights, vetoed
from grpo.algorithm.kl import k1, k2, k3
from grpo.config import CorrectionConfig
from grpo.types import Mean

from .peer_inputs import LENGTHS, NEW, OLD, OLD_MINUS_SAMPLER, REFERENCE, SEQUENCE_INDEX, flat


def test_kl_estimators_equal_those_of_peers_token_by_token():
    new, reference = flat(NEW), flat(REFERENCE)
    # verl 0.9.1 kl_penalty 'kl', 'mse', 'low_var_kl'; TRL 1.16.0 per-token kl; first completion
    torch.testing.assert_close(k1(new, reference)[:5], torch.tensor([0.2, -0.2, 0.3, -0.1, 0.2], dtype=torch.float64))
    torch.testing.assert_close(
        k2(new, reference)[:5], torch.tensor([0.02, 0.02, 0.045, 0.005, 0.02], dtype=torch.float64)
    )
    expected = [
        0.018730753077981888,
        0.0214027581601699,
        0.04081822068171803,
        0.005170918075647624,
        0.018730753077981888,
    ]
    torch.testing.assert_close(k3(new, reference)[:5], torch.tensor(expected, dtype=torch.float64))


def test_a_token_that_the_policy_has_all_but_ruled_out_keeps_k3_finite():
    """The loss is e^20 − 21 for all log-ratios above 20, and 19 for all below −20. There k3 is the log-ratio's size
    less 1."""
    logprobs = torch.tensor([-21.0, -500.0, -0.0], dtype=torch.float64)
    reference = torch.tensor([-1.0, -1.0, -500.0], dtype=torch.float64)
    assert k3(logprobs, reference).tolist() == pytest.approx([math.e**20 - 21, math.e**20 - 21, 19.0])


def test_expected_gradients_of_kl_estimators_are_what_the_docstring_says():
    """The expectation is exact over a vocabulary of three tokens. k2 has the KL's gradient, k1's is zero, and k3 has
    another one."""
    logits = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64, requires_grad=True)
    reference = torch.log_softmax(torch.tensor([0.1, 0.4, -0.3], dtype=torch.float64), 0)

    def expected_gradient(estimator):
        logprobs = torch.log_softmax(logits, 0)
        loss = (logprobs.exp().detach() * estimator(logprobs, reference)).sum()
        return torch.autograd.grad(loss, logits)[0]

    logprobs = torch.log_softmax(logits, 0)
    truth = torch.autograd.grad((logprobs.exp() * (logprobs - reference)).sum(), logits)[0]
    torch.testing.assert_close(expected_gradient(k1), torch.zeros(3).double(), atol=1e-12, rtol=0)
    torch.testing.assert_close(expected_gradient(k2), truth)
    assert (expected_gradient(k3) - truth).abs().max() > 0.01


def test_importance_weights_equal_those_of_peers():
    old = flat(OLD)
    sampler = old - flat(OLD_MINUS_SAMPLER)
    sequence = importance_weights(old, sampler, "sequence", SEQUENCE_INDEX)
    firsts = [0, 5, 8, 12]
    expected = [1.2840254166877414, 0.9048374180359595, math.e, 0.4965853037914095]
    torch.testing.assert_close(sequence[firsts], torch.tensor(expected, dtype=torch.float64))
    assert corrected(sequence, CorrectionConfig(mode="mask"))[8:12].tolist() == [0.0] * 4
    assert corrected(sequence, CorrectionConfig())[8:12].tolist() == [2.0] * 4


FIRST, SECOND = 1.2840254166877414, 0.9048374180359595
"""Products over the first and second completion; those of the third and fourth are 2.718 and .4966."""


@pytest.mark.parametrize(
    ("level", "mode", "floor", "expected", "source"),
    [
        (
            "token", "truncate", 0.5,
            [1.1051709180756477, 0.8187307530779818, 1.051271096376024, 1.0, 1.3498588075760032,
             0.6703200460356393, 1.2214027581601699, 1.1051709180756475,
             2.0, 0.9048374180359596, 1.0, 1.22140275816017,
             0.5, 1.3498588075760032],
            "TRL 1.16.0 vllm_importance_sampling_mode=token_truncate, clip_min=0.5, clip_max=2",
        ),
        (
            "token", "mask", 0.5,
            [1.1051709180756477, 0.8187307530779818, 1.0512710963760241, 1.0, 1.3498588075760032,
             0.6703200460356393, 1.2214027581601699, 1.1051709180756477,
             0.0, 0.9048374180359595, 1.0, 1.2214027581601699,
             0.0, 1.3498588075760032],
            "verl 0.9.1 rollout_is=token, rollout_is_threshold=0.5_2.0 (IcePop); TRL 1.16.0 token_mask",
        ),
        (
            "sequence", "truncate", 0.6, [FIRST] * 5 + [SECOND] * 3 + [2.0] * 4 + [0.6] * 2,
            "TRL 1.16.0 sequence_truncate, clip_min=0.6, clip_max=2",
        ),
        (
            "sequence", "mask", 0.6, [FIRST] * 5 + [SECOND] * 3 + [0.0] * 6,
            "verl 0.9.1 rollout_is=sequence, rollout_is_threshold=0.6_2.0; TRL 1.16.0 sequence_mask",
        ),
    ],
)  # fmt: skip
def test_bounds_on_both_sides_equal_those_of_peers(level, mode, floor, expected, source):
    old = flat(OLD)
    weights = importance_weights(old, old - flat(OLD_MINUS_SAMPLER), level, SEQUENCE_INDEX)
    weighted = corrected(weights, CorrectionConfig(level=level, mode=mode, floor=floor))
    torch.testing.assert_close(weighted, torch.tensor(expected, dtype=torch.float64))


def test_the_geometric_mean_of_a_completion_equals_that_of_verl():
    old = flat(OLD)
    weights = importance_weights(old, old - flat(OLD_MINUS_SAMPLER), "sequence_mean", SEQUENCE_INDEX)
    # 1 / ppl_ratio of verl 0.9.1 compute_offpolicy_metrics, of each completion alone; verl adds 1e-8 to a length.
    expected = [1.0512710962708967, 0.9672161005894744, 1.2840254158852258, 0.7046880909519176]
    torch.testing.assert_close(weights[[0, 5, 8, 12]], torch.tensor(expected, dtype=torch.float64), rtol=1e-8, atol=0)
    kept = corrected(weights, CorrectionConfig(level="sequence_mean", mode="mask", floor=0.75, cap=1.25)) > 0
    # verl 0.9.1 rollout_rs=seq_mean_k1 with bounds of the inverse, 0.8_1.3333
    assert kept.tolist() == [True] * 8 + [False] * 6


def test_a_veto_leaves_out_the_completions_that_verl_does():
    old = flat(OLD)
    sampler = old - flat(OLD_MINUS_SAMPLER)
    # verl 0.9.1 rollout_rs=seq_max_k2, threshold ½(ln .39)²: only the fourth has a token further off, w = e^−1.
    assert vetoed(old, sampler, 0.39, SEQUENCE_INDEX).tolist() == [False] * 12 + [True] * 2
    # A token that became more probable is no reason: that of e^.9 in the third, which verl's symmetric bound takes out.
    assert vetoed(old, sampler, 0.45, SEQUENCE_INDEX).tolist() == [False] * 12 + [True] * 2
    assert not vetoed(old, sampler, 0.0, SEQUENCE_INDEX).any()
    assert not vetoed(old, sampler, 1e-4, SEQUENCE_INDEX).any()


def test_the_effective_share_of_samples_equals_that_of_verl():
    old = flat(OLD)
    weights = importance_weights(old, old - flat(OLD_MINUS_SAMPLER), "token", SEQUENCE_INDEX).clamp(max=2)
    mean, squares = (Mean(values.sum().item(), sum(LENGTHS)) for values in (weights, weights.square()))
    # verl 0.9.1 rollout_is_eff_sample_size
    assert mean.effective_fraction(squares) == pytest.approx(0.9002346472497594, rel=1e-7)
    assert Mean(3.0, 3).effective_fraction(Mean(3.0, 3)) == 1.0
    assert math.isnan(Mean(0.0, 0.0).effective_fraction(Mean(0.0, 0.0)))
