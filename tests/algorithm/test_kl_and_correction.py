import math

import pytest
import torch

from grpo.algorithm.correction import corrected, importance_weights
from grpo.algorithm.kl import k1, k2, k3
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


def test_expected_gradients_of_kl_estimators_are_what_the_docstring_says():
    """Exact expectation over a three-token vocabulary: k2 has the KL's gradient, k1's is zero, k3's is not the KL's."""
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
    token = corrected(importance_weights(old, sampler, "token", SEQUENCE_INDEX), 2.0, "truncate")
    # verl 0.9.1, TRL 1.16.0, OpenRLHF 0.11.2, cap 2: third completion, first token truncated from 2.4596
    expected = [2.0, 0.9048374180359596, 1.0, 1.22140275816017]
    torch.testing.assert_close(token[8:12], torch.tensor(expected, dtype=torch.float64))
    sequence = importance_weights(old, sampler, "sequence", SEQUENCE_INDEX)
    firsts = [0, 5, 8, 12]
    expected = [1.2840254166877414, 0.9048374180359595, math.e, 0.4965853037914095]
    torch.testing.assert_close(sequence[firsts], torch.tensor(expected, dtype=torch.float64))
    assert corrected(sequence, 2.0, "mask")[8:12].tolist() == [0.0] * 4
    assert corrected(sequence, 2.0, "truncate")[8:12].tolist() == [2.0] * 4


def test_the_effective_share_of_samples_equals_that_of_verl():
    old = flat(OLD)
    weights = importance_weights(old, old - flat(OLD_MINUS_SAMPLER), "token", SEQUENCE_INDEX).clamp(max=2)
    mean, squares = (Mean(values.sum().item(), sum(LENGTHS)) for values in (weights, weights.square()))
    # verl 0.9.1 rollout_is_eff_sample_size
    assert mean.effective_fraction(squares) == pytest.approx(0.9002346472497594, rel=1e-7)
    assert Mean(3.0, 3).effective_fraction(Mean(3.0, 3)) == 1.0
    assert math.isnan(Mean(0.0, 0.0).effective_fraction(Mean(0.0, 0.0)))
